"""Outgoing messages: the way of each one, and checks of messages that go the same way."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

from emq.producer import checks, sorted_topics
from emq.producer.checks import due_ms_of, ttl_us
from emq.producer.queue_columns import QueueColumns
from emq.producer.scores import score_of
from emq.producer.sorted_topics import SlotColumns, SortedOptions
from emq.runtime import errors, inputs
from emq.timetable.delay_levels import Delay
from emq.topics.model import Kind, Topic

T = TypeVar("T")


class Outgoing(NamedTuple):
    """A message to publish; fields as in `emq.producer.options.PublishOptions`.

    Attributes:
        id: not used for slots, where the id follows from the merge key or content.
    """

    topic: str
    payload: bytes | str
    id: str | None = None
    key: str | None = None
    priority: str | float | None = None
    headers: Mapping[str, str] | None = None
    delay_ms: float | None = None
    delay: Delay | None = None
    at: datetime.datetime | float | None = None
    ttl_s: float | None = None
    time_range_ms: int | None = None
    merge_key: bytes | str | None = None

    @property
    def waits(self) -> bool:
        """True if the message has a delay or a time at which it may start."""
        return self.at is not None or self.delay_ms is not None or self.delay is not None

    def way(self, topic: Topic) -> Way:
        """Return the message's way; messages of one way can be sent together.

        Raises:
            InvalidMessage: the topic does not have the message's priority.
        """
        if topic.is_sorted and (topic.kind is not Kind.PRIORITY or not self.waits):
            return Way(topic.name, "slots")
        return (
            Way(topic.name, "lanes") if self.waits else Way(topic.name, "queues", topic.priority_index(self.priority))
        )


def said_of(m: object) -> tuple[str, str | float | None, bool]:
    """Return the values that decide on a message's way: its topic, its priority, and whether it waits.

    Raises:
        InvalidMessage: `m` is not an `Outgoing`, or its topic or priority has a wrong type.
    """
    if not isinstance(m, Outgoing):
        raise errors.InvalidMessage(f"message {inputs.shown(m)} is of type {type(m).__name__}; give an Outgoing")
    if not isinstance(m.topic, str):
        raise errors.InvalidMessage(f"topic {inputs.shown(m.topic)} is of type {type(m.topic).__name__}; give its name")
    said = m.topic, m.priority, m.waits
    try:
        hash(said)
    except TypeError:
        raise errors.InvalidMessage(
            f"priority {inputs.shown(m.priority)} is of type {type(m.priority).__name__}; give a name or a number"
        ) from None
    return said


class Way(NamedTuple):
    """The way of messages of one topic: to slots, to lanes, or to the queues of one priority.

    `priority` is an index into the priorities of the topic against which the messages are checked.
    """

    topic: str
    to: Literal["slots", "lanes", "queues"]
    priority: int = 0


def columns_of(way: Way, topic: Topic, messages: Sequence[Outgoing], now_us: int) -> QueueColumns | SlotColumns:
    """Check messages that go the same way to queues or slots; raise `InvalidMessage` if one of them is not valid."""
    return for_slots(topic, messages, now_us) if way.to == "slots" else for_queue(topic, messages)


def refusals(way: Way, topic: Topic, messages: Sequence[Outgoing], now_us: int) -> dict[int, errors.EMQError]:
    """Check each of the messages that go the same way by itself; return the errors of the invalid ones, by place."""
    refused: dict[int, errors.EMQError] = {}
    for i, m in enumerate(messages):
        try:
            columns_of(way, topic, [m], now_us)
        except UnicodeEncodeError as exc:
            refused[i] = inputs.unencodable(exc)
        except errors.EMQError as exc:
            refused[i] = exc
        except Exception as exc:  # the caller's value raised an error when it was read
            refused[i] = errors.InvalidMessage(f"message cannot be read: {type(exc).__name__}: {exc}")
            refused[i].__cause__ = exc
    return refused


def for_queue(topic: Topic, messages: Sequence[Outgoing]) -> QueueColumns:
    """Check messages that go to the queues of one priority; raises `InvalidMessage` if one of them is not right."""
    bodies, keys, headers = _checked(topic, messages)
    given_ids = iter(checks.checked_ids([m.id for m in messages if m.id is not None]))
    ids = [None if m.id is None else next(given_ids) for m in messages]
    checks.check_no_slot_options(topic, *(m.time_range_ms for m in messages), *(m.merge_key for m in messages))
    ttl_s = [m.ttl_s for m in messages]
    return QueueColumns(bodies, keys, _unless_none(headers), ids, _unless_none(ttl_s))


def for_slots(topic: Topic, messages: Sequence[Outgoing], now_us: int) -> SlotColumns:
    """Check messages that go to the slots of one topic, and choose their scores; raises as `for_queue`."""
    bodies, keys, headers = _checked(topic, messages)
    scores = [
        score_of(topic, m.priority, due_ms_of(topic, m.delay_ms, m.delay, m.at, now_us), m.time_range_ms, now_us)
        for m in messages
    ]
    each = zip(messages, keys, headers, strict=True)
    told = [SortedOptions(key, of_message, m.ttl_s, m.merge_key) for m, key, of_message in each]
    columns = SlotColumns(bodies, scores, told if told.count(SortedOptions()) < len(told) else None)
    sorted_topics.check(topic, columns.bodies, columns.told)
    return columns


def _checked(
    topic: Topic, messages: Sequence[Outgoing]
) -> tuple[Sequence[bytes], Sequence[str | None], list[dict[str, str] | None]]:
    """Return the payloads, keys and headers, all as plain values."""
    keys = inputs.texts("key", [m.key for m in messages])
    for m in messages:
        if m.ttl_s is not None:
            ttl_us(m.ttl_s)
    headers = [None if m.headers is None else inputs.headers(m.headers) for m in messages]
    for key, of_message in zip(keys, headers, strict=True):
        checks.check_labels(topic, key, of_message)
    return checks.bodies_of(topic, [m.payload for m in messages]), keys, headers


def _unless_none(values: Sequence[T]) -> Sequence[T] | None:
    return None if values.count(None) == len(values) else values
