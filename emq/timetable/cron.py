"""Computes the times at which a cron expression fires in a time zone, by the rules of cronsim and Debian's cron.

Five fields (minute, hour, day of month, month, day of week), or six with seconds in front. When clocks change:

- An expression with fixed times of day (five fields; neither the minute nor the hour begins with `*`) follows the wall
  clock. If an hour is skipped, it fires once, at the first minute that exists; if an hour comes twice, it fires only in
  the first of the two.
- Every other expression goes by elapsed time: it fires in both of two equal hours, and not in an hour that is skipped.
"""

from __future__ import annotations

import datetime
import zoneinfo
from collections.abc import Iterator

from cronsim import CronSim, CronSimError

from emq.runtime import errors

MAX_LENGTH = 200
"""Most characters of an expression; a list of sixty minutes has 170."""


def firings(cron: str, tz: str, after_ms: int) -> Iterator[int]:
    """Return the times at which `cron` fires after `after_ms`, ascending, in milliseconds since the epoch.

    The times end before a gap of fifty years.

    Args:
        cron: an expression of five or six fields.
        tz: an IANA name such as "Europe/Berlin".
        after_ms: milliseconds since the epoch.

    Raises:
        InvalidMessage: at once, if the expression or the zone is not valid. Correct it.
    """
    zone = _zone(tz)
    if len(cron) > MAX_LENGTH:
        raise errors.InvalidMessage(f"cron {cron[:20]!r}... has {len(cron)} characters; give at most {MAX_LENGTH}")
    try:
        times = CronSim(cron, datetime.datetime.fromtimestamp(after_ms / 1000, zone))
    except CronSimError as exc:
        text = str(exc)
        raise errors.InvalidMessage(
            f"cron {cron!r}: {text[:1].lower()}{text[1:]}; write minute hour day month weekday, such as '0 9 * * 1-5'"
        ) from None
    return _ascending(times, after_ms)


def _ascending(times: CronSim, last_ms: int) -> Iterator[int]:
    for time in times:
        ms = int(time.timestamp() * 1000)
        # If started in the second of two equal hours, cronsim returns fixed times in the first one, which is over.
        if ms > last_ms:
            last_ms = ms
            yield ms


def _zone(tz: str) -> datetime.tzinfo:
    if tz == "UTC":
        return datetime.UTC
    try:
        return zoneinfo.ZoneInfo(tz)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise errors.InvalidMessage(
            f"tz {tz!r} is not a time zone; give an IANA name such as 'Europe/Berlin'"
        ) from None
