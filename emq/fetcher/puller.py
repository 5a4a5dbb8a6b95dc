"""The fetch loop: reads ready queues into their buffers, many in one round trip."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from emq import errors, message
from emq.clock import Clock
from emq.fetcher.readiness import Readiness
from emq.lease import Lease
from emq.owned import Gauge, OwnedGroup, OwnedQueue
from emq.storage import Batch, LogStore, Read
from emq.trail.sink import TrailSink

log = logging.getLogger(__name__)

READ_QUEUES = 300
READ_MESSAGES = 2_000
READ_BYTES = 1 << 20
"""Bounds of one read, so that it holds up neither the server nor this loop for more than a few milliseconds."""

BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Waits between attempts while the store does not answer."""


class Puller:
    """`pull` runs twice at once, so that the server reads one batch while this process works off the other."""

    def __init__(
        self,
        store: LogStore,
        readiness: Readiness,
        gauge: Gauge,
        clock: Clock,
        trail: TrailSink,
        *,
        on_buffered: Callable[[OwnedGroup], None],
        on_expiring: Callable[[OwnedGroup], None],
        on_dirty: Callable[[OwnedQueue], None],
        on_lost: Callable[[OwnedGroup], None],
        lease: Lease | None = None,
    ) -> None:
        """Args:
        on_buffered: called when a group received messages.
        on_expiring: called when some of them have a time to live.
        on_dirty: called when holes were skipped.
        on_lost: called when the store says that the group has a newer owner.
        lease: whether anything may be read; None for always.
        """
        self._store = store
        self._readiness = readiness
        self._gauge = gauge
        self._clock = clock
        self._trail = trail
        self._on_buffered = on_buffered
        self._on_expiring = on_expiring
        self._on_dirty = on_dirty
        self._on_lost = on_lost
        self._lease = lease or Lease()
        self.holes = 0
        self.fetched = 0
        self.unreachable: str | None = None

    async def pull(self) -> None:
        """Read what is ready; wait where nothing is. Ends by cancellation."""
        failures = 0
        while True:
            await self._readiness.wait()
            await self._lease.claiming()
            taken = self._readiness.take(READ_QUEUES, READ_MESSAGES)
            if not taken:
                continue
            if self._gauge.full():
                taken = self._starving(taken)
                if not taken:
                    await asyncio.sleep(0.005)
                    continue
            reads = [Read(q.name, q.position, want, q.group.epoch) for q, want in taken]
            try:
                batches = await self._store.read(reads, READ_BYTES)
            except (errors.StoreUnavailable, errors.StoreFull) as exc:
                self._give_back(taken)
                wait_s = BACKOFF_S[min(failures, len(BACKOFF_S) - 1)]
                if failures == 0:
                    log.warning("%s; trying again every few seconds", exc)
                failures += 1
                self.unreachable = str(exc)
                await asyncio.sleep(wait_s)
                continue
            failures, self.unreachable = 0, None
            now_us = self._clock.now_us()
            for (queue, _), batch in zip(taken, batches, strict=True):
                queue.listed = False
                if isinstance(batch, errors.NotOwner):
                    self._on_lost(queue.group)
                elif not queue.group.stopping:
                    self._buffer(queue, batch, now_us)

    def _buffer(self, queue: OwnedQueue, batch: Batch, now_us: int) -> None:
        group = queue.group
        start, queue.position = queue.position, batch.next
        queue.more = queue.woken or not batch.exhausted
        self._readiness.found(queue, len(batch.bodies), batch.exhausted)
        if batch.next - start != len(batch.offsets):
            self._skip_holes(queue, start, batch)
        if batch.bodies:
            messages = self._decoded(queue, batch, now_us)
            group.push(queue.priority, messages)
            self.fetched += len(messages)
            if group.expires_us:
                self._on_expiring(group)
            self._on_buffered(group)
        self._readiness.drained(group)

    def _decoded(self, queue: OwnedQueue, batch: Batch, now_us: int) -> list[message.Message]:
        group = queue.group
        topic, index, priority, tracker = group.owner.topic.name, group.index, queue.priority, queue.tracker
        # Of a former owner's checkpoint: as ranges, or below the watermark once that has reached them.
        some_finished = bool(tracker.finished()) or batch.offsets[0] < tracker.watermark
        ttl_s = group.owner.topic.options.ttl_s
        messages = []
        for offset, body in zip(batch.offsets, batch.bodies, strict=True):
            if some_finished and tracker.is_finished(offset):
                continue
            try:
                m = message.decode(body)
            except message.UNREADABLE:
                m = message.Message(id=f"{queue.name}@{offset}", payload=bytes(body))
            m.topic = topic
            m.group = index
            m.priority = priority
            m.offset = offset
            m.ready_us = now_us
            if ttl_s is not None:
                at_us = m.published_us + int(ttl_s * 1e6)
                m.expires_us = min(m.expires_us or at_us, at_us)
            if m.expires_us:
                group.expires_us = min(group.expires_us or m.expires_us, m.expires_us)
            messages.append(m)
        return messages

    def _skip_holes(self, queue: OwnedQueue, start: int, batch: Batch) -> None:
        """Offsets that hold nothing count as finished, each gap once."""
        at = start
        for offset in [*batch.offsets, batch.next]:
            if offset > at:
                queue.tracker.finish_range(at, offset)
                self.holes += offset - at
                if self._trail.enabled:
                    self._record(queue, at, offset)
            at = offset + 1
        if not queue.dirty:
            queue.dirty = True
            self._on_dirty(queue)

    def _record(self, queue: OwnedQueue, start: int, end: int) -> None:
        topic = queue.group.owner.topic
        dropping = topic.options.overflow == "drop_oldest" and topic.options.max_length is not None
        record = self._trail.dropped if dropping else self._trail.skipped
        record(topic.name, queue.group.index, queue.priority, start, end, self._clock.now_us())

    def _starving(self, taken: list[tuple[OwnedQueue, int]]) -> list[tuple[OwnedQueue, int]]:
        starving = []
        for queue, want in taken:
            if not queue.group.buffers[queue.priority]:
                starving.append((queue, 1))
            else:
                self._give_back([(queue, want)])
        return starving

    def _give_back(self, taken: list[tuple[OwnedQueue, int]]) -> None:
        for queue, _ in taken:
            queue.listed = False
            self._readiness.add(queue)
