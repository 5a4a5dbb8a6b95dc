"""Takeovers between owners, leaders and lives of a host: epochs grow, and no second is used twice."""

from __future__ import annotations

import asyncio

from emq.allocation.leader import CATALOG_WAIT_S
from support.members import Cluster, cluster_of, quotas
from support.virtual import LoopClock, virtual
from support.waiting import until

pytestmark = virtual

AHEAD_S = 3.0


class AheadClock(LoopClock):
    """A host's clock that is ahead of the others'."""

    def now(self) -> float:
        return super().now() + AHEAD_S


async def test_epochs_grow_on_though_the_database_that_counts_them_began_anew() -> None:
    """A lower epoch than a former owner's would be refused by every store."""
    cluster = Cluster()
    cluster.generation = 1 << 40
    async with cluster.member("a"):
        await cluster.settled()
        before = await cluster.record()
        cluster.generation = 0
        async with cluster.member("b") as b:
            await cluster.settled()
            assert (await cluster.record()).generation > before.generation > 1 << 40
            assert min(b.held.values()) > before.generation


async def test_a_new_leader_plans_when_its_catalog_is_as_new_as_the_plans() -> None:
    """By an older one it would take groups away that it does not know, of topics that there are."""
    async with cluster_of("a") as cluster:
        a = cluster.members["a"]
        async with cluster.member("b") as b:
            await cluster.settled()
            await a.membership.offer(quotas(14), 3)
            await cluster.settled(14)
            planned = await cluster.record()
            await a.end()
            await until(lambda: b.membership._leader.leading, 10)
            await asyncio.sleep(CATALOG_WAIT_S - 1.0)
            assert await cluster.record() == planned
            await b.membership.offer(quotas(14), 3)
            await cluster.settled(14)


async def test_a_group_is_taken_when_the_last_second_of_its_former_owner_is_over_by_both_clocks() -> None:
    """Its former owner has used that second's quota."""
    cluster = Cluster()
    clock, cluster.clock = cluster.clock, AheadClock()
    a = cluster.member("a")
    cluster.clock = clock
    async with a:
        await cluster.settled()
        async with cluster.member("b") as b:
            joined_s = clock.now()
            await until(lambda: len(b.held) > 0, 20)
            assert clock.now() - joined_s >= AHEAD_S
            await cluster.settled()
