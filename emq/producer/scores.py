"""The scores of messages in sorted topics: due times in milliseconds since the epoch, or priorities."""

from __future__ import annotations

import math
from collections.abc import Sequence

from emq.runtime import errors
from emq.runtime.inputs import finite, number, shown
from emq.storage.slot_store import RETRIES
from emq.topics.model import MAX_DELAY_S, Kind, Topic

AGING_EPOCH_S = 1 << 33
"""Second since the epoch (in the year 2242) to which aging topics count down, so that their scores stay above the
scores that count retries."""


def score_of(
    topic: Topic, priority: float | str | None, due_ms: int | None, range_ms: int | None, now_us: int
) -> float:
    """Return a message's score, checked: its due time in milliseconds since the epoch, or its priority.

    Raises:
        InvalidMessage: a value that the topic's kind needs is missing or out of range; the text says what would be
            right.
    """
    now_ms = now_us // 1000
    if topic.kind is Kind.PRIORITY:
        if range_ms is not None:
            raise errors.InvalidMessage(f"topic {topic.name!r} goes by priority; time_range_ms is for range_merge")
        return _priority_score(topic, priority, now_us)
    if priority is not None:
        raise errors.InvalidMessage(f"topic {topic.name!r} goes by time; priority is for kinds log and priority")
    if topic.kind is Kind.RANGE_MERGE:
        if due_ms is None:
            wait_ms = topic.options.time_range_ms if range_ms is None else range_ms
            if wait_ms is None:
                raise errors.InvalidMessage(f"topic {topic.name!r} has no time_range_ms; give one with the message")
            due_ms = now_ms + math.ceil(number("time_range_ms", wait_ms))
        if not now_ms < due_ms <= now_ms + MAX_DELAY_S * 1000:
            raise errors.InvalidMessage(f"time range {due_ms - now_ms} ms must be above 0 and at most ten years")
        return due_ms
    if range_ms is not None:
        raise errors.InvalidMessage(f"topic {topic.name!r} has fixed times; time_range_ms is for range_merge")
    if due_ms is None:
        raise errors.InvalidMessage(f"topic {topic.name!r} has fixed times; give at= or delay_ms=")
    if not now_ms <= due_ms <= now_ms + MAX_DELAY_S * 1000:
        raise errors.InvalidMessage(f"fixed time {_shown(due_ms, now_ms)} must be ahead of now, by at most ten years")
    return due_ms


def scores_of(
    topic: Topic,
    count: int,
    scores: Sequence[float] | None,
    priority: float | str | None,
    due_ms: int | None,
    range_ms: int | None,
    now_us: int,
) -> Sequence[float]:
    """Return the scores of many messages, checked: the given times or priorities, or else one score for all messages.

    Raises:
        InvalidMessage: a score is out of range; the text says which score, and what would be right. Or both `scores`
            and a value for all messages are given.
    """
    if scores is None:
        return [score_of(topic, priority, due_ms, range_ms, now_us)] * count if count else []
    if (priority, due_ms, range_ms) != (None, None, None):
        raise errors.InvalidMessage("give scores, one for each payload, or one priority or time for all of them")
    if topic.kind is Kind.PRIORITY:
        return [_priority_score(topic, score, now_us) for score in scores]
    now_ms = now_us // 1000
    for score in scores:  # min and max would miss a NaN
        if not (type(score) is int or type(score) is float) or not finite(score):
            number("score", score)
    for worst in (min(scores), max(scores)) if scores else ():
        if not now_ms < worst <= now_ms + MAX_DELAY_S * 1000:
            raise errors.InvalidMessage(f"time {_shown(worst, now_ms)} must be ahead of now, by at most ten years")
    return scores


def _shown(due_ms: float, now_ms: int) -> str:
    """Return a time for people: as given, and its distance from now."""
    away_s = (due_ms - now_ms) / 1000
    return f"{due_ms:.0f} ms ({abs(away_s):,.1f} s {'ahead' if away_s > 0 else 'ago'})"


def _priority_score(topic: Topic, priority: float | str | None, now_us: int) -> float:
    given = priority if type(priority) is int or type(priority) is float else math.nan
    if not RETRIES < given < 1 << 50:
        raise errors.InvalidMessage(
            f"priority {shown(priority)} must be a number above {RETRIES}, and below 2^50; up to {RETRIES}, scores "
            "count retries"
        )
    if topic.options.priority_policy == "aging":
        # A message that waits rises by 1 for each aging_s, so the order of these scores is the same at any time.
        return given + (AGING_EPOCH_S - now_us / 1e6) / topic.options.aging_s
    return given


def number_of(topic: Topic, priority: str | float | None) -> float:
    """Return a priority as a number, for a topic of kind priority.

    Raises:
        InvalidMessage: the priority is missing or is not a number.
    """
    try:
        number = math.nan if priority is None else float(priority)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        given = "give one" if priority is None else f"{priority!r} is not"
        raise errors.InvalidMessage(f"topic {topic.name!r} goes by priority, a number above {RETRIES}; {given}")
    return int(number) if number.is_integer() else number
