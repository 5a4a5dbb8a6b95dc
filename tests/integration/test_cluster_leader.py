"""Leaders that die while they publish a plan: the next one plans, and half a plan is never acted on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

import pytest

from emq.allocation import records
from emq.allocation.member import ClusterMembership
from emq.allocation.membership import Seat
from emq.allocation.records import Record
from emq.allocation.tree.protocol import Tree
from emq_trace import cluster_view
from support import cluster
from support.cluster import Cluster
from support.cluster_process import HostProcess
from support.ensemble import MemoryEnsemble
from support.virtual import LoopClock, virtual
from support.waiting import until

PATHS = records.Paths("online")
GROUPS = [f"t{i}/0" for i in range(12)]
TIMEOUT_S = 6.0


async def test_leaders_killed_while_hosts_come_and_go_lose_nothing(hosts: Cluster) -> None:
    chance = random.Random(11)
    async with hosts.load(), cluster_view.opened(hosts.app.coordination(), hosts.place.zookeeper) as tree:
        members = {host.name: host for host in await hosts.started(3)}
        for _ in range(3):
            joining = hosts.start()
            members[joining.name] = joining
            # Somewhere between its first node in the tree and the plan that gives it something.
            while joining.name not in await tree.children(PATHS.running):
                await asyncio.sleep(0.01)
            await asyncio.sleep(chance.uniform(0.0, 0.5))
            leader = await leading(tree, members)
            hosts.kill(members.pop(leader))
            await asyncio.sleep(chance.uniform(0.0, 2.0))
        await hosts.until_working(*members.values(), since_us=cluster.now_us())


async def leading(tree: Tree, members: Mapping[str, HostProcess]) -> str:
    """Name of the leader, once it is one of these: one that was killed stays a candidate until its session ends."""
    while True:
        candidates = await tree.children(PATHS.leader)
        leader = await tree.read(f"{PATHS.leader}/{candidates[0]}") if candidates else None
        if leader is not None and leader.data.decode() in members:
            return leader.data.decode()
        await asyncio.sleep(0.01)


class Member:
    """A member that takes what it is given, and lets go at once of what is taken away."""

    def __init__(self, ensemble: MemoryEnsemble, name: str, generations: list[int]) -> None:
        async def next_generation(least: int) -> int:
            generations.append(max(least, generations[-1] + 1))
            return generations[-1]

        self.name = name
        self.tree = ensemble.tree(TIMEOUT_S)
        self.membership = ClusterMembership(Seat(self.tree, "online", name, next_generation, LoopClock()))
        self.held: dict[str, int] = {}
        self.acted_on: set[int] = set()
        self._following: asyncio.Task[None] | None = None

    async def join(self) -> None:
        await self.membership.join()
        await self.membership.offer(dict.fromkeys(GROUPS, 10.0), 1)
        self._following = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        async for assignment in self.membership.assignments():
            gone = [g for g, e in self.held.items() if assignment.groups.get(g) != e]
            for group in gone:
                del self.held[group]
            self.held.update(assignment.groups)
            self.acted_on.update(assignment.groups.values())
            await self.membership.released(gone)

    async def end(self) -> None:
        self.held = {}
        if self._following is not None:
            self._following.cancel()
        await self.membership.leave()


def owners(members: list[Member]) -> dict[str, str]:
    """Who holds what; fails if two hold the same."""
    found: dict[str, str] = {}
    for member in members:
        for group in member.held:
            assert group not in found, (group, member.name, found[group])
            found[group] = member.name
    return found


async def stay_single(members: list[Member]) -> None:
    while True:
        owners(members)
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("writes", range(1, 8))
@virtual
async def test_a_leader_that_stops_between_two_writes_of_a_plan_leaves_the_last_one_in_force(writes: int) -> None:
    ensemble, generations = MemoryEnsemble(LoopClock()), [0]
    leader, *others = members = [Member(ensemble, name, generations) for name in "abcd"]
    for member in members[:3]:
        await member.join()
        await asyncio.sleep(1)
    await until(lambda: len(owners(members)) == len(GROUPS))
    before = await recorded(others[0])
    watching = asyncio.create_task(stay_single(members))
    written: list[str] = []

    def stop_leader(operation: str, path: str) -> bool:
        """After the given number of writes to the plan: lists first, then the record, then what tidies up."""
        if path.startswith((PATHS.serverlist, PATHS.catalog)) and len(written) < writes:
            written.append(path)
            if len(written) == writes:
                ensemble.partition(leader.tree)
                return True
        return False

    ensemble.loses_answer = stop_leader
    await members[3].join()
    await until(lambda: len(written) == writes)
    half = await recorded(others[0])
    in_force = PATHS.serverlist in written
    assert (half.generation > before.generation) is in_force
    await leader.end()
    await until(lambda: len(owners(members)) == len(GROUPS), 60)
    await asyncio.sleep(5)
    watching.cancel()
    assert (await asyncio.gather(watching, return_exceptions=True))[0].__class__ is asyncio.CancelledError
    assert set(owners(members).values()) == {"b", "c", "d"}
    after = await recorded(others[0])
    assert after.leader == "b"
    # What died before its record was written was never acted on, and nothing of it is left.
    half_plan = next(generation for generation in generations if generation > before.generation)
    assert in_force or not any(half_plan in member.acted_on for member in members)
    for host, pointer in after.lists.items():
        names = await others[0].tree.children(PATHS.lists(host))
        assert names == sorted(f"{pointer.generation}-{chunk}" for chunk in range(pointer.chunks))
    for member in members[1:]:
        await member.end()


async def recorded(member: Member) -> Record:
    node = await member.tree.read(PATHS.serverlist)
    assert node is not None
    return records.decode(node.data, Record, PATHS.serverlist)
