"""The sorted half of the memory store."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Sequence

from emq import errors
from emq.storage.store import (
    PAGE_BYTES,
    Add,
    Claim,
    Claimed,
    DeadLetter,
    Durability,
    LaneState,
    Settle,
    Verdict,
    WaitingEntry,
    lane_sealed,
)
from storage_adapters.memory.pages import page_size
from storage_adapters.memory.wakeups import Wakeups
from storage_adapters.memory.world import Prepared, Slot, World


class MemoryLanes:
    """`emq.storage.store.LaneStore` in memory; every call is atomic.

    Entries of one priority that are due together come in order of id.
    """

    def __init__(self, world: World, wakeups: Wakeups) -> None:
        self._world = world
        self._wakeups = wakeups

    async def add(
        self, adds: Sequence[Add], durability: Durability = Durability.ACCEPTED
    ) -> list[bool | errors.NotOwner | errors.QueueSealed]:
        """See `LaneStore.add`. Memory is as durable as the process, whatever is asked."""
        return [self._add(add) for add in adds]

    def _add(self, add: Add) -> bool | errors.NotOwner | errors.QueueSealed:
        if add.epoch is not None and (stale := self._world.fence(add.slot, add.epoch)):
            return stale
        if add.epoch is None and add.slot in self._world.sealed:
            return lane_sealed(add.slot)
        slot = self._world.slot(add.slot)
        if add.id in slot.bodies:
            return False
        slot.bodies[add.id] = add.body
        if add.reason is None:
            self._world.wait(add.slot, add.id, add.priority, add.due_ms)
        else:
            slot.bury(add.id, add.reason, self._now_ms())
        return True

    async def claim(
        self, claims: Sequence[Claim], now_ms: int, max_bytes: int = 8 << 20
    ) -> list[Claimed | errors.NotOwner]:
        """See `LaneStore.claim`."""
        answers, left_bytes = [], max(max_bytes, 1)
        for claim in claims:
            answer = self._claim(claim, now_ms, left_bytes)
            if isinstance(answer, Claimed):
                left_bytes -= sum(len(body) for _, body in answer.entries)
            answers.append(answer)
        return answers

    def _claim(self, claim: Claim, now_ms: int, max_bytes: int) -> Claimed | errors.NotOwner:
        if stale := self._world.fence(claim.slot, claim.epoch):
            return stale
        slot = self._world.slot(claim.slot)
        entries: list[tuple[str, bytes]] = []
        for id_, priority, due_ms in slot.take(now_ms, claim, max_bytes):
            slot.prepared[id_] = Prepared(claim.epoch, now_ms, priority, due_ms)
            entries.append((id_, slot.bodies[id_]))
        next_due_ms = slot.next_due_ms()
        self._world.arm_slot(claim.slot, next_due_ms, self._wakeups)
        return Claimed(entries, next_due_ms)

    async def settle(self, settles: Sequence[Settle]) -> list[bool | errors.NotOwner]:
        """See `LaneStore.settle`."""
        return [self._settle(settle) for settle in settles]

    def _settle(self, settle: Settle) -> bool | errors.NotOwner:
        if settle.epoch is not None and (stale := self._world.fence(settle.slot, settle.epoch)):
            return stale
        if settle.verdict.is_of_all:
            self._world.seal(settle.slot, settle.verdict is Verdict.SEAL)
            return True
        slot = self._world.slots.get(settle.slot)
        if slot is None or (settle.verdict is Verdict.REPLAY and settle.slot in self._world.sealed):
            return False
        verdict, id_ = settle.verdict, settle.id
        if verdict in (Verdict.REPLAY, Verdict.PURGE):
            left = slot.unbury(id_)
        elif verdict is Verdict.RECALL:
            left = slot.take_back(id_)
        else:
            left = slot.prepared.pop(id_, None) is not None
        if not left:
            return False
        if verdict in (Verdict.ACK, Verdict.PURGE, Verdict.RECALL):
            del slot.bodies[id_]
            if not slot.bodies:
                del self._world.slots[settle.slot]
            return True
        slot.bodies[id_] = settle.body
        if verdict is Verdict.DEAD:
            slot.bury(id_, settle.reason, self._now_ms())
        else:
            self._world.wait(settle.slot, id_, settle.priority, settle.due_ms)
        return True

    async def recover(self, slots: Sequence[tuple[str, int]], older_than_ms: int | None = None) -> list[int]:
        """See `LaneStore.recover`. Entries keep the due time that they had when they were claimed."""
        return [self._recover(name, epoch, older_than_ms) for name, epoch in slots]

    def _recover(self, name: str, epoch: int, older_than_ms: int | None) -> int:
        slot = self._world.slots.get(name)
        if slot is None:
            return 0
        stranded = [
            (id_, claimed.priority, claimed.due_ms)
            for id_, claimed in slot.prepared.items()
            if claimed.epoch < epoch or (older_than_ms is not None and claimed.claimed_ms < older_than_ms)
        ]
        for id_, priority, due_ms in stranded:
            del slot.prepared[id_]
            self._world.wait(name, id_, priority, due_ms)
        return len(stranded)

    async def inspect(self, slots: Sequence[str]) -> list[LaneState]:
        """See `LaneStore.inspect`."""
        return [_state(self._world.slots.get(name)) for name in slots]

    async def dead(
        self, slot: str, after: tuple[int, str] = (0, ""), limit: int = 100, max_bytes: int = PAGE_BYTES
    ) -> list[DeadLetter]:
        """See `LaneStore.dead`."""
        found = self._world.slots.get(slot)
        if found is None:
            return []
        begin = bisect_right(found.dead_order, after)
        page = found.dead_order[begin : begin + limit]
        size = page_size((len(found.bodies[id_]) for _, id_ in page), max_bytes)
        return [DeadLetter(slot, id_, found.bodies[id_], found.dead[id_][1], dead_ms) for dead_ms, id_ in page[:size]]

    async def waiting(
        self, slot: str, skip: int = 0, limit: int = 100, max_bytes: int = PAGE_BYTES
    ) -> list[WaitingEntry]:
        """See `LaneStore.waiting`."""
        found = self._world.slots.get(slot)
        if found is None:
            return []
        entries = ((due_ms, id_, priority) for priority, heap in found.waiting.items() for due_ms, id_ in heap)
        page = heapq.nsmallest(skip + limit, entries)[skip:]
        size = page_size((len(found.bodies[id_]) for _, id_, _ in page), max_bytes)
        return [WaitingEntry(id_, found.bodies[id_], due_ms, priority) for due_ms, id_, priority in page[:size]]

    def _now_ms(self) -> int:
        return int(self._world.clock.now() * 1000)


def _state(slot: Slot | None) -> LaneState:
    if slot is None:
        return LaneState(0, 0, 0, None)
    return LaneState(sum(map(len, slot.waiting.values())), len(slot.prepared), len(slot.dead), slot.next_due_ms())
