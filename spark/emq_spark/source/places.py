"""Where a read begins or ends: at the head or tail of the queues, at offsets by queue, or at a time."""

from __future__ import annotations

import datetime
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from emq.runtime import errors
from emq.storage.answers import served
from emq.storage.log_store import Batch, Bounds, LogStore, Read
from emq_spark.source.filters import EPOCH, MICROSECOND
from emq_spark.source.rows import decoded
from emq_spark.source.spans import CALL_BYTES, CALL_QUEUES

HEAD, TAIL = "head", "tail"


@dataclass(frozen=True)
class Place:
    """A place in all queues.

    Attributes:
        word: HEAD or TAIL; with `offsets`, the place in the queues that these do not name.
        offsets: offsets by queue.
        at_us: a time in microseconds since the epoch: the first message that was published then or later.
    """

    word: str
    offsets: Mapping[str, int] | None = None
    at_us: int | None = None


AT_HEAD, AT_TAIL = Place(HEAD), Place(TAIL)


def parse(text: str, otherwise: str) -> Place:
    """Parse the option `start` or `end`.

    Args:
        otherwise: HEAD or TAIL: the place in queues that an object does not name.

    Raises:
        ValueError: with a text about valid values.
    """
    if text.lower() in (HEAD, TAIL):
        return Place(text.lower())
    valid = 'must be head, tail, a time such as 2026-11-26T08:00:00Z, or offsets by queue such as {"orders/0/high": 17}'
    if text.startswith("{"):
        try:
            offsets = json.loads(text)
        except ValueError:
            raise ValueError(valid) from None
        if not all(type(offset) is int and offset >= 1 for offset in offsets.values()):
            raise ValueError(valid)
        return Place(otherwise, offsets)
    try:
        at = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(valid) from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=datetime.UTC)
    return Place(otherwise, at_us=(at - EPOCH) // MICROSECOND)


async def offsets_at(
    log: LogStore, place: Place, bounds: Mapping[str, Bounds], left_out: Collection[str] = ()
) -> dict[str, int]:
    """Return the offset of the place in each queue.

    Args:
        left_out: queues whose messages the filters of the read leave out; the place may name them.

    Raises:
        EMQError: the place names a queue that the topics do not have, or an offset beyond the queue's tail.
    """
    found = {queue: b.tail if place.word == TAIL else b.head for queue, b in bounds.items()}
    if place.at_us is not None:
        return await _at_time(log, place.at_us, bounds)
    for queue, offset in (place.offsets or {}).items():
        if queue not in bounds and queue in left_out:
            continue
        if queue not in bounds:
            raise errors.EMQError(f"there is no queue {queue!r} in these topics; queues are named topic/group/priority")
        if offset > bounds[queue].tail:
            raise errors.EMQError(f"queue {queue!r} ends at offset {bounds[queue].tail}, before offset {offset}")
        found[queue] = offset
    return found


async def _at_time(log: LogStore, at_us: int, bounds: Mapping[str, Bounds]) -> dict[str, int]:
    """Return the offset of the first message published at a time or later; all queues are searched at once, by halving.

    Messages are in about the order of their times. Where producers' clocks differ, the times pass `at_us` at the
    offset.
    """
    low = {queue: b.head for queue, b in bounds.items()}
    high = {queue: b.tail for queue, b in bounds.items()}
    while wanted := [queue for queue in bounds if low[queue] < high[queue]][:CALL_QUEUES]:
        middles = [(low[queue] + high[queue]) // 2 for queue in wanted]
        reads = [Read(queue, middle, 1, None) for queue, middle in zip(wanted, middles, strict=True)]
        answers: Sequence[object] = served(await log.read(reads, CALL_BYTES))
        for queue, middle, batch in zip(wanted, middles, answers, strict=True):
            if not isinstance(batch, Batch) or not (batch.bodies or batch.exhausted):
                continue  # the call's room for bytes was used up; the next call asks again
            at = batch.offsets[0] if batch.bodies else high[queue]
            if at >= high[queue] or decoded(batch.bodies)[0].published_us >= at_us:
                high[queue] = middle
            else:
                low[queue] = at + 1
    return low
