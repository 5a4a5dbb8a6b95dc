"""Chooses the offsets of queues to read, and deals them out to tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from emq.runtime import errors
from emq.storage.log_store import Batch, Bounds, Read
from emq.storage.names import QueueName
from emq.topics.model import Topic
from emq_spark.source.filters import Wanted

CALL = 5_000
"""Most messages in one call to the store. This many hold the store up for 2 ms, and fill a large record batch."""

CALL_BYTES = 8 << 20
"""Most bytes of bodies in one call."""

FIRST_CALL = 100
"""Messages in the first call, before the reader knows their sizes."""

GROWTH = 10
"""Largest factor by which the number of messages grows from one call to the next."""

CALL_QUEUES = 500
"""Most queues in one call."""


class Span(NamedTuple):
    """Offsets [start, end) of a queue; some of them may be holes.

    Attributes:
        incarnation: that of the queue; 0 if it is not known.
    """

    queue: str
    start: int
    end: int
    incarnation: int = 0

    @property
    def name(self) -> QueueName:
        return QueueName.parse(self.queue)


def queues_of(topics: Iterable[Topic], wanted: Wanted) -> list[str]:
    """Return the queues of log topics that may hold wanted messages, group by group."""
    return [
        topic.queue(group, index)
        for topic in topics
        if not topic.is_sorted and wanted.admits(topic=topic.name)
        for group in range(topic.groups)
        if wanted.admits(group=group)
        for index, priority in enumerate(topic.priorities)
        if wanted.admits(priority=priority)
    ]


def spans_of(bounds: Mapping[str, Bounds], wanted: Wanted) -> Iterator[Span]:
    """Yield the stored spans of the queues, as far as their offsets are wanted."""
    low, high = wanted.range("offset")
    for queue, (head, tail, incarnation) in bounds.items():
        start = head if low is None else max(head, low)
        end = tail if high is None else min(tail, high)
        if start < end:
            yield Span(queue, start, end, incarnation)


def dealt(spans: Iterable[Span], size: int) -> list[tuple[Span, ...]]:
    """Return the spans in parts of at most `size` offsets: long spans are cut, and short neighbours share a part."""
    parts: list[tuple[Span, ...]] = []
    part: list[Span] = []
    held = 0
    for span in _cut(spans, size):
        if held + span.end - span.start > size:
            parts.append(tuple(part))
            part, held = [], 0
        part.append(span)
        held += span.end - span.start
    if part:
        parts.append(tuple(part))
    return parts


def _cut(spans: Iterable[Span], size: int) -> Iterator[Span]:
    for span in spans:
        for at in range(span.start, span.end, size):
            yield span._replace(start=at, end=min(at + size, span.end))


def shared_out(room: int, backlogs: Sequence[int]) -> list[int]:
    """Share room for `room` messages among queues, in proportion to their backlogs.

    A queue with messages gets room for one at least, so no queue is left behind forever. Only this rule may exceed
    `room`.
    """
    total = sum(backlogs)
    if total <= room:
        return list(backlogs)
    return [min(held, max(1, held * room // total)) if held else 0 for held in backlogs]


def reads_of(spans: Sequence[Span], room: int = CALL) -> list[Read]:
    """Return an observer's reads of the first spans, as many as one call of `room` messages takes."""
    reads: list[Read] = []
    for span in spans[:CALL_QUEUES]:
        reads.append(Read(span.queue, span.start, min(room, span.end - span.start), None))
        room -= reads[-1].limit
        if room <= 0:
            break
    return reads


Found = tuple[Span, Sequence[int], Sequence[bytes]]
"""A span that was read, the offsets in it that hold a message, and the bodies of these messages."""


def found_in(
    spans: Sequence[Span], answers: Sequence[Batch | errors.NotOwner | errors.MessagesLost]
) -> tuple[list[Found], list[Span]]:
    """Return the read part of each span with its messages, and the unread rest of the spans."""
    found: list[Found] = []
    left: list[Span] = []
    for span, answer in zip(spans, answers, strict=True):
        if isinstance(answer, errors.EMQError):  # not expected: no store refuses an observer
            raise answer
        offsets, bodies = answer.offsets, answer.bodies
        if offsets and offsets[-1] >= span.end:  # holes do not count towards a read's limit
            kept = sum(offset < span.end for offset in offsets)
            offsets, bodies = offsets[:kept], bodies[:kept]
        reached = span.end if answer.exhausted else min(max(answer.next, span.start), span.end)
        found.append((span._replace(end=reached), offsets, bodies))
        if reached < span.end:
            left.append(span._replace(start=reached))
    return found, left


class Reading:
    """Reads spans call by call: get `reads`, give the answers to `take`, until there are no more reads.

    A store may fetch all messages of a call before it counts their bytes. So each call asks for about as many messages
    as `CALL_BYTES` has room for, judged by the call before.
    """

    def __init__(self, spans: Iterable[Span]) -> None:
        self._left = list(spans)
        self._room = FIRST_CALL

    def reads(self) -> list[Read]:
        return reads_of(self._left, self._room)

    def take(self, answers: Sequence[Batch | errors.NotOwner | errors.MessagesLost]) -> list[Found]:
        """Return the messages that the call with the last `reads` has found."""
        found, left = found_in(self._left[: len(answers)], answers)
        self._left[: len(answers)] = left
        if count := sum(len(bodies) for _, _, bodies in found):
            size = sum(len(body) for _, _, bodies in found for body in bodies)
            self._room = max(1, min(CALL, GROWTH * self._room, CALL_BYTES * count // max(1, size)))
        return found
