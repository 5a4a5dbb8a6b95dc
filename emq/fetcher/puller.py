"""The fetch loop: reads ready queues into their buffers, many in one round trip."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from emq.fetcher.readiness import Readiness
from emq.groups import buffer_room, withdrawal
from emq.groups.context import HostContext
from emq.groups.owned import OwnedQueue
from emq.runtime import errors
from emq.runtime.aside import Asides, Call
from emq.runtime.troubles import Troubles
from emq.storage import marks, message
from emq.storage.answers import FAILURES, Failure, of_each
from emq.storage.log_store import Batch, LogStore, Read
from emq.topics.key_layouts import KeyGate
from emq.trail import events

READ_QUEUES = 300
READ_MESSAGES = 2_000
READ_BYTES = 1 << 20
"""Most queues, messages and bytes of one read, which then takes the server and this loop only a few milliseconds."""

HELD_BACK_S = 0.05
"""Seconds until the loop looks again at a queue whose topic has used up its share of the host's memory."""


class Puller:
    """Reads ready queues. `pull` runs twice at once, so that the server reads one batch while this process works off
    the other.

    A queue whose server cannot serve it rests, longer each time, and is then read again. A read that takes long steps
    aside (`emq.runtime.aside`), so that the queues of other servers are read meanwhile.

    Attributes:
        holes: number of offsets read that held no message.
        damaged: number of records that could not be decoded.
        fetched: number of messages read.
    """

    def __init__(
        self,
        store: LogStore,
        readiness: Readiness,
        context: HostContext,
        has_few: Callable[[], Awaitable[None]],
    ) -> None:
        """Args:
        has_few: returns when so few groups wait to start messages that more should be read.
        """
        self._clock = context.clock
        self._events = context.events
        self._trail = context.trail
        self._lease = context.lease
        self._gauge = context.gauge
        self._store = store
        self._readiness = readiness
        self._has_few = has_few
        self._troubles = Troubles("what lies there waits")
        self._asides = Asides()
        self._resting: list[tuple[float, int, OwnedQueue]] = []
        self._tickets = itertools.count()
        self.holes = 0
        self.damaged = 0
        self.fetched = 0

    @property
    def unreachable(self) -> str | None:
        """The reason why some queue cannot be read now; None if all can."""
        return self._troubles.latest

    async def pull(self) -> None:
        """Read the ready queues; wait while none is ready. Ends by cancellation."""
        await self._asides.run(self._reads)

    async def _reads(self) -> list[Call]:
        await self._readiness.wait()
        await self._has_few()
        await self._lease.valid(self._clock)
        taken = self._readiness.take(READ_QUEUES, READ_MESSAGES)
        try:
            if taken and self._gauge.pressed():
                taken = self._within_shares(taken)
            calls: list[Call] = [
                partial(self._read, part) for part in self._troubles.apart(taken, lambda each: each[0].name)
            ]
        except BaseException:
            self._give_back(taken)
            raise
        if not taken:
            await asyncio.sleep(0)  # thousands more queues may be listed that want nothing or may read nothing
        return calls

    async def _read(self, taken: Sequence[tuple[OwnedQueue, int]]) -> None:
        try:
            reads = [Read(q.name, q.position, want, q.group.epoch, q.marks.newest) for q, want in taken]
            batches = await of_each(self._store.read(reads, READ_BYTES), len(reads))
            now_us = self._clock.now_us()
        except BaseException:
            self._give_back(list(taken))
            raise
        for (queue, _), batch in zip(taken, batches, strict=True):
            try:
                self._note(queue, batch, now_us)
            except Exception as exc:  # a failure of one queue must not stop the others
                self._events.broken("fetch", queue.group, exc)

    def _note(
        self, queue: OwnedQueue, batch: Batch | errors.NotOwner | errors.MessagesLost | Failure, now_us: int
    ) -> None:
        if isinstance(batch, FAILURES):
            self._rest(queue, self._troubles.failed(queue.name, batch))
            return
        queue.delist()
        self._troubles.well(queue.name)
        if isinstance(batch, errors.NotOwner):
            self._events.lost(queue.group)
        elif isinstance(batch, errors.MessagesLost):
            self._events.shrunk(queue.group)
        elif not queue.group.stopping:
            self._buffer(queue, batch, now_us)

    def _rest(self, queue: OwnedQueue, for_s: float) -> None:
        """Read the queue again later, and leave it listed until then. All queues share one timer."""
        loop = asyncio.get_running_loop()
        first = self._resting[0][0] if self._resting else None
        at = loop.time() + for_s
        heapq.heappush(self._resting, (at, next(self._tickets), queue))
        if first is None or at < first:
            loop.call_at(at, self._rested)

    def _rested(self) -> None:
        loop = asyncio.get_running_loop()
        rested = []
        while self._resting and self._resting[0][0] <= loop.time():
            rested.append(heapq.heappop(self._resting)[2])
        for queue in rested:
            if queue.group.stopping:
                self._troubles.well(queue.name)
        self._give_back([(queue, 0) for queue in rested])
        if self._resting:
            loop.call_at(self._resting[0][0], self._rested)

    def _buffer(self, queue: OwnedQueue, batch: Batch, now_us: int) -> None:
        group = queue.group
        start = queue.position
        queue.advance(batch.next, batch.exhausted)
        self._readiness.found(queue, len(batch.bodies), batch.exhausted)
        if batch.next - start != len(batch.offsets):
            self._skip_holes(queue, start, batch)
        if batch.bodies:
            queue.marks.newest = marks.of(batch.offsets[-1], batch.bodies[-1])
            messages = self._decoded(queue, batch, now_us)
            group.push(queue.priority, messages)
            self.fetched += len(messages)
            self._events.ready(group)
        self._readiness.drained(group)

    def _decoded(self, queue: OwnedQueue, batch: Batch, now_us: int) -> list[message.Message]:
        group = queue.group
        topic, index, priority, tracker = group.owner.topic.name, group.index, queue.priority, queue.tracker
        # Messages that a former owner finished: the checkpoint has them as ranges, or the watermark has passed them.
        placed: Iterable[tuple[int, bytes]] = zip(batch.offsets, batch.bodies, strict=True)
        if tracker.finished() or batch.offsets[0] < tracker.watermark:
            placed = (each for each in placed if not tracker.is_finished(each[0]))
        decode, first_delivery = message.decode, message.FIRST_DELIVERY
        messages = []
        ahead, may_expire = 0, False
        damaged: list[tuple[int, bytes, str]] = []
        for offset, body in placed:
            try:
                m = decode(body)
                if body[0] != first_delivery:
                    message.bring_in_range(m)
                    may_expire = True
            except message.UNREADABLE as exc:
                if message.is_damaged(body):
                    damaged.append((offset, body, message.damage(exc)))
                    continue
                m = message.Message(uid=f"{queue.name}@{offset}", payload=bytes(body))
            if m.headers is None:  # as `message.note_size`, without the call: this runs for each message
                m.size = len(body)
            else:
                message.note_size(m, len(body))
            m.topic = topic
            if m.key is not None:
                m.layout = m.group  # a log queue stores the layout in this field
                if m.layout > group.owner.topic.layout:
                    ahead = max(ahead, m.layout)
            m.group = index
            m.priority = priority
            m.offset = offset
            m.ready_us = now_us
            messages.append(m)
        if (ttl_s := group.owner.topic.options.ttl_s) is not None:
            may_expire = True
            for m in messages:
                at_us = m.published_us + int(ttl_s * 1e6)
                m.expires_us = min(m.expires_us or at_us, at_us)
        if may_expire and (expiries := [m.expires_us for m in messages if m.expires_us]):
            group.note_expiry(min(expiries))
        if ahead:
            if group.owner.gate is None:
                group.owner.gate = KeyGate(group.owner.topic)
            self._events.ahead(group, ahead)
        if damaged:
            self._put_aside(queue, damaged, now_us)
        return withdrawal.kept(group, messages, self._events)

    def _put_aside(self, queue: OwnedQueue, damaged: Sequence[tuple[int, bytes, str]], now_us: int) -> None:
        """Dead-letter records of EMQ that cannot be decoded, with their raw bytes."""
        self.damaged += len(damaged)
        for offset, body, reason in damaged:
            m = message.Message(
                uid=f"{queue.name}@{offset}",
                payload=bytes(body),
                topic=queue.group.owner.topic.name,
                group=queue.group.index,
                priority=queue.priority,
                offset=offset,
                ready_us=now_us,
                size=len(body),
            )
            self._events.damaged(queue.group, m, reason)

    def _skip_holes(self, queue: OwnedQueue, start: int, batch: Batch) -> None:
        """Finish offsets without a message, a gap at a time."""
        at = start
        for offset in [*batch.offsets, batch.next]:
            if offset > at:
                queue.tracker.finish(at, offset)
                self.holes += offset - at
                if self._trail.enabled:
                    self._record(queue, at, offset)
            at = offset + 1
        if not queue.dirty:
            queue.mark_dirty()
            self._events.dirty(queue)

    def _record(self, queue: OwnedQueue, start: int, end: int) -> None:
        topic = queue.group.owner.topic
        kind = events.Dropped if topic.drops_oldest else events.Skipped
        self._trail.record(kind(self._clock.now_us(), topic.name, queue.group.index, queue.priority, start, end))

    def _within_shares(self, taken: list[tuple[OwnedQueue, int]]) -> list[tuple[OwnedQueue, int]]:
        """Return the queues to read now, each with a number of messages; look at the others after `HELD_BACK_S`."""
        now, within, without = self._clock.now(), [], []
        for queue, want in taken:
            group = queue.group
            allowed = buffer_room.room(group, now)
            if allowed <= 0:
                allowed = buffer_room.scant_room(group, len(group.buffers[queue.priority]), now)
            if allowed > 0:
                within.append((queue, min(want, allowed)))
            else:
                without.append((queue, want))
        if without:
            asyncio.get_running_loop().call_later(HELD_BACK_S, self._give_back, without)
        return within

    def _give_back(self, taken: list[tuple[OwnedQueue, int]]) -> None:
        for queue, _ in taken:
            queue.delist()
            self._readiness.add(queue)
