"""Looks for messages in their queues and lanes, when a publish or a dead task has left them in doubt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from emq.runtime import errors
from emq.storage.answers import served
from emq.storage.lane_store import Asked, LaneStore
from emq.storage.log_store import Bounds, LogStore
from emq.storage.message import Message
from emq_spark.source.messages import bounds_of
from emq_spark.source.notes import Tail
from emq_spark.source.rows import decoded
from emq_spark.source.spans import CALL_BYTES, Reading, Span

FIRST = 1
"""The lowest offset of a queue."""


LANES_CHUNK = 1_000
"""Most ids in one look through lanes."""


class Found(NamedTuple):
    """A message that is in a queue: the queue's name, and the message's offset there."""

    queue: str
    offset: int
    message: Message


class Seen(NamedTuple):
    """The result of `look`.

    Attributes:
        found: by id, the messages found, at most as many as were looked for.
        trimmed: queues that have trimmed messages behind the offset where the look began.
        ends: by queue, where it ended when the look began.
    """

    found: Mapping[str, list[Found]]
    trimmed: frozenset[str]
    ends: Mapping[str, int]


async def look(
    log: LogStore,
    queues: Sequence[str],
    tails: Mapping[str, Tail],
    ids: Iterable[str],
    remedy: str,
) -> Seen:
    """Look for messages in all queues to which they may have gone.

    Args:
        tails: by queue, of some of them, the noted end at which to begin; the look begins at the head of the others.
        ids: ids of the messages; for an id that is given twice, two messages are looked for.
        remedy: as for `check_same`.

    Raises:
        EMQError: as for `check_same`.
    """
    bounds = await bounds_of(log, queues)
    check_same(bounds, tails, remedy)
    starts = {queue: tail.offset for queue, tail in tails.items()}
    trimmed = frozenset(queue for queue, (head, *_) in bounds.items() if head > starts.get(queue, FIRST))
    spans = (Span(queue, max(starts.get(queue, b.head), b.head), b.tail) for queue, b in bounds.items())
    reading = Reading(span for span in spans if span.start < span.end)
    left, found = Counter(ids), dict[str, list[Found]]()
    while left and (reads := reading.reads()):
        for span, offsets, bodies in reading.take(served(await log.read(reads, CALL_BYTES))):
            for offset, m in zip(offsets, decoded(bodies), strict=True):
                if m.id not in left:
                    continue
                found.setdefault(m.id, []).append(Found(span.queue, offset, m))
                left[m.id] -= 1
                if not left[m.id]:
                    del left[m.id]
    return Seen(found, trimmed, {queue: b.tail for queue, b in bounds.items()})


def check_same(bounds: Mapping[str, Bounds], tails: Mapping[str, Tail], remedy: str) -> None:
    """Check that queues are still those whose ends were noted.

    Args:
        bounds: those of the queues now.
        remedy: what the user should do, for the text of the error.

    Raises:
        EMQError: a queue has another incarnation, so nobody can tell which messages had been published to it.
    """
    for queue, tail in tails.items():
        if tail.incarnation not in (0, bounds[queue].incarnation):
            raise unsure(f"queue {queue!r} was lost with its store and made again since it was published to", remedy)


def unsure(what: str, remedy: str) -> errors.EMQError:
    """Return the error for queues that do not show any more what had been published to them."""
    return errors.EMQError(f"{what}, so nobody can tell which messages had been published; {remedy}")


async def look_in_lanes(lanes: LaneStore, asked: Iterable[tuple[str, str]]) -> Counter[str]:
    """Return the number of entries by the id that their publisher chose.

    Args:
        asked: (lane, id).
    """
    found = Counter[str]()
    places = sorted(set(asked))
    for start in range(0, len(places), LANES_CHUNK):
        part = [Asked(*place) for place in places[start : start + LANES_CHUNK]]
        for each, entries in zip(part, served(await lanes.find(part)), strict=True):
            found[each.id] += len(entries)
    return found
