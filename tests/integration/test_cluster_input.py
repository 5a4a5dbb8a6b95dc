"""What may be wrong around a host: ensembles that do not answer, foreign trees, names that are taken, wrong clocks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

import emq_servers as servers
from emq_servers.server import free_port
from support import cluster, cluster_load
from support.cluster import Cluster, Place
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


@pytest.fixture
def keeper(place: Place) -> Iterator[KazooClient]:
    """A client in the place's chroot that knows nothing of EMQ."""
    servers_, _, chroot = place.zookeeper.removeprefix("zookeeper://").partition("/")
    client = KazooClient(servers_)
    client.start()
    client.ensure_path(f"/{chroot}")
    client.chroot = f"/{chroot}"
    yield client
    client.stop()
    client.close()


async def refused(host: HostProcess) -> str:
    """The one line that a host said before it ended."""
    assert await host.wait(60.0) == 1
    return host.logged.splitlines()[-1]


async def test_an_ensemble_that_does_not_answer_is_tried_on_and_nothing_is_started_meanwhile(hosts: Cluster) -> None:
    port = free_port()
    async with hosts.load(TOPICS, clean=True):
        patient, stopped = (hosts.start(cluster=f"zookeeper://127.0.0.1:{port}/late") for _ in range(2))
        await hosts.until(lambda: "no ZooKeeper server can be used, trying again" in patient.logged)
        await hosts.until(lambda: "no ZooKeeper server can be used, trying again" in stopped.logged)
        asked = time.monotonic()
        assert await stopped.stop() == 0
        assert time.monotonic() - asked < 5
        assert hosts.receipts() == []
        with await asyncio.to_thread(servers.start_zookeeper, port=port):
            await hosts.until_working(patient)
            assert await patient.stop() == 0
        await hosts.until_working(hosts.start())


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


async def test_a_tree_that_is_not_emqs_is_refused_and_left_as_it_is(hosts: Cluster, keeper: KazooClient) -> None:
    await cluster_load.create(hosts.app, TOPICS)
    for data in (b"someone else's", b"EMQ1 and damage"):
        keeper.delete("/emq", recursive=True)
        keeper.create("/emq/online/serverlist", data, makepath=True)
        text = await refused(hosts.start())
        assert text.startswith("ForeignTree: node /emq/online/serverlist ")
        assert "another chroot" in text
        assert keeper.get("/emq/online/serverlist")[0] == data
        assert keeper.get_children("/emq/online/serverlist") == []


async def test_a_plan_damaged_while_hosts_run_is_not_overwritten_and_they_keep_what_they_have(
    hosts: Cluster, keeper: KazooClient
) -> None:
    async with hosts.load(TOPICS):
        members = await hosts.started(2)
        good, _ = keeper.get("/emq/online/serverlist")
        keeper.set("/emq/online/serverlist", b"damage")
        late = hosts.start()
        assert (await refused(late)).startswith("ForeignTree: ")
        await hosts.until(lambda: all("this host keeps what it has" in host.logged for host in members))
        await hosts.until_working(*members, since_us=cluster.now_us())
        assert keeper.get("/emq/online/serverlist")[0] == b"damage"
        keeper.set("/emq/online/serverlist", good)
    assert late.receipts.all() == []


async def test_a_name_that_a_living_host_has_is_refused(hosts: Cluster) -> None:
    async with hosts.load(TOPICS, clean=True):
        first = hosts.start("web-1")
        await hosts.until_working(first)
        text = await refused(second := hosts.start("web-1", session_timeout_s=1.5))
        assert text.startswith("HostConflict: a host named 'web-1' ")
        assert "another host_name" in text
        assert second.receipts.all() == []
        await hosts.until_working(first, since_us=cluster.now_us())


async def test_the_cap_holds_between_hosts_whose_clocks_differ_since_they_follow_one_time(
    place: Place, tmp_path: Path
) -> None:
    async with Cluster(place, tmp_path, session_timeout_s=10.0) as hosts, hosts.load(TOPICS, clean=True):
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
