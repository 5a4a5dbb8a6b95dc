"""The lanes of the memory store: delayed, retried and dead messages of log topics."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Sequence

from emq.runtime import errors
from emq.storage import message
from emq.storage.durability import Durability
from emq.storage.lane_store import (
    MOST_FOUND,
    Asked,
    DeadEntry,
    FoundEntry,
    LaneAdd,
    LaneClaim,
    LaneClaimed,
    LaneSettle,
    LaneState,
    LaneVerdict,
    WaitingEntry,
    lane_sealed,
)
from emq.storage.slot_store import PAGE_BYTES
from emq_stores.memory.pages import page_size
from emq_stores.memory.wakeups import Wakeups
from emq_stores.memory.world import Lane, Prepared, World


class MemoryLanes:
    """`emq.storage.lane_store.LaneStore` in memory; every call is atomic.

    Due entries of one priority with the same due time come in the order of their ids.
    """

    def __init__(self, world: World, wakeups: Wakeups) -> None:
        self._world = world
        self._wakeups = wakeups

    async def add(
        self, adds: Sequence[LaneAdd], durability: Durability = Durability.ACCEPTED
    ) -> list[bool | errors.NotOwner | errors.QueueSealed | None]:
        """See `LaneStore.add`. Entries live as long as the process, whatever the durability."""
        self._wakeups.check_open()
        return [self._add(add) for add in adds]

    def _add(self, add: LaneAdd) -> bool | errors.NotOwner | errors.QueueSealed | None:
        if add.epoch is not None and (stale := self._world.fence(add.lane, add.epoch)):
            return stale
        if add.epoch is None and add.lane in self._world.sealed:
            return lane_sealed(add.lane)
        lane = self._world.lanes.get(add.lane) or Lane()
        if add.id in lane.bodies or (add.remember_ms and not self._world.fresh(add.lane, (add.label,))):
            return False
        if add.since_ms is not None and self._world.is_taken(add.lane, add.id, add.since_ms):
            return None
        self._world.forget_taken(add.lane, add.id)
        if add.remember_ms:
            self._world.remember(add.lane, (add.label,), add.remember_ms)
        self._world.lanes[add.lane] = lane
        lane.bodies[add.id] = add.body
        if add.reason is None:
            self._world.wait(add.lane, add.id, add.priority, add.due_ms)
        else:
            lane.bury(add.id, add.reason, self._now_ms())
        return True

    async def claim(
        self, claims: Sequence[LaneClaim], now_ms: int, max_bytes: int = 8 << 20
    ) -> list[LaneClaimed | errors.NotOwner]:
        """See `LaneStore.claim`."""
        answers, left_bytes = [], max(max_bytes, 1)
        for claim in claims:
            answer = self._claim(claim, now_ms, left_bytes)
            if isinstance(answer, LaneClaimed):
                left_bytes -= sum(len(body) for _, body in answer.entries)
            answers.append(answer)
        return answers

    def _claim(self, claim: LaneClaim, now_ms: int, max_bytes: int) -> LaneClaimed | errors.NotOwner:
        if stale := self._world.fence(claim.lane, claim.epoch):
            return stale
        lane = self._world.lane(claim.lane)
        entries: list[tuple[str, bytes]] = []
        for id_, priority, due_ms in lane.take(now_ms, claim, max_bytes):
            lane.prepared[id_] = Prepared(claim.epoch, now_ms, priority, due_ms)
            entries.append((id_, lane.bodies[id_]))
        next_due_ms = lane.next_due_ms()
        self._world.arm_lane(claim.lane, next_due_ms, self._wakeups)
        return LaneClaimed(entries, next_due_ms, not lane.bodies)

    async def settle(self, settles: Sequence[LaneSettle]) -> list[bool | errors.NotOwner]:
        """See `LaneStore.settle`."""
        return [self._settle(settle) for settle in settles]

    def _settle(self, settle: LaneSettle) -> bool | errors.NotOwner:
        if settle.epoch is not None and (stale := self._world.fence(settle.lane, settle.epoch)):
            return stale
        if settle.verdict is LaneVerdict.FORGET:
            self._world.taken.pop(settle.lane, None)
            return True
        if settle.verdict is LaneVerdict.OPEN:
            return self._world.open(settle.lane)
        if settle.verdict is LaneVerdict.SEAL:
            self._world.sealed.add(settle.lane)
            return True
        lane = self._world.lanes.get(settle.lane)
        if lane is None or (settle.verdict is LaneVerdict.REPLAY and settle.lane in self._world.sealed):
            return False
        verdict, id_ = settle.verdict, settle.id
        if verdict in (LaneVerdict.REPLAY, LaneVerdict.PURGE):
            left = lane.unbury(id_)
        elif verdict is LaneVerdict.RECALL:
            left = lane.take_back(id_)
        elif verdict is LaneVerdict.RETRY and lane.is_claimed_as(id_, settle.due_ms, settle.body):
            return True
        else:
            left = lane.prepared.pop(id_, None) is not None
        if not left:
            return False
        if verdict in (LaneVerdict.ACK, LaneVerdict.PURGE, LaneVerdict.RECALL):
            del lane.bodies[id_]
            if settle.for_good:
                self._world.remember_taken(settle.lane, id_)
            if not lane.bodies:
                del self._world.lanes[settle.lane]
            return True
        lane.bodies[id_] = settle.body
        if verdict is LaneVerdict.DEAD:
            lane.bury(id_, settle.reason, self._now_ms())
        else:
            self._world.wait(settle.lane, id_, settle.priority, settle.due_ms)
        return True

    async def recover(
        self, lanes: Sequence[tuple[str, int]], older_than_ms: int | None = None
    ) -> list[int | errors.NotOwner]:
        """See `LaneStore.recover`. Entries keep their due time from before the claim."""
        return [self._recover(name, epoch, older_than_ms) for name, epoch in lanes]

    def _recover(self, name: str, epoch: int, older_than_ms: int | None) -> int | errors.NotOwner:
        if stale := self._world.fence(name, epoch):
            return stale
        lane = self._world.lanes.get(name)
        if lane is None:
            return 0
        stranded = [
            (id_, claimed.priority, claimed.due_ms)
            for id_, claimed in lane.prepared.items()
            if claimed.epoch < epoch or (older_than_ms is not None and claimed.claimed_ms < older_than_ms)
        ]
        for id_, priority, due_ms in stranded:
            del lane.prepared[id_]
            self._world.wait(name, id_, priority, due_ms)
        return len(stranded)

    async def inspect(self, lanes: Sequence[str]) -> list[LaneState]:
        """See `LaneStore.inspect`."""
        return [_state(self._world.lanes.get(name), name in self._world.sealed) for name in lanes]

    async def find(self, asked: Sequence[Asked]) -> list[list[FoundEntry]]:
        """See `LaneStore.find`. Walks over all entries, which is quick in memory."""
        return [self._find(each) for each in asked]

    def _find(self, asked: Asked) -> list[FoundEntry]:
        lane = self._world.lanes.get(asked.lane)
        if lane is None:
            return []
        begin = asked.id + message.MARK
        alike = [each for each in lane.bodies if each == asked.id or each.startswith(begin)]
        named = sorted(each for each in alike if asked.id in (each, message.label(each)) and each > asked.after)
        return [FoundEntry(each, lane.state(each)) for each in named[:MOST_FOUND]]

    async def dead(
        self, lane: str, after: tuple[int, str] = (0, ""), limit: int = 100, max_bytes: int = PAGE_BYTES
    ) -> list[DeadEntry]:
        """See `LaneStore.dead`."""
        found = self._world.lanes.get(lane)
        if found is None:
            return []
        begin = bisect_right(found.dead_order, after)
        page = found.dead_order[begin : begin + limit]
        size = page_size((len(found.bodies[id_]) for _, id_ in page), max_bytes)
        return [DeadEntry(lane, id_, found.bodies[id_], found.dead[id_][1], dead_ms) for dead_ms, id_ in page[:size]]

    async def waiting(
        self, lane: str, skip: int = 0, limit: int = 100, max_bytes: int = PAGE_BYTES
    ) -> list[WaitingEntry]:
        """See `LaneStore.waiting`."""
        found = self._world.lanes.get(lane)
        if found is None:
            return []
        entries = ((due_ms, id_, priority) for priority, heap in found.waiting.items() for due_ms, id_ in heap)
        page = heapq.nsmallest(skip + limit, entries)[skip:]
        size = page_size((len(found.bodies[id_]) for _, id_, _ in page), max_bytes)
        return [WaitingEntry(id_, found.bodies[id_], due_ms, priority) for due_ms, id_, priority in page[:size]]

    def _now_ms(self) -> int:
        return int(self._world.clock.now() * 1000)


def _state(lane: Lane | None, sealed: bool) -> LaneState:
    if lane is None:
        return LaneState(0, 0, 0, None, sealed)
    waiting = sum(map(len, lane.waiting.values()))
    return LaneState(waiting, len(lane.prepared), len(lane.dead), lane.next_due_ms(), sealed)
