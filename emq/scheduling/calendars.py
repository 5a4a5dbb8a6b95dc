"""Times of day: local days of a zone."""

from __future__ import annotations

import datetime
import functools
import zoneinfo

LAST_DAY = datetime.date.max.toordinal() - 1
"""The number of the last day with a known beginning."""


@functools.lru_cache(maxsize=1024)
def day_start(zone: str, day: int) -> float:
    """Return when a local day begins, in seconds since the epoch.

    Where the clocks go forward over midnight, the day begins at the change.

    Args:
        zone: an IANA name.
        day: the number of the day: the proleptic Gregorian ordinal of its date.
    """
    date = datetime.date.fromordinal(day)
    return datetime.datetime(date.year, date.month, date.day, tzinfo=zoneinfo.ZoneInfo(zone)).timestamp()


def day_at(zone: str, now: float) -> int:
    """Return the number of the local day at `now`: the ordinal of its date. Consecutive days count up by one."""
    day = datetime.datetime.fromtimestamp(now, zoneinfo.ZoneInfo(zone)).toordinal()
    while day_start(zone, day + 1) <= now:  # the clocks went back over midnight: the day has begun, and stays
        day += 1
    while day_start(zone, day) > now:
        day -= 1
    return day
