"""Clusters without topics, without hosts; a topic that grows."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import emq_servers as servers
from support import cluster, cluster_receipts
from support.cluster import Cluster
from support.cluster_load import GROUP_QPS, LoadTopic

SETTLED_S = 3.0
"""In which a change of the catalog is known to all hosts and publishers."""


@pytest.fixture
async def hosts(zookeeper_ensemble: servers.Ensemble, redis_url: str, tmp_path: Path) -> AsyncIterator[Cluster]:
    with cluster.place_on(zookeeper_ensemble, redis_url, tmp_path) as place:
        async with Cluster(place, tmp_path, session_timeout_s=10.0) as made:
            yield made


async def test_hosts_without_topics_wait_for_some_and_messages_without_hosts_for_one(hosts: Cluster) -> None:
    idle = [hosts.start() for _ in range(2)]
    await hosts.until(lambda: any("0 groups on 2 hosts" in host.logged for host in idle))
    async with hosts.load([LoadTopic("orders", 4)], clean=True):
        await hosts.until_working(*idle)
        assert [await host.stop() for host in idle] == [0, 0]
        stopped = len(hosts.receipts())
        await asyncio.sleep(1)  # published to nobody
        assert len(hosts.receipts()) == stopped
        alone = hosts.start()
        await hosts.until(lambda: len(hosts.groups_of(alone)) == 4)


async def test_a_topic_grown_from_2_groups_to_40_and_back_keeps_its_promises(hosts: Cluster) -> None:
    few, many = 2, 40
    async with hosts.load([LoadTopic("orders", few)], quota=lambda r: many * GROUP_QPS, clean=True) as load:
        await hosts.until_working(hosts.start())
        for _ in range(2):
            hosts.start()
        await hosts.app.admin.update("orders", qps=many * GROUP_QPS)
        load.shares["orders"] *= many / few
        await hosts.until(lambda: len({g for host in hosts.hosts for g in hosts.groups_of(host)}) == many)
        await hosts.until_working(*hosts.hosts)
        await hosts.app.admin.update("orders", qps=few * GROUP_QPS)
        load.shares["orders"] = 0.2  # so that most of the quota goes to what the retired groups still hold
        shrunk_us = cluster.now_us() + SETTLED_S * 1e6
        await hosts.until(lambda: cluster.now_us() > shrunk_us)
        while (await hosts.app.catalog.get("orders")).groups > few:
            await asyncio.sleep(0.2)
    # What retired groups still start counts against the topic's quota.
    late = [r for r in cluster_receipts.starts(hosts.receipts()) if r.started_us > shrunk_us]
    seconds = Counter(r.started_us // cluster_receipts.SECOND_US for r in late)
    assert seconds
    assert max(seconds.values()) <= few * GROUP_QPS
