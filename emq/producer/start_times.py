"""Converts the options for delays and times of a publish into the time at which a message may start."""

from __future__ import annotations

import datetime
import math

from emq import errors
from emq.schedule import delay_levels
from emq.schedule.delay_levels import Delay
from emq.topics.inputs import number
from emq.topics.model import MAX_DELAY_S, Topic


def due_ms_of(
    topic: Topic,
    delay_ms: float | None,
    delay: Delay | None,
    at: datetime.datetime | float | None,
    now_us: int,
) -> int | None:
    """Return the start time in milliseconds since the epoch; None if no option was given.

    Args:
        delay_ms: milliseconds from now, 0 to ten years.
        delay: as for `emq.schedule.delay_levels.delay_s`.
        at: a datetime with a time zone, or seconds since the epoch; a past time means now.
        now_us: microseconds since the epoch.

    Raises:
        InvalidMessage: more than one option was given, or a value is out of range.
    """
    if delay_ms is None and delay is None and at is None:
        return None
    if sum(given is not None for given in (delay_ms, delay, at)) > 1:
        raise errors.InvalidMessage("give only one of delay_ms, delay and at")
    if at is not None:
        return _instant_ms(at, now_us // 1000)
    if delay is not None:
        delay_ms = delay_levels.delay_s(topic, delay) * 1000
    wait_ms = number("delay_ms", delay_ms)
    if not 0 <= wait_ms <= MAX_DELAY_S * 1000:
        raise errors.InvalidMessage(f"delay_ms {wait_ms:g} must be from 0 to ten years in milliseconds")
    if wait_ms == 0:
        return now_us // 1000
    # Rounded up from the microsecond, so that no message waits for less than its delay.
    return min(math.ceil(now_us / 1000 + wait_ms), now_us // 1000 + int(MAX_DELAY_S * 1000))


def ttl_us(ttl_s: object) -> int:
    """Return a time to live in microseconds.

    Raises:
        InvalidMessage: `ttl_s` is not a number above 0, or is above ten years.
    """
    seconds = number("ttl_s", ttl_s)
    if not 0 < seconds <= MAX_DELAY_S:
        raise errors.InvalidMessage(f"ttl_s {seconds:g} must be above 0 and at most {MAX_DELAY_S:.0f} (ten years)")
    return int(seconds * 1e6)


def _instant_ms(at: datetime.datetime | float, now_ms: int) -> int:
    if isinstance(at, datetime.datetime):
        if at.utcoffset() is None:
            raise errors.InvalidMessage(f"at {at.isoformat()} has no time zone; give one, such as datetime.UTC")
        at = at.timestamp()
    if not (0 <= number("at", at) <= now_ms / 1000 + MAX_DELAY_S):
        raise errors.InvalidMessage(
            f"at {at:g} must be seconds since the epoch, at most ten years ahead; milliseconds are too large by 1,000"
        )
    return math.ceil(at * 1000)
