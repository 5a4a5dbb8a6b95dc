"""Delays by name: the delay levels of a topic, and RocketMQ's customary levels."""

from __future__ import annotations

import datetime
import enum
import math

from emq.runtime import durations, errors, inputs
from emq.topics.model import MAX_DELAY_S, Topic

_NAMES = ("1s", "5s", "10s", "30s", *(f"{minutes}m" for minutes in (*range(1, 11), 20, 30)), "1h", "2h")
ROCKETMQ = {name: seconds for name in _NAMES if (seconds := durations.span_s(name)) is not None}
"""RocketMQ's 18 levels, in seconds by name; for a topic's `delay_levels`."""

ROCKETMQ_BY_NUMBER: dict[str, float] = {str(number): s for number, s in enumerate(ROCKETMQ.values(), 1)}
"""The same delays by RocketMQ's numbers, "1" to "18", for topics whose publishers use the numbers."""

Delay = str | float | datetime.timedelta | enum.Enum
"""A level's name, seconds, a duration, or a member of an enumeration whose value is one of these."""


def delay_s(topic: Topic, delay: Delay) -> float:
    """Return the seconds of a delay that was given to a publish.

    Args:
        delay: the name of a level in the topic's `delay_levels`, or a span such as "90s" if it has none; seconds, 0 to
            ten years; a `timedelta`; or a member of an enumeration with such a value, such as `REMINDER = "30m"`.

    Raises:
        InvalidMessage: a text is neither a level nor a span, or the delay is out of range. Correct the delay.
    """
    value = delay.value if isinstance(delay, enum.Enum) else delay
    seconds = _level(topic, value) if isinstance(value, str) else inputs.seconds("delay", value)
    if not 0 <= seconds <= MAX_DELAY_S:
        raise errors.InvalidMessage(
            f"delay {inputs.shown(delay)} must be from 0 to {MAX_DELAY_S:.0f} seconds (ten years)"
        )
    return float(seconds)


def _level(topic: Topic, name: str) -> float:
    levels = topic.options.delay_levels
    if (seconds := levels.get(name) if levels else durations.span_s(name)) is not None:
        return seconds
    known = ", ".join(sorted(levels, key=levels.__getitem__)) or f"none; give a duration such as {durations.SPANS}"
    raise errors.InvalidMessage(f"topic {topic.name!r} has no delay level {name!r}; it has {known}")


def written(ms: float) -> str:
    """Return a span of time for people, exact to the millisecond: `5 m`, `1 h 30 m`, `250 ms`."""
    rest, parts = math.floor(ms), []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts) or "0 s"
