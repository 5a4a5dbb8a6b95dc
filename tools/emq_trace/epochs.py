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
    seconds = since_s(number)
    if seconds is None:
        return str(number)
    then, now = time.localtime(number // 1_000_000), time.localtime()
    today = (then.tm_year, then.tm_yday) == (now.tm_year, now.tm_yday)
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S", then) + f".{number % 1_000_000:06d}"
