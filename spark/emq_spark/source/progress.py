"""The progress of a stream, as Spark notes it in its checkpoint.

For each queue the progress holds the next offset to read, the queue's incarnation, and a digest of the message before
this offset. An offset alone would mean other messages once the store was emptied, replaced or restored and has
grown past it. The incarnation shows that a queue was made again; the digest shows that a store was restored to an older
state.

Spark shows the progress with every failure of the query, so the queues are packed: a topic of 1,500 queues must not
bury the failure's cause.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from emq.runtime import errors, plurals
from emq.storage.answers import served
from emq.storage.log_store import Bounds, LogStore
from emq.storage.marks import digest
from emq_spark.source.spans import CALL_BYTES, Reading, Span, shared_out

VERSION = 2

SHOWN = 3
"""Most queues that the text of a failure names."""


class Position(NamedTuple):
    """Where a queue is read next.

    Attributes:
        offset: the next offset to read.
        incarnation: that of the queue; 0 if the store had not made the queue yet.
        last: digest of the message right before `offset`; empty if it is not known.
    """

    offset: int
    incarnation: int = 0
    last: str = ""


@dataclass(frozen=True)
class Progress:
    """The progress of all queues, and the batch that leads to it.

    Attributes:
        ends: by queue, where the next batch begins.
        begins: by queue of this batch, the first offset of the batch. With both, the end of a batch defines the batch,
            because Spark notes the begin of a query only after its first batch.
    """

    ends: Mapping[str, Position]
    begins: Mapping[str, int]

    def packed(self) -> dict[str, Any]:
        """Return the progress as Spark stores it."""
        return {"version": VERSION, "queues": len(self.ends), "ends": _pack(self.ends), "begins": _pack(self.begins)}

    @classmethod
    def unpacked(cls, stored: Mapping[str, Any]) -> Progress:
        """Raises:
        EMQError: another version of EMQ wrote it, or something else did.
        """
        if stored.get("version") != VERSION:
            raise errors.EMQError(
                "the query's checkpoint has progress in another form than this version of EMQ writes; nothing was "
                "read, start the query with a new checkpointLocation"
            )
        try:
            ends = _unpack(stored["ends"], dict[str, Position])
            return cls(ends, _unpack(stored["begins"], dict[str, int]))
        except (KeyError, ValueError, TypeError, binascii.Error, zlib.error, msgspec.MsgspecError) as exc:
            raise errors.EMQError(
                f"the query's checkpoint is damaged ({exc}); start the query with a new checkpointLocation"
            ) from exc

    def spans(self) -> list[Span]:
        """Return the spans of the batch."""
        return [
            Span(queue, first, self.ends[queue].offset, self.ends[queue].incarnation)
            for queue, first in self.begins.items()
        ]

    def noted(self, digests: Mapping[str, str]) -> Progress:
        """Return the progress with these digests of the last messages of queues; others of the batch are unknown."""
        changed = {queue: self.ends[queue]._replace(last=digests.get(queue, "")) for queue in self.begins}
        return Progress({**self.ends, **changed}, self.begins)

    def lag(self, bounds: Mapping[str, Bounds]) -> dict[str, Any]:
        """Return how many offsets lie behind the progress: in all queues, and in the queue with the most."""
        left = {
            queue: b.tail - max(b.head, self.ends[queue].offset) for queue, b in bounds.items() if queue in self.ends
        }
        left |= {queue: b.tail - b.head for queue, b in bounds.items() if queue not in self.ends}
        behind = {queue: count for queue, count in left.items() if count > 0}
        most = max(behind, key=behind.__getitem__, default=None)
        found: dict[str, Any] = {"messages": sum(behind.values()), "queues": len(behind)}
        return found if most is None else {**found, "most": behind[most], "most_in": most}


def advanced(
    start: Progress,
    bounds: Mapping[str, Bounds],
    most: int | None,
    *,
    lost_fails: bool,
    others: Collection[str] = (),
) -> Progress:
    """Return the progress after the next batch: `start` itself if there is nothing to read, and no topic is gone.

    Args:
        bounds: bounds of the queues that exist now or were retired since; the progress forgets other queues.
        most: most messages in the batch, or one for each queue with messages if those are more.
        lost_fails: raise `EMQError` if a queue lost messages that were not read: the queue was made again or restored,
            its head is after the progress, or its tail before it. If False, go on at the head.
        others: queues that have another message where the progress has read its last one.
    """
    positions = {q: start.ends.get(q, Position(b.head, b.incarnation)) for q, b in bounds.items()}
    if lost_fails:
        unread = (
            Span(q, min(at.offset, bounds[q].tail), max(at.offset, bounds[q].head), at.incarnation)
            for q, at in positions.items()
        )
        found = (problem(span, bounds[span.queue], restored=span.queue in others) for span in unread)
        if wrong := [text for text in found if text is not None]:
            raise failure(wrong)
    for queue, (head, tail, incarnation) in bounds.items():
        at = positions[queue]
        again = queue in others or (at.incarnation not in (0, incarnation)) or at.offset > tail
        positions[queue] = Position(head, incarnation) if again else at._replace(incarnation=incarnation)
    backlogs = [bounds[queue].tail - max(at.offset, bounds[queue].head) for queue, at in positions.items()]
    if not any(backlogs):
        # The store may forget a topic that is gone. A topic of its name is another one, with offsets that begin again.
        return start if start.ends.keys() <= positions.keys() else Progress(positions, {})
    shares = backlogs if most is None else shared_out(most, backlogs)
    moving = {queue: share for queue, share in zip(positions, shares, strict=True) if share}
    begins = {queue: positions[queue].offset for queue in moving}
    ends = {q: positions[q]._replace(offset=max(begins[q], bounds[q].head) + share) for q, share in moving.items()}
    return Progress({**positions, **ends}, begins)


def problem(span: Span, found: Bounds, *, restored: bool = False) -> str | None:
    """Return why messages of a span cannot be read, in a clause; None if all are there.

    Args:
        found: the bounds of the queue now.
        restored: another message is right before the span's end than was there.
    """
    queue, start, end, incarnation = span
    if incarnation not in (0, found.incarnation):
        return (
            f"queue {queue!r} was lost with its store and made again since it was read up to offset {start}; offsets "
            f"{found.head} to {found.tail - 1} are other messages now"
        )
    if restored:
        return (
            f"queue {queue!r} has another message at offset {end - 1} than before: its store came back as it was some "
            "time ago"
        )
    if found.head > start:
        return f"queue {queue!r}: offsets {start} to {min(found.head, end) - 1} were trimmed before they were read"
    if found.tail < end:
        return f"queue {queue!r}: offsets {found.tail} to {end - 1} are lost"
    return None


def failure(problems: Sequence[str]) -> errors.EMQError:
    """Return the error for some queues, in one line, which names the first of them."""
    more = len(problems) - SHOWN
    rest = f"; and so for {plurals.count(more, 'more queue')}" if more > 0 else ""
    return errors.EMQError(
        f"{'; '.join(problems[:SHOWN])}{rest}. Raise the topic's retention_s if messages are trimmed too early, and "
        "set the option trimmed to 'skip' to go on with the first message that each queue has now"
    )


async def restored(log: LogStore, at: Mapping[str, Position], bounds: Mapping[str, Bounds]) -> set[str]:
    """Return the queues that have another message where a position has read its last one."""
    known = {
        queue: position.offset - 1
        for queue, position in at.items()
        if position.last
        and bounds[queue].incarnation == position.incarnation
        and bounds[queue].head < position.offset <= bounds[queue].tail
    }
    found = await digests(log, known)
    return {queue for queue, shown in found.items() if shown != at[queue].last}


async def digests(log: LogStore, offsets: Mapping[str, int]) -> dict[str, str]:
    """Return the digest of the message at one offset of each queue; none for holes and offsets that were trimmed."""
    return {queue: digest(body) async for queue, body in bodies_at(log, offsets)}


async def bodies_at(log: LogStore, offsets: Mapping[str, int]) -> AsyncIterator[tuple[str, bytes]]:
    """Yield queue and body of the message at one offset of each queue; leave out holes and trimmed offsets."""
    reading = Reading(Span(queue, offset, offset + 1) for queue, offset in offsets.items())
    while reads := reading.reads():
        for span, _, bodies in reading.take(served(await log.read(reads, CALL_BYTES))):
            if bodies:
                yield span.queue, bodies[0]


def _pack(values: Mapping[str, Any]) -> str:
    return base64.b64encode(zlib.compress(msgspec.json.encode(values, order="sorted"), 9)).decode()


def _unpack(text: str, kind: Any) -> Any:
    return msgspec.json.decode(zlib.decompress(base64.b64decode(text, validate=True)), type=kind)
