"""Shows epochs and plan numbers to people, as the time at which they were given out."""

from __future__ import annotations

import time

OLDEST_S = 10 * 366 * 86_400
"""Seconds before now; an older number is a count of an early version of EMQ, not a time."""

AHEAD_S = 60
"""Seconds that a number may be ahead of this machine's clock."""


def since_s(number: int) -> float | None:
    """Return the seconds since 1970 at which an epoch or plan number was given out; None if the number is not a time.

    Args:
        number: microseconds since 1970, or a little more where numbers were given out in quick succession.
    """
    seconds, now = number / 1e6, time.time()
    return seconds if now - OLDEST_S < seconds < now + AHEAD_S else None


def shown(number: int) -> str:
    """Return local time to the microsecond, which tells two epochs apart; the number itself if it is not a time.

    The date is left out today: `14:03:22.123456`, else `2030-01-31 14:03:22.123456`.
    """
    return str(number) if since_s(number) is None else local_time(number, 6)


def local_time(us: int, digits: int) -> str:
    """Return local time with 1 to 6 digits of the fraction of a second; the date is left out today."""
    then, now = time.localtime(us // 1_000_000), time.localtime()
    today = (then.tm_year, then.tm_yday) == (now.tm_year, now.tm_yday)
    fraction = f".{us % 1_000_000:06d}"[: 1 + digits]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S", then) + fraction
