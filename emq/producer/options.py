"""The options of messages, as keyword arguments of every method that publishes."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

from emq.timetable.delay_levels import Delay
from emq.timetable.schedule import Missed


class MessageOptions(TypedDict, total=False):
    """What each message, batch or schedule may have.

    Attributes:
        key: messages of one key run one at a time, first deliveries in order. In a sorted topic, the slot basis.
        priority: one of the topic's; None for the middle one. For topics of kind priority, a number above 16.
        headers: small strings that travel along; with the key up to the topic's `max_headers` bytes.
        at: the time at which the message may start, or the schedule begins: a datetime with a time zone, or seconds
            since the epoch. In a topic of kind fixed_time this is the fixed time, and in one of kind range_merge the
            end of the range.
        ttl_s: seconds after the message is ready at which it expires: if it has not started by then, it becomes a dead
            letter with the reason `expired`. The topic's own ttl_s counts if it is shorter.
    """

    key: str | None
    priority: str | float | None
    headers: Mapping[str, str] | None
    at: datetime.datetime | float | None
    ttl_s: float | None


class PublishOptions(MessageOptions, total=False):
    """The options of one message; see also `MessageOptions`. Give at most one of `delay_ms`, `delay` and `at`.

    Attributes:
        delay_ms: milliseconds from now before which the message may not start.
        delay: the same, as the name of one of the topic's delay levels, a span such as "1h" if it has none, an enum
            member with such a value, a timedelta, or seconds.
        time_range_ms: for topics of kind range_merge: milliseconds from now until the message is due.
        merge_key: for sorted topics with merge='key': messages of one merge key merge; None for the payload.
        message_id: your own id of 1 to 128 characters; reuse it when you retry after `OutcomeUnknown`. None for a new
            id. Each publish stores a message of its own, also if another message of the id waits or is dead; but if the
            topic has `dedupe_s`, a repeat within that time stores nothing, and the result is a `Repeated`. Not for
            slots, where the id follows from the merge key or content.
    """

    delay_ms: float | None
    delay: Delay | None
    time_range_ms: int | None
    merge_key: bytes | str | None
    message_id: str | None


class PublishManyOptions(MessageOptions, total=False):
    """The options of messages that are published together; see also `MessageOptions`, which apply to all of them.

    Attributes:
        keys: a key for each payload.
        scores: for sorted topics, a time (milliseconds since the epoch) or priority for each payload.
        delay_ms, time_range_ms: for all messages, as in `PublishOptions`.
        merge_keys: for sorted topics with merge='key', a merge key for each payload; None for the payloads.
        message_ids: an id for each payload, as `message_id` in `PublishOptions`.
    """

    keys: Sequence[str | None] | None
    scores: Sequence[float] | None
    delay_ms: float | None
    time_range_ms: int | None
    merge_keys: Sequence[bytes | str] | None
    message_ids: Sequence[str] | None


class ScheduleOptions(MessageOptions, total=False):
    """The options of a schedule; see also `MessageOptions`: `at` is its start, the others apply to each occurrence.

    Attributes:
        every_s, repeat, cron, tz, missed: times of the occurrences; see `emq.timetable.schedule.create`.
        delay_ms: milliseconds before the first occurrence; with cron, after each firing.
    """

    every_s: float | None
    repeat: int | None
    cron: str | None
    tz: str | None
    missed: Missed
    delay_ms: float


def check_names(method: str, given: Iterable[str], options: frozenset[str]) -> None:
    """Raise `TypeError`, as a call does, if one of the given names is not in `options`."""
    for name in given:
        if name not in options:
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}")
