"""The log queues of the memory store."""

from __future__ import annotations

from collections.abc import Sequence

from emq.runtime import errors
from emq.storage.durability import Durability
from emq.storage.log_store import Batch, Bounds, Put, Read, Trim, messages_lost, queue_sealed, spread
from emq.storage.marks import Mark
from emq.storage.names import group_of
from emq_stores import refusals
from emq_stores.memory.wakeups import Wakeups
from emq_stores.memory.world import FIRST_OFFSET, Queue, World

Refusal = errors.NotOwner | errors.MessagesLost


class MemoryLog:
    """`emq.storage.log_store.LogStore` in memory; every call is atomic."""

    def __init__(self, world: World, wakeups: Wakeups, max_queue_qps: float | None) -> None:
        self.first_offset = FIRST_OFFSET
        self.max_queue_qps = max_queue_qps
        self._world = world
        self._wakeups = wakeups

    async def put(
        self, puts: Sequence[Put], durability: Durability = Durability.ACCEPTED
    ) -> list[Sequence[int] | errors.EMQError]:
        """See `LogStore.put`. Messages live as long as the process, whatever the durability."""
        self._wakeups.check_open()
        return [self._put(put) for put in puts]

    def _put(self, put: Put) -> Sequence[int] | errors.EMQError:
        queue = self._world.queue(put.queue)
        if queue.sealed or (put.layout is not None and put.layout < queue.layout):
            return queue_sealed(put.queue, queue.layout)
        bodies, fresh = put.bodies, {}
        if put.ids:
            fresh = self._world.fresh(group_of(put.queue), put.ids)
            bodies = [put.bodies[i] for i in fresh.values()]
        if bodies and put.max_length is not None and (full := self._make_room(put, len(bodies), queue)):
            return full
        if put.ids:
            self._world.remember(group_of(put.queue), fresh, put.remember_ms)
        first = queue.tail
        queue.cells.extend(bodies)
        if bodies and put.queue in self._world.armed:
            self._world.armed.pop(put.queue).wake(put.queue)
        return spread(range(first, queue.tail), fresh.values(), len(put.bodies))

    def _make_room(self, put: Put, count: int, queue: Queue) -> errors.TopicFull | None:
        assert put.max_length is not None
        held = sum(self._world.queue(name).held() for name in {put.queue, *put.siblings})
        excess = held + count - put.max_length
        if excess <= 0:
            return None
        if put.drop_oldest and excess <= queue.held():
            queue.drop_oldest(excess)
            return None
        return refusals.full(f"group {group_of(put.queue)!r}", held, put.max_length, count)

    async def get(self, queue: str, offset: int) -> bytes | None:
        """See `LogStore.get`."""
        found = self._world.queues.get(queue)
        return None if found is None else found.body(offset)

    async def read(self, reads: Sequence[Read], max_bytes: int = 8 << 20) -> list[Batch | Refusal]:
        """See `LogStore.read`."""
        answers: list[Batch | Refusal] = []
        left = max(max_bytes, 1)
        for read in reads:
            if read.epoch is not None and (stale := self._world.fence(group_of(read.queue), read.epoch)):
                answers.append(stale)
                continue
            queue = self._world.queue(read.queue)
            if read.epoch is not None and (lost := _lost(queue, read.queue, read.mark, read.start)):
                answers.append(lost)
                continue
            batch = _read(queue, read.start, read.limit, left)
            left -= sum(map(len, batch.bodies))
            if batch.exhausted and read.epoch is not None:
                self._world.arm(read.queue, self._wakeups)
            answers.append(batch)
        return answers

    async def bounds(self, queues: Sequence[str]) -> list[Bounds]:
        """See `LogStore.bounds`."""
        found = (self._world.queues.get(name) for name in queues)
        return [
            Bounds(FIRST_OFFSET, FIRST_OFFSET) if q is None else Bounds(q.head, q.tail, q.incarnation) for q in found
        ]

    async def trim(self, trims: Sequence[Trim]) -> list[bool | Refusal]:
        """See `LogStore.trim`."""
        return [self._trim(trim) for trim in trims]

    def _trim(self, trim: Trim) -> bool | Refusal:
        if trim.epoch is not None and (stale := self._world.fence(group_of(trim.queue), trim.epoch)):
            return stale
        queue = self._world.queue(trim.queue)
        if lost := _lost(queue, trim.queue, trim.mark, queue.head):
            return lost
        queue.trim(trim.upto)
        if trim.seal is False or (trim.seal and not queue.held()):
            queue.sealed = trim.seal
            if trim.seal:
                self._world.remembered.pop(group_of(trim.queue), None)
        queue.layout = max(queue.layout, trim.layout or 0)
        return queue.sealed

    async def close(self) -> None:
        """Do nothing: the messages belong to the world."""

    def lose(self, queue: str, offset: int) -> bool:
        """See `MemoryStore.lose`."""
        return self._world.queue(queue).lose(offset)


def _lost(queue: Queue, name: str, mark: Mark | None, start: int) -> errors.MessagesLost | None:
    if start <= queue.tail and (mark is None or not queue.lacks(mark)):
        return None
    return messages_lost(name, max(start, mark.offset if mark else 0), queue.tail)


def _read(queue: Queue, start: int, limit: int, max_bytes: int) -> Batch:
    begin = max(start, queue.head)
    if begin >= queue.tail:
        return Batch((), (), begin, exhausted=True)
    if max_bytes <= 0:
        return Batch((), (), start, exhausted=False)
    offsets: Sequence[int]
    if queue.holes:
        offsets, bodies, after = _skip_holes(queue, begin, limit)
    else:
        at = begin - queue.base
        # Without holes no cell from head on is None.
        bodies = queue.cells[at : at + limit]  # type: ignore[assignment]
        after = begin + len(bodies)
        offsets = range(begin, after)
    if sum(map(len, bodies)) >= max_bytes:
        kept = _within(bodies, max_bytes)
        if kept < len(bodies):
            offsets, bodies = offsets[:kept], bodies[:kept]
            after = offsets[-1] + 1
    return Batch(offsets, bodies, after, exhausted=after >= queue.tail)


def _skip_holes(queue: Queue, begin: int, limit: int) -> tuple[list[int], list[bytes], int]:
    offsets: list[int] = []
    bodies: list[bytes] = []
    at = begin - queue.base
    while at < len(queue.cells) and len(bodies) < limit:
        body = queue.cells[at]
        if body is not None:
            offsets.append(queue.base + at)
            bodies.append(body)
        at += 1
    return offsets, bodies, queue.base + at


def _within(bodies: Sequence[bytes], max_bytes: int) -> int:
    """Return the number of bodies that together reach `max_bytes`, or all."""
    for count, body in enumerate(bodies, 1):
        max_bytes -= len(body)
        if max_bytes <= 0:
            return count
    return len(bodies)
