"""What keeps a leader from planning does not keep the cluster from it."""

from __future__ import annotations

import asyncio

from emq.runtime import errors
from emq_cli import host_view
from emq_cli.cluster import DatabaseView
from emq_trace import cluster_view
from support.members import PATHS, cluster_of
from support.virtual import virtual
from support.waiting import until

pytestmark = virtual


async def test_a_node_that_somebody_put_among_the_lists_stops_no_leader() -> None:
    async with cluster_of("a", "b") as cluster:
        tree = cluster.ensemble.tree()
        await tree.open(lambda state: None)
        await tree.create(f"{PATHS.lists('a')}/notes", b"by hand")
        async with cluster.member("c"):
            await cluster.settled()
            assert set(cluster.owners.values()) == {"a", "b", "c"}
        await cluster.settled()
        assert await tree.read(f"{PATHS.lists('a')}/notes") is not None
        await tree.close()


async def test_a_leader_that_cannot_reach_the_database_lets_another_lead() -> None:
    async with cluster_of("a", "b", "c") as cluster:
        leader = next(m for m in cluster.members.values() if m.membership._leader.leading)

        async def out_of_reach(least: int) -> int:
            raise errors.DatabaseUnavailable("this host is cut off from the database")

        leader.membership._leader._next_generation = out_of_reach
        other = next(m for m in cluster.members.values() if m is not leader)
        cluster.members.pop(other.name)
        await other.end()
        await cluster.settled()
        assert not leader.membership._leader.leading
        assert set(cluster.owners.values()) == set(cluster.members)


async def test_while_nobody_reaches_the_database_each_tries_in_turn_and_nothing_moves() -> None:
    async with cluster_of("a", "b") as cluster:
        before = cluster.owners
        tries: list[float] = []
        next_generation = cluster.next_generation

        async def out_of_reach(least: int) -> int:
            tries.append(cluster.clock.now())
            raise errors.DatabaseUnavailable("the database is down")

        for member in cluster.members.values():
            member.membership._leader._next_generation = out_of_reach
            member.quotas.pop("t11/0")
            await member.membership.offer(member.quotas, 2)
        await asyncio.sleep(60)
        assert 10 < len(tries) < 200
        assert {group: host for group, host in cluster.owners.items() if group != "t11/0"} == {
            group: host for group, host in before.items() if group != "t11/0"
        }
        for member in cluster.members.values():
            member.membership._leader._next_generation = next_generation
        await until(lambda: len(cluster.owners) == 11, 20)
        await cluster.settled(11)


async def test_a_leader_whose_database_fell_silent_lets_another_lead_though_nothing_asked_for_a_plan() -> None:
    """It hears of no new topic, so that it would never find out that it cannot plan."""
    async with cluster_of("a", "b", "c") as cluster:
        leader = next(m for m in cluster.members.values() if m.membership._leader.leading)
        leader.database.began_s = cluster.clock.now()
        others = [m for m in cluster.members.values() if m is not leader]
        for member in others:
            member.quotas["new/0"] = 10.0
            await member.membership.offer(member.quotas, 2)
        await until(lambda: any("new/0" in m.held for m in cluster.members.values()), 20)
        assert not leader.membership._leader.leading
        await cluster.settled(13)


async def test_the_cluster_can_see_which_host_misses_the_database() -> None:
    async with cluster_of("a", "b") as cluster:
        cluster.members["a"].database.began_s = cluster.clock.now()
        await asyncio.sleep(3)
        tree = cluster.ensemble.tree()
        await tree.open(lambda state: None)
        seen = await cluster_view.read(tree, "online")
        await tree.close()
        known = DatabaseView([], {}, 0, [])
        assert host_view.troubles(seen, host_view.rows(seen, known), known) == ["a: database away in this test"]


async def test_leaders_without_a_database_hand_the_lead_on_at_leisure() -> None:
    async with cluster_of("a", "b") as cluster:
        for member in cluster.members.values():
            member.database.began_s = cluster.clock.now()
        candidates = cluster.ensemble.nodes.children(PATHS.leader)
        await asyncio.sleep(60)
        number = int(cluster.ensemble.nodes.children(PATHS.leader)[-1].partition("-")[2])
        assert 4 < number - int(candidates[-1].partition("-")[2]) < 16
