"""What may be wrong around a host: wrong credentials, clocks that differ, an environment beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import emq_servers as servers
from support import cluster, cluster_load
from support.cluster import Cluster, Note, Place
from support.cluster_process import HostProcess

TOPICS = cluster_load.FEW_TOPICS


@pytest.fixture
def place(zookeeper_ensemble: servers.Ensemble, redis_url: str, tmp_path: Path) -> Iterator[Place]:
    with cluster.place_on(zookeeper_ensemble, redis_url, tmp_path) as place:
        yield place


@pytest.fixture
async def hosts(place: Place, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(place, tmp_path) as made:
        yield made


async def refused(host: HostProcess) -> str:
    """The one line that a host said before it ended."""
    assert await host.wait(60.0) == 1
    return host.logged.splitlines()[-1]


async def test_wrong_credentials_end_the_host_with_the_remedy(hosts: Cluster) -> None:
    def with_user(user: str) -> str:
        return hosts.place.zookeeper.replace("//", f"//{user}@", 1)

    await cluster_load.create(hosts.app, TOPICS)
    owner = hosts.start(cluster=with_user("emq:right"))
    await hosts.until(lambda: "leads the cluster" in owner.logged)
    for user in ("emq:wrong", "other:right"):
        text = await refused(hosts.start(cluster=with_user(user)))
        assert text.startswith("InvalidSettings: ")
        assert "correct" in text
        assert "wrong" not in text
    assert (await refused(hosts.start())).startswith("InvalidSettings: ")
    assert owner.running


async def test_the_cap_holds_between_hosts_whose_clocks_differ_since_they_follow_one_time(
    place: Place, tmp_path: Path, record_property: Note
) -> None:
    async with (
        Cluster(place, tmp_path, session_timeout_s=10.0, note=record_property) as hosts,
        hosts.load(TOPICS, clean=True),
    ):
        members = [hosts.start(ahead_s=ahead_s) for ahead_s in (0.8, -0.7, 0.2)]
        await hosts.until_working(*members)
        await asyncio.sleep(1.5)
        assert await members[0].stop() == 0
        await hosts.until_working(hosts.start(ahead_s=-0.4))
        # What a host counts in is compared with the servers' time; before it followed, the hosts complained here.
        assert all("servers in which hosts meet" not in member.logged for member in members)


async def test_sandbox_and_online_share_an_ensemble_and_names_and_nothing_else(place: Place, tmp_path: Path) -> None:
    async with (
        Cluster(place, tmp_path, session_timeout_s=10.0) as online,
        Cluster(place, tmp_path, environment="sandbox", session_timeout_s=10.0) as sandbox,
        online.load(TOPICS, clean=True) as to_online,
        sandbox.load(TOPICS, clean=True) as to_sandbox,
    ):
        await online.started(1)
        first, second = await sandbox.started(2)
        assert await first.stop() == 0
        await sandbox.until_working(second, since_us=cluster.now_us())
    assert {r.id for r in online.receipts()} == to_online.sent
    assert {r.id for r in sandbox.receipts()} == to_sandbox.sent
