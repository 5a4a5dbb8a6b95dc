"""Members of a cluster in memory that follow the plan like hosts, and consume nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Self

from emq.allocation.member import ClusterMembership
from emq.allocation.membership import Seat
from emq.allocation.tree.memory.ensemble import MemoryEnsemble
from support.virtual import LoopClock

TIMEOUT_S = 6.0


class Meeting:
    """An ensemble in memory, and the groups that its members share."""

    def __init__(self, quotas: Mapping[str, float]) -> None:
        self.clock = LoopClock()
        self.ensemble = MemoryEnsemble(self.clock)
        self.quotas = quotas
        self._generation = 0

    async def next_generation(self, least: int) -> int:
        self._generation = max(least, self._generation + 1)
        return self._generation


class Follower:
    """A member that releases the groups that it loses after `drain_s` seconds."""

    def __init__(self, meeting: Meeting, name: str, drain_s: float = 0.0, weight: float = 1.0) -> None:
        self.drain_s = drain_s
        self._quotas = meeting.quotas
        self.membership = ClusterMembership(
            Seat(meeting.ensemble.tree(TIMEOUT_S), "online", name, meeting.next_generation, meeting.clock),
            weight=weight,
        )
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.membership.join()
        await self.membership.offer(self._quotas, 1)
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await self.membership.leave()

    async def _follow(self) -> None:
        held: dict[str, int] = {}
        async for assignment in self.membership.assignments():
            gone = [group for group, epoch in held.items() if assignment.groups.get(group) != epoch]
            if gone:
                await asyncio.sleep(self.drain_s)
                await self.membership.released(gone)
            held = dict(assignment.groups)
