"""Hosts reach one of their servers, or an endpoint, by connections that break in each way there is."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest

import emq
import emq_servers as servers
from emq.runtime import settings as emq_settings
from emq_push.cli.pushing import with_push
from support import cluster, cluster_load
from support.cluster import Cluster, Note, Place
from support.http_receiver import HttpReceiver, Request
from support.loops import on_both_loops
from support.proxies import PartingProxy
from support.waiting import until

FAULT_S = 6.0
"""Longer than a lease."""

QPS = 50.0
"""Of each topic that is pushed."""


async def resets(proxy: PartingProxy) -> None:
    """Break all connections, twice a second."""
    for _ in range(round(FAULT_S / 0.5)):
        await proxy.cut()
        await proxy.heal()
        await asyncio.sleep(0.5)


async def delays(proxy: PartingProxy) -> None:
    proxy.delay_s = 0.2
    await asyncio.sleep(FAULT_S)


async def half_open(proxy: PartingProxy) -> None:
    """Connections stay, and nothing passes."""
    await proxy.silence()
    await asyncio.sleep(FAULT_S)


async def no_requests(proxy: PartingProxy) -> None:
    await proxy.silence(replies=False)
    await asyncio.sleep(FAULT_S)


async def no_replies(proxy: PartingProxy) -> None:
    """Whatever a client asks for is done, and its reply comes too late."""
    await proxy.silence(requests=False)
    await asyncio.sleep(FAULT_S)


FAULTS: Mapping[str, Callable[[PartingProxy], Coroutine[Any, Any, None]]] = {
    f.__name__: f for f in (resets, delays, half_open, no_requests, no_replies)
}


def behind(url: str, proxy: PartingProxy) -> str:
    """Return the URL by way of the proxy."""
    scheme, _, rest = url.partition("://")
    account = rest.partition("/")[0].rpartition("@")[0]
    return f"{scheme}://{account}{'@' if account else ''}{proxy.servers}/{rest.partition('/')[2]}"


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("border", ["valkey", "postgresql", "database", "tree"])
async def test_hosts_behind_a_broken_border_lose_nothing_and_keep_the_cap(
    border: str,
    fault: str,
    zookeeper_server: servers.ZooKeeperServer,
    redis_server: servers.RedisServer,
    postgres_server: servers.PostgresServer,
    tmp_path: Path,
    record_property: Note,
) -> None:
    server = {"valkey": redis_server, "tree": zookeeper_server}.get(border, postgres_server)
    with cluster.place_on(zookeeper_server, redis_server.url, tmp_path, postgres_url=postgres_server.url) as place:
        if border == "postgresql":  # the store too is there
            place = place._replace(store=place.database)
        async with (
            PartingProxy([server.port]) as proxy,
            Cluster(place, tmp_path, note=record_property) as hosts,
            hosts.load(cluster_load.FEW_TOPICS),
        ):
            # One on each event loop.
            broken = [hosts.start(loop=loop, **settings(border, place, proxy)) for loop in ("asyncio", "uvloop")]
            await hosts.until_working(*broken, hosts.start())
            await asyncio.sleep(1)
            for host in broken:
                hosts.crashed(host)
            await FAULTS[fault](proxy)
            await proxy.heal()
            await hosts.until_working(*broken, since_us=cluster.now_us())
            await asyncio.sleep(1)


def settings(border: str, place: Place, proxy: PartingProxy) -> dict[str, Any]:
    if border == "tree":
        return {"cluster": behind(place.zookeeper, proxy)}
    if border == "valkey":
        return {"store": behind(place.store, proxy)}
    through = {"database": behind(place.database, proxy)}
    return through | ({"store": behind(place.store, proxy)} if border == "postgresql" else {})


@pytest.mark.services
@pytest.mark.parametrize("fault", FAULTS)
@on_both_loops
async def test_deliveries_to_an_endpoint_behind_a_broken_border_arrive_and_others_do_not_wait(
    fault: str, monkeypatch: pytest.MonkeyPatch, record_property: Note
) -> None:
    monkeypatch.setenv("EMQ_PUSH_ALLOW", "127.0.0.1")
    arrived: dict[str, list[float]] = defaultdict(list)

    def answer(request: Request) -> int:
        arrived[request.headers["webhook-id"]].append(time.monotonic())
        return 204

    app = emq.App("memory:", options=emq_settings.load())
    async with HttpReceiver(answer).running() as receiver, PartingProxy([receiver.port]) as proxy, with_push(app), app:
        sent: dict[str, list[str]] = {"broken": [], "well": []}
        for topic, url in (("broken", f"http://{proxy.servers}/"), ("well", receiver.url())):
            attributes = {"push.url": url, "push.timeout_s": "2"}
            await app.create_topic(topic, QPS, backoff_s=(0.5,), max_attempts=50, attributes=attributes)
        async with app.running():
            breaking = asyncio.create_task(FAULTS[fault](proxy))
            while not breaking.done():
                for topic, ids in sent.items():
                    ids.append(await app.publish(topic, b"{}"))
                await asyncio.sleep(2 / QPS)
            await breaking
            await proxy.cut()  # what it holds does not arrive any more
            await proxy.heal()
            healed = time.monotonic()
            await until(lambda: all(id_ in arrived for ids in sent.values() for id_ in ids), 60.0)
            record_property("back_s", round(time.monotonic() - healed, 1))
            while await app.lag("broken"):
                await asyncio.sleep(0.05)
    record_property("messages", len(sent["broken"]))
    record_property("repeats", sum(len(arrived[id_]) - 1 for id_ in sent["broken"]))
    times = [arrived[id_][0] for id_ in sent["well"]]
    assert all(len(arrived[id_]) == 1 for id_ in sent["well"])
    assert max(b - a for a, b in itertools.pairwise(times)) < 1.5
