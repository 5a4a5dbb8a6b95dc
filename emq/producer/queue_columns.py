"""Messages of one topic and priority, and the put of those that go to one queue."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from emq.producer import checks
from emq.producer.routes import Route
from emq.storage import message
from emq.storage.log_store import REPEATED, Put
from emq.topics.model import Topic

T = TypeVar("T")


class QueueColumns(NamedTuple):
    """Messages of one topic and priority, checked.

    Attributes:
        headers, ids, ttl_s: a value for each message, which may be None; or None if all messages lack it. A message
            without an id gets a new one.
    """

    bodies: Sequence[bytes]
    keys: Sequence[str | None]
    headers: Sequence[dict[str, str] | None] | None = None
    ids: Sequence[str | None] | None = None
    ttl_s: Sequence[float | None] | None = None

    def part(self, start: int, end: int) -> QueueColumns:
        """Return the messages from `start` on, before `end`."""
        return QueueColumns(*(None if column is None else column[start:end] for column in self))  # type: ignore[arg-type]

    def sizes(self) -> list[int]:
        """Return the bytes of each message."""
        if self.headers is None and self.keys.count(None) == len(self.keys):
            return [*map(len, self.bodies)]
        each = zip(self.bodies, self.keys, self.headers or itertools.repeat(None), strict=False)
        return [len(body) + message.label_bytes(key, headers) for body, key, headers in each]


def expiring(m: message.Message, topic: Topic, priority: int, ttl_s: float) -> bytes:
    """Return the body of a first delivery with a time to live of its own, from `m.published_us` on."""
    m.priority, m.group = priority, topic.layout if m.key else 0
    m.expires_us = m.published_us + checks.ttl_us(ttl_s)
    return message.encode_retry(m)


def put_to(route: Route, group: int, priority: int, bodies: Sequence[bytes], ids: Sequence[str], keyed: bool) -> Put:
    """Return the put of messages to one queue; `keyed` if one of them has a key."""
    queues, layout = route.queues[group], route.topic.layout if keyed else None
    put = Put(queues[priority], bodies, layout=layout)
    if ids:
        put = put._replace(ids=ids, remember_ms=route.topic.dedupe_ms)
    if route.max_length is None:
        return put
    drop_oldest = route.topic.options.overflow == "drop_oldest"
    return put._replace(max_length=route.max_length, drop_oldest=drop_oldest, siblings=queues)


def at_places(column: Sequence[T], at: Sequence[int]) -> Sequence[T]:
    """Return the values at the given places. If the places are a range, this is one slice."""
    return column[at.start : at.stop : at.step] if isinstance(at, range) else [column[i] for i in at]


def stored(offsets: Sequence[int], at: Sequence[int]) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """Return the offsets and places of the messages that a put stored, and the places of those that it left out."""
    if REPEATED not in offsets:
        return offsets, at, []
    stored = [(offset, i) for offset, i in zip(offsets, at, strict=True) if offset != REPEATED]
    left_out = [i for offset, i in zip(offsets, at, strict=True) if offset == REPEATED]
    return [offset for offset, _ in stored], [i for _, i in stored], left_out
