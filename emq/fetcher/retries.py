"""The retry loop: brings messages of the retry slots back when they are due."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Iterable

import msgspec

from emq import errors, message
from emq.clock import Clock
from emq.owned import MAX_BUFFER, OwnedGroup
from emq.storage import Claim, Claimed, LaneStore

log = logging.getLogger(__name__)

CLAIM_SLOTS = 500
"""Most slots in one claim."""

CROWDED_S = 0.25
"""When a slot with more due than its group can take soon is looked at again."""

UNREACHABLE_S = 1.0


class RetryClaimer:
    """One heap of due times for all slots of the host; a slot without a due message is not in it.

    An entry of the heap is only a hint: claiming a slot that has nothing due is harmless, so entries are never
    removed, and a slot may have several. `_due` holds the earliest per slot, by which outdated entries are known.
    """

    def __init__(
        self,
        store: LaneStore,
        clock: Clock,
        *,
        on_buffered: Callable[[OwnedGroup], None],
        on_lost: Callable[[OwnedGroup], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._on_buffered = on_buffered
        self._on_lost = on_lost
        self._groups: dict[str, OwnedGroup] = {}
        self._due: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        self._earlier = asyncio.Event()

    def acquire(self, group: OwnedGroup) -> None:
        """From now on the group's slot is claimed; at once first, to learn its next due time and to arm it."""
        self._groups[group.name] = group
        self.at(group.name, 0)

    def release(self, group: OwnedGroup) -> None:
        self._groups.pop(group.name, None)
        self._due.pop(group.name, None)

    def at(self, slot: str, due_ms: int) -> None:
        """Something in the slot is due at `due_ms`."""
        if slot in self._groups and due_ms < self._due.get(slot, 1 << 62):
            self._due[slot] = due_ms
            heapq.heappush(self._heap, (due_ms, slot))
            if self._heap[0] == (due_ms, slot):
                self._earlier.set()

    def woken(self, slots: Iterable[str]) -> None:
        """The store says that these slots have something due earlier than they were armed with."""
        for slot in slots:
            self.at(slot, 0)

    async def claim(self) -> None:
        """Claim what is due, wait for what is next. Ends by cancellation."""
        while True:
            self._earlier.clear()
            slots = self._pop_due(int(self._clock.now() * 1000))
            if slots:
                await self._claim(slots)
                continue
            delay = self._heap[0][0] / 1000 - self._clock.now() if self._heap else None
            try:
                async with asyncio.timeout(None if delay is None else max(0.001, delay)):
                    await self._earlier.wait()
            except TimeoutError:
                pass

    def _pop_due(self, now_ms: int) -> list[str]:
        slots: list[str] = []
        while self._heap and self._heap[0][0] <= now_ms and len(slots) < CLAIM_SLOTS:
            due_ms, slot = heapq.heappop(self._heap)
            if self._due.get(slot) == due_ms:
                del self._due[slot]
                slots.append(slot)
        return slots

    async def _claim(self, slots: list[str]) -> None:
        groups = [self._groups[slot] for slot in slots]
        now_ms = int(self._clock.now() * 1000)
        claims = [Claim(g.name, _room(g), g.epoch) for g in groups]
        try:
            answers = await self._store.claim(claims, now_ms)
        except (errors.StoreUnavailable, errors.StoreFull) as exc:
            log.warning("%s; retries wait", exc)
            for slot in slots:
                self.at(slot, now_ms + 1)
            await asyncio.sleep(UNREACHABLE_S)
            return
        for group, claim, answer in zip(groups, claims, answers, strict=True):
            if isinstance(answer, errors.NotOwner):
                self._on_lost(group)
            elif not group.stopping and self._groups.get(group.name) is group:
                self._buffer(group, claim, answer, now_ms)

    def _buffer(self, group: OwnedGroup, claim: Claim, claimed: Claimed, now_ms: int) -> None:
        for id_, body in claimed.entries:
            try:
                m = message.decode(body)
            except msgspec.DecodeError:
                m = message.Message(id=id_, payload=bytes(body))
            m.topic = group.owner.topic.name
            m.group = group.index
            m.priority = min(m.priority, len(group.buffers) - 1)
            m.offset = -1
            m.ready_us = self._clock.now_us()
            group.retries_buffered += 1
            group.push(m.priority, [m])
        if claimed.entries:
            self._on_buffered(group)
        if claimed.next_due_ms is not None and group.owner.handler is not None:  # a resumed topic is looked at anew
            crowded = claimed.next_due_ms <= now_ms
            self.at(group.name, now_ms + int(CROWDED_S * 1000) if crowded and not _room(group) else claimed.next_due_ms)


def _room(group: OwnedGroup) -> int:
    """Retries to claim now: at most one buffer's worth waits at a time, so that memory is bounded."""
    if group.stopping or group.owner.handler is None:
        return 0
    capacity = max((q.capacity for q in group.queues), default=MAX_BUFFER)
    return max(0, capacity - group.retries_buffered)
