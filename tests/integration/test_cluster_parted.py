"""Hosts that are stopped, expired or cut off: others take over, and they themselves do nothing more until they are
members again."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Sequence
from pathlib import Path

import emq_servers as servers
from support import cluster, cluster_load, cluster_receipts
from support.cluster import LEASE_US, Cluster
from support.cluster_process import HostProcess
from support.proxies import PartingProxy


async def until_taken_over(hosts: Cluster, former: HostProcess, since_us: int) -> set[str]:
    """Return when others have started something in each group that it had; answers those groups."""
    groups = hosts.groups_of(former)
    assert groups

    def taken() -> bool:
        after = {r.group for r in hosts.receipts() if r.host != former.name and r.started_us > since_us}
        return groups <= after

    await hosts.until(taken)
    return groups


def behind(proxy: PartingProxy, hosts: Cluster) -> str:
    """The cluster's URL by way of the proxy."""
    return f"zookeeper://{proxy.servers}/{hosts.place.zookeeper.rpartition('/')[2]}"


def starts_since(
    host: HostProcess, since_us: float, epochs: set[int], known: Sequence[cluster_receipts.Receipt] = ()
) -> list[cluster_receipts.Receipt]:
    """What the host started after that time under one of these epochs.

    Args:
        known: receipts that were there at that time. The host's clock may be some milliseconds ahead of the test's.
    """
    starts = cluster_receipts.starts(host.receipts.all())
    return [r for r in starts if r.started_us > since_us and r.epoch in epochs and r not in known]


def epochs_of(host: HostProcess) -> set[int]:
    return {r.epoch for r in host.receipts.all()}


async def test_a_host_stopped_past_its_session_starts_nothing_more_and_is_refused_when_it_goes_on(
    hosts: Cluster, zookeeper_ensemble: servers.Ensemble
) -> None:
    async with PartingProxy([server.port for server in zookeeper_ensemble.servers]) as proxy, hosts.load():
        # Handlers are slow, so that many are in flight when their host stops.
        stopped = hosts.start(handler_ms=300, cluster=behind(proxy, hosts))
        await hosts.until_working(stopped, *(hosts.start(handler_ms=300) for _ in range(2)))
        await asyncio.sleep(2)
        hosts.pause(stopped)
        paused_us, epochs, known = cluster.now_us(), epochs_of(stopped), stopped.receipts.all()
        assert {r.id for r in stopped.receipts.all()} - cluster_receipts.done(stopped.receipts.all())
        await until_taken_over(hosts, stopped, paused_us)
        await proxy.silence()  # the stores are to refuse it before the ensemble tells it anything
        stopped.signal(signal.SIGCONT)
        await hosts.until(lambda: cluster.NEWER_OWNER.search(stopped.logged) is not None)
        assert "has expired" not in stopped.logged
        assert starts_since(stopped, paused_us, epochs, known) == []
        await proxy.heal()
        await hosts.until_working(stopped, since_us=cluster.now_us())
        assert starts_since(stopped, paused_us, epochs, known) == []
        assert f"session of host {stopped.name} has expired" in stopped.logged


async def test_a_session_that_ends_without_a_crash_costs_its_groups_at_once(hosts: Cluster) -> None:
    async with hosts.load():
        expired, *_ = await hosts.started(3)
        await asyncio.sleep(2)
        epochs = epochs_of(expired)
        expired.signal(signal.SIGUSR1)
        hosts.crashed(expired)
        await hosts.until(lambda: f"session of host {expired.name} has expired" in expired.logged)
        expired_us = cluster.now_us()
        await hosts.until_working(expired, since_us=expired_us)
        assert starts_since(expired, expired_us, epochs) == []


async def test_a_host_parted_from_the_ensemble_alone_stops_before_others_begin(
    hosts: Cluster, zookeeper_ensemble: servers.Ensemble
) -> None:
    async with PartingProxy([server.port for server in zookeeper_ensemble.servers]) as proxy, hosts.load():
        parted = hosts.start(cluster=behind(proxy, hosts))
        others = [hosts.start() for _ in range(2)]
        await hosts.until_working(parted, *others)
        for part in (proxy.silence, proxy.cut):
            await asyncio.sleep(2)
            epochs = epochs_of(parted)
            await part()
            parted_us = cluster.now_us()
            hosts.crashed(parted)
            groups = await until_taken_over(hosts, parted, parted_us)
            others_first_us = min(
                r.started_us
                for r in hosts.receipts()
                if r.host != parted.name and r.group in groups and r.started_us > parted_us
            )
            own = [r.started_us for r in cluster_receipts.starts(parted.receipts.all())]
            assert own[-1] <= parted_us + LEASE_US
            assert parted_us < own[-1], "it goes on until its lease ends"
            assert own[-1] < others_first_us
            await proxy.heal()
            healed_us = cluster.now_us()
            await hosts.until_working(parted, since_us=healed_us)
            assert starts_since(parted, healed_us, epochs) == []


async def test_an_outage_shorter_than_the_lease_pauses_nothing_and_moves_no_group(
    zookeeper_server: servers.ZooKeeperServer, redis_url: str, tmp_path: Path
) -> None:
    with cluster.place_on(zookeeper_server, redis_url, tmp_path) as place:
        async with (
            PartingProxy([zookeeper_server.port]) as proxy,
            Cluster(place, tmp_path, session_timeout_s=10.0) as hosts,
            hosts.load(cluster_load.FEW_TOPICS),
        ):
            cut, silent = hosts.start(cluster=behind(proxy, hosts)), hosts.start()
            await hosts.until_spread(cut, silent)
            await asyncio.sleep(1)
            before = [(hosts.groups_of(host), epochs_of(host)) for host in (cut, silent)]
            began_us = cluster.now_us()
            zookeeper_server.pause()
            try:
                await proxy.cut()
                await asyncio.sleep(4)
            finally:
                zookeeper_server.resume()
            await proxy.heal()
            await asyncio.sleep(3)
            for host, (groups, epochs) in zip((cut, silent), before, strict=True):
                assert longest_gap_s(host, began_us) < 1.7
                assert hosts.groups_of(host) == groups
                assert epochs_of(host) == epochs
                assert "has expired" not in host.logged


def longest_gap_s(host: HostProcess, since_us: float) -> float:
    """The longest time without a start since then."""
    started = [r.started_us for r in cluster_receipts.starts(host.receipts.all()) if r.started_us > since_us]
    return max(b - a for a, b in itertools.pairwise([since_us, *sorted(started), cluster.now_us()])) / 1e6
