"""A database that keeps its connections and answers nothing: nobody hangs, it is said, and work goes on."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

import emq_servers as servers
from emq.database import Database
from emq.runtime import errors
from support import cluster, cluster_receipts
from support.cluster import Cluster
from support.proxies import PartingProxy

BUSY_S = 6.0
"""What a busy machine adds to a stop that takes nine seconds on an idle one."""


@pytest.fixture
async def proxy(postgres_server: servers.PostgresServer) -> AsyncIterator[PartingProxy]:
    async with PartingProxy([postgres_server.port]) as made:
        yield made


def behind(proxy: PartingProxy) -> str:
    return f"postgresql://postgres@{proxy.servers}/postgres"


async def test_a_call_to_a_silent_server_ends_at_its_deadline_and_the_next_works_when_it_is_back(
    proxy: PartingProxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    database = await Database.open(behind(proxy))
    try:
        await proxy.silence()
        for _ in range(2):  # the second one has to connect anew
            began = time.monotonic()
            asked = [database.run(select, deadline_s=1.0) for _ in range(6)]  # more than there are threads
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert all(isinstance(a, errors.DatabaseUnavailable) for a in answers)
            assert time.monotonic() - began < 5
        assert database.away_s > 1
        assert "database away since" in (database.unreachable or "")
        await proxy.heal()
        assert await database.run(select) == 7
        assert (database.unreachable, database.away_s) == (None, 0.0)
        said = [r.getMessage() for r in caplog.records if r.name == "emq.database.database"]
        assert len(said) == 2, "once at the beginning and once at the end"
    finally:
        await database.close()


async def test_a_commit_that_is_not_answered_is_in_doubt(proxy: PartingProxy) -> None:
    database = await Database.open(behind(proxy))
    loop = asyncio.get_running_loop()

    def change(connection: sa.Connection) -> None:
        connection.exec_driver_sql("CREATE TEMPORARY TABLE x (y int)")
        asyncio.run_coroutine_threadsafe(proxy.silence(), loop).result()

    try:
        with pytest.raises(errors.DatabaseInDoubt, match="whether the last change was applied is unknown"):
            await database.run(change, deadline_s=1.0)
    finally:
        await proxy.heal()
        await database.close()


async def test_close_ends_soon_though_calls_wait_for_a_silent_server(proxy: PartingProxy) -> None:
    database = await Database.open(behind(proxy))
    await proxy.silence()
    waiting = [asyncio.create_task(database.run(select, deadline_s=60.0)) for _ in range(8)]
    await asyncio.sleep(0.2)
    began = time.monotonic()
    await database.close()
    assert time.monotonic() - began < 5
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(a, errors.DatabaseUnavailable) for a in answers)


def select(connection: sa.Connection) -> int:
    return int(connection.exec_driver_sql("SELECT 7").scalar_one())


async def test_without_the_database_a_host_goes_on_to_its_bound_and_sigterm_ends_it_though_every_server_is_silent(
    postgres_server: servers.PostgresServer,
    redis_server: servers.RedisServer,
    zookeeper_server: servers.ZooKeeperServer,
    tmp_path: Path,
) -> None:
    url = redis_server.url
    with cluster.place_on(zookeeper_server, url, tmp_path, postgres_url=postgres_server.url) as place:
        async with (
            PartingProxy([postgres_server.port]) as databases,
            PartingProxy([redis_server.port]) as stores,
            PartingProxy([zookeeper_server.port]) as trees,
            Cluster(place, tmp_path, drain_s=2.0, session_timeout_s=4.0) as hosts,
        ):
            await hosts.app.create_topic("orders", 40, group_qps=20.0)
            sent = await hosts.app.publish_many("orders", [b"x"] * 400)
            host = hosts.start(
                database=f"postgresql://postgres@{databases.servers}/{place.database.rpartition('/')[2]}",
                store=f"redis://{stores.servers}/{place.store.rpartition('/')[2]}",
                cluster=f"zookeeper://{trees.servers}/{place.zookeeper.rpartition('/')[2]}",
            )
            await hosts.until_working(host)
            silent_us = cluster.now_us()
            await databases.silence()
            await asyncio.sleep(7)
            went_on = [r for r in cluster_receipts.starts(host.receipts.all()) if r.started_us > silent_us]
            assert 40 * 3 <= len(went_on) <= 40 * 6.5, "it goes on for five seconds of its quota, and no longer"
            assert host.logged.count("database away since") == 1
            await asyncio.gather(stores.silence(), trees.silence())
            began = time.monotonic()
            host.signal(signal.SIGTERM)
            await host.wait()
            assert time.monotonic() - began < 2.0 + 10.0 + BUSY_S
            await asyncio.gather(databases.heal(), stores.heal(), trees.heal())
            other = hosts.start()
            await hosts.until(lambda: cluster_receipts.done(hosts.receipts()) == set(sent))
            repeats = Counter(r.id for r in cluster_receipts.starts(hosts.receipts()))
            assert sum(repeats.values()) - len(repeats) <= 2 * 20 * 5 + 20
            await other.stop()


async def test_a_command_that_reads_from_a_silent_server_ends_with_one_clear_line(
    proxy: PartingProxy, redis_url: str
) -> None:
    await proxy.silence()
    where = ("--store", redis_url, "--database", behind(proxy))
    lines = ("topic list", "hosts")
    for said in await asyncio.gather(*(told_by(line, where) for line in lines)):
        assert len(said) == 1
        assert f"postgresql://postgres@{proxy.servers}" in said[0]
        assert "timeout expired" in said[0] or "answered within 10 s" in said[0]


async def told_by(line: str, where: tuple[str, ...]) -> list[str]:
    """What a command prints; it has to fail."""
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "emq_cli", *line.split(), *where)
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    async with asyncio.timeout(30):
        out, err = await process.communicate()
    assert process.returncode == 4
    return (out + err).decode().splitlines()
