"""An ensemble without a quorum: hosts go on until their leases end, and take up again what they had when it is back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import emq_servers as servers
from support import cluster, cluster_load, cluster_receipts
from support.cluster import LEASE_US, SESSION_TIMEOUT_S, Cluster


@pytest.fixture
def zookeeper_ensemble(zookeeper_ensemble: servers.Ensemble) -> Iterator[servers.Ensemble]:
    """Started anew where it was left down."""
    yield zookeeper_ensemble
    for server in zookeeper_ensemble.servers:
        if server.running:
            server.resume()
    zookeeper_ensemble.restart(*(n for n, server in enumerate(zookeeper_ensemble.servers) if not server.running))


async def kill(ensemble: servers.Ensemble) -> None:
    await asyncio.to_thread(ensemble.kill, 0, 2)


async def restart(ensemble: servers.Ensemble) -> None:
    await asyncio.to_thread(ensemble.restart, 0, 2)


async def stop(ensemble: servers.Ensemble) -> None:
    for server in ensemble.servers[1:]:
        server.pause()


async def go_on(ensemble: servers.Ensemble) -> None:
    for server in ensemble.servers[1:]:
        server.resume()


async def test_without_a_quorum_hosts_go_on_to_their_deadline_and_resume_when_it_is_back(
    hosts: Cluster, zookeeper_ensemble: servers.Ensemble
) -> None:
    async with hosts.load(cluster_load.FEW_TOPICS):
        members = await hosts.started(2)
        for lose, find in ((kill, restart), (stop, go_on)):
            await asyncio.sleep(2)
            await lose(zookeeper_ensemble)
            lost_us = cluster.now_us()
            for member in members:
                hosts.crashed(member)
            await asyncio.sleep(SESSION_TIMEOUT_S * 1.2)
            found_us = cluster.now_us()
            for member in members:
                started = [r.started_us for r in cluster_receipts.starts(member.receipts.all())]
                assert started[-1] <= lost_us + LEASE_US
                if lose is stop:  # a broken connection is seen at once; then the buffers may be empty
                    assert lost_us < started[-1]
            await find(zookeeper_ensemble)
            await hosts.until_working(*members, since_us=found_us)
