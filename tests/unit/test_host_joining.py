"""A host that waits for its cluster: it starts nothing, and ends when it is told to."""

from __future__ import annotations

import asyncio

import pytest
from support.rig import Seen, rig
from support.virtual import virtual

from emq import errors
from emq.allocation.member import ClusterMembership
from emq.allocation.tree.memory.ensemble import MemoryEnsemble


async def generation(least: int) -> int:
    return least


@virtual
async def test_a_host_that_waits_for_its_cluster_starts_nothing_and_stops_at_once() -> None:
    async with rig() as r:
        await r.topic("t", 20)
        await r.producer.publish_many("t", [b"x"] * 5)
        ensemble = MemoryEnsemble(r.clock)
        ensemble.quorum = False
        membership = ClusterMembership(ensemble.tree(), "online", "a", generation, r.clock)
        host = r.host(seen := Seen(), "a", membership=membership)
        running = asyncio.create_task(host.run())
        await asyncio.sleep(60)
        assert not running.done()
        host.stop()
        began = asyncio.get_running_loop().time()
        await running
        assert asyncio.get_running_loop().time() - began < 0.1
        ensemble.quorum = True
        await asyncio.sleep(5)
        assert not ensemble.sessions  # what it had begun is ended, too
        assert len(seen) == 0


@virtual
async def test_a_host_that_may_not_join_says_why_and_leaves_no_session() -> None:
    async with rig() as r:
        ensemble = MemoryEnsemble(r.clock)
        first = ClusterMembership(ensemble.tree(), "online", "a", generation, r.clock)
        await first.join()
        second = ClusterMembership(ensemble.tree(), "online", "a", generation, r.clock)
        with pytest.raises(errors.HostConflict, match="'a' is a member"):
            await r.host(Seen(), "a", membership=second).run()
        assert len(ensemble.sessions) == 1
        await first.leave()


@virtual
async def test_a_host_that_is_cancelled_while_it_waits_leaves_no_session() -> None:
    async with rig() as r:
        ensemble = MemoryEnsemble(r.clock)
        ensemble.quorum = False
        membership = ClusterMembership(ensemble.tree(), "online", "a", generation, r.clock)
        running = asyncio.create_task(r.host(Seen(), "a", membership=membership).run())
        await asyncio.sleep(1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        ensemble.quorum = True
        await asyncio.sleep(5)
        assert not ensemble.sessions
