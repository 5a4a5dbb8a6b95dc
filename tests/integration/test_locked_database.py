"""A lock on EMQ's tables: statements that nobody waits for are cancelled at the server, and keep no connection."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
import sqlalchemy as sa

import emq
import emq_servers as servers
from emq.database import Database, engine, postgres
from emq.runtime import errors
from support.waiting import until

POOL = engine.POSTGRES_THREADS


@pytest.fixture
def server() -> Iterator[servers.PostgresServer]:
    with servers.start_postgres() as started:
        yield started


def connect(server: servers.PostgresServer) -> psycopg.Connection:
    return psycopg.connect(server.url.replace("postgresql+psycopg", "postgresql"), autocommit=True)


class Watched:
    """Counts the connections of EMQ to a server, four times a second."""

    def __init__(self, server: servers.PostgresServer) -> None:
        self._admin = connect(server)
        self.most = 0
        self.waiting = 0

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def close(self) -> None:
        self._admin.close()

    async def _watch(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(0.25)

    def look(self) -> int:
        found = self._admin.execute(
            "SELECT count(*), count(*) FILTER (WHERE wait_event_type = 'Lock') FROM pg_stat_activity"
            " WHERE application_name LIKE 'emq%'"
        ).fetchone()
        assert found is not None
        self.most, self.waiting = max(self.most, found[0]), found[1]
        return int(found[0])


@pytest.fixture
def watched(server: servers.PostgresServer) -> Iterator[Watched]:
    made = Watched(server)
    yield made
    made.close()


@contextlib.contextmanager
def locked(server: servers.PostgresServer, *tables: str) -> Iterator[None]:
    with connect(server) as admin, admin.transaction():
        admin.execute(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE")
        yield


def select(connection: sa.Connection) -> int:
    return connection.exec_driver_sql("SELECT count(*) FROM emq_meta").scalar_one()


async def test_statements_that_wait_for_a_lock_are_cancelled_and_keep_no_connection(
    server: servers.PostgresServer, watched: Watched
) -> None:
    database = await Database.open(server.url)
    try:
        with locked(server, "emq_meta"):
            async with watched.watching():
                until = time.monotonic() + 8
                while time.monotonic() < until:
                    asked = [database.run(select, deadline_s=0.5) for _ in range(2 * POOL)]
                    answers = await asyncio.gather(*asked, return_exceptions=True)
                    assert all(isinstance(answer, errors.DatabaseUnavailable) for answer in answers)
            await asyncio.sleep(0.5)
            watched.look()
            assert watched.waiting == 0, "nobody waits for their answers any more"
        assert watched.most <= POOL
        assert await database.run(select) >= 0
    finally:
        await database.close()


async def test_a_long_wait_for_a_lock_says_so_and_a_long_call_may_wait_longer(
    server: servers.PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(postgres._SETTINGS, "lock_timeout", 300)
    database = await Database.open(server.url)
    try:
        with locked(server, "emq_meta"):
            with pytest.raises(
                errors.DatabaseUnavailable, match="another session holds a lock on EMQ's rows or tables"
            ):
                await database.run(select)
            patient = asyncio.create_task(database.run(select, deadline_s=60.0))
            await asyncio.sleep(1.5)
            assert not patient.done()
        assert await patient >= 0
    finally:
        await database.close()


async def test_a_client_that_dies_leaves_no_statement_behind(server: servers.PostgresServer, watched: Watched) -> None:
    if watched._admin.info.server_version < 140_000:
        pytest.skip("PostgreSQL looks for its clients from version 14 on")
    await (await Database.open(server.url)).close()
    code = (
        "import asyncio, sys; from emq.database import Database\n"
        "async def main():\n"
        "    database = await Database.open(sys.argv[1])\n"
        "    await database.run(lambda c: c.exec_driver_sql('SELECT count(*) FROM emq_meta').scalar_one())\n"
        "asyncio.run(main())\n"
    )
    with locked(server, "emq_topics"):
        code = code.replace("emq_meta", "emq_topics")
        client = subprocess.Popen([sys.executable, "-c", code, server.url])  # noqa: ASYNC220
        try:
            async with asyncio.timeout(20):
                while not watched.waiting:
                    watched.look()
                    await asyncio.sleep(0.1)
        finally:
            os.kill(client.pid, signal.SIGKILL)
            client.wait()
        await until(lambda: not watched.look(), 5, step_s=0.1)


async def test_a_host_keeps_to_its_connections_while_its_tables_are_locked(
    server: servers.PostgresServer, watched: Watched
) -> None:
    """Four for the catalog, four for the tree in which hosts meet, and five for a store on PostgreSQL."""
    handled: list[bytes] = []
    app = emq.App(server.url, database=server.url)

    @app.handler("orders")
    async def handle(m: emq.Message) -> None:
        handled.append(m.payload)

    async with app:
        await app.create_topic("orders", 100)
        host = asyncio.create_task(app.run())
        await app.publish_many("orders", [b"x"] * 50)
        await until(lambda: len(handled) >= 50)
        async with watched.watching():
            with locked(server, "emq_topics", "emq_meta", "emq_checkpoints", "emq_host_stats", "emq_tree_sessions"):
                await asyncio.sleep(12)
            assert watched.most <= 2 * POOL + POOL + 1
            await app.publish_many("orders", [b"y"] * 50)
            await until(lambda: len(set(handled)) >= 2 and handled.count(b"y") >= 50)
        app.stop()
        await host
