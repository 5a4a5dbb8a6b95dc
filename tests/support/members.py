"""Members of a cluster that meet in a tree in memory, in virtual time; no messages, no stores."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from emq.allocation import records
from emq.allocation.member import ClusterMembership
from emq.allocation.membership import Seat
from emq.allocation.records import Paths, Record
from support.ensemble import MemoryEnsemble, MemoryTree
from support.virtual import LoopClock
from support.waiting import until

TIMEOUT_S = 6.0
PATHS = Paths("online")


def quotas(groups: int, each: float = 10.0) -> dict[str, float]:
    return {f"t{i}/0": each for i in range(groups)}


class Cluster:
    """Args: quotas: the groups that followers share, with their quotas."""

    def __init__(self, quotas: Mapping[str, float] | None = None) -> None:
        self.quotas = quotas or {}
        self.clock = LoopClock()
        self.ensemble = MemoryEnsemble(self.clock)
        self.generation = 0
        self.members: dict[str, Member] = {}

    async def next_generation(self, least: int) -> int:
        self.generation = max(least, self.generation + 1)
        return self.generation

    def member(self, name: str, groups: int = 12, **options: float) -> Member:
        return Member(self, name, quotas(groups), **options)

    @property
    def owners(self) -> dict[str, str]:
        """Return the holder of each group; fail if two members hold the same group."""
        found: dict[str, str] = {}
        for name, member in self.members.items():
            for group in member.held:
                assert group not in found, (group, name, found[group])
                found[group] = name
        return found

    async def record(self) -> Record:
        tree = self.ensemble.tree()
        await tree.open(lambda state: None)
        node = await tree.read(PATHS.serverlist)
        await tree.close()
        assert node is not None
        return records.decode(node.data, Record, PATHS.serverlist)

    async def settled(self, groups: int = 12) -> None:
        """Return when every group has an owner, and nothing has changed for a while."""
        await until(lambda: len(self.owners) == groups, 60)
        await asyncio.sleep(2)
        assert len(self.owners) == groups


class Database:
    """Attributes: began_s: since when it does not answer this host; 0 while it does."""

    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock
        self.began_s = 0.0

    @property
    def away_s(self) -> float:
        return self._clock.now() - self.began_s if self.began_s else 0.0

    @property
    def unreachable(self) -> str | None:
        return "database away in this test" if self.began_s else None


class Member:
    """The membership of a host without the host: takes groups that it gets, and releases them when told to."""

    def __init__(self, cluster: Cluster, name: str, quotas: Mapping[str, float], **options: Any) -> None:
        self.cluster = cluster
        self.name = name
        self.quotas = quotas
        self.tree: MemoryTree = cluster.ensemble.tree(TIMEOUT_S)
        self.database = Database(cluster.clock)
        self.membership = ClusterMembership(
            Seat(self.tree, "online", name, cluster.next_generation, cluster.clock), database=self.database, **options
        )
        self.held: dict[str, int] = {}
        self.era = 0
        self.drain_s = self.forgets_in_s = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Member:
        await self.membership.join()
        await self.membership.offer(self.quotas, 1)
        self.cluster.members[self.name] = self
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.membership.hand_over(10.0)
        await self.end()

    async def end(self) -> None:
        """Leave without handing over."""
        self.cluster.members.pop(self.name, None)
        assert self._task is not None
        self._task.cancel()
        await self.membership.leave()

    async def _follow(self) -> None:
        async for assignment in self.membership.assignments():
            if assignment.era != self.era:
                await asyncio.sleep(self.forgets_in_s)
                self.era, self.held = assignment.era, {}
            gone = [g for g, e in self.held.items() if assignment.groups.get(g) != e]
            if gone:
                await asyncio.sleep(self.drain_s)
                for group in gone:
                    self.held.pop(group, None)
                await self.membership.released(gone)
            self.held.update(assignment.groups)


class Follower(Member):
    """A member of all groups of its cluster, which takes `drain_s` to release one, and leaves without handing over.

    Args:
        serves: patterns of the topics that have a handler here; None for all topics.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        drain_s: float = 0.0,
        weight: float = 1.0,
        serves: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(cluster, name, cluster.quotas, weight=weight, serves=lambda: serves)
        self.drain_s = drain_s

    async def __aexit__(self, *exc: object) -> None:
        await self.end()


@contextlib.asynccontextmanager
async def cluster_of(*names: str) -> AsyncIterator[Cluster]:
    cluster = Cluster()
    async with contextlib.AsyncExitStack() as stack:
        for name in names:
            await stack.enter_async_context(cluster.member(name))
        await cluster.settled()
        yield cluster
