"""A store, or the database, that is restored from yesterday's backup while no host runs."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import psycopg
import pytest

import emq_servers as servers
from support.cluster import Note
from support.ledger import Ledger
from support.loops import on_both_loops
from support.waiting import until


class Backed(Protocol):
    """Attributes:
    url: of what is kept.
    """

    url: str

    def keep(self) -> None:
        """Make a backup."""

    def restore(self) -> None:
        """Put the backup in the place of what is there."""


class SqliteFile:
    def __init__(self, directory: Path) -> None:
        self._file, self._copy = directory / "kept.db", directory / "backup.db"
        self.url = f"sqlite:///{self._file}"

    def keep(self) -> None:
        shutil.copy(self._file, self._copy)

    def restore(self) -> None:
        shutil.copy(self._copy, self._file)


class Valkey:
    def __init__(self, server: servers.RedisServer, directory: Path) -> None:
        self._server, self._copy = server, directory / "backup"
        self.url = server.url

    def keep(self) -> None:
        self._server.stop()
        shutil.copytree(self._server.directory / "appendonlydir", self._copy)
        self._server.restart()

    def restore(self) -> None:
        self._server.stop()
        shutil.rmtree(self._server.directory / "appendonlydir")
        shutil.copytree(self._copy, self._server.directory / "appendonlydir")
        self._server.restart()


class PostgresDatabase:
    def __init__(self, server: servers.PostgresServer) -> None:
        self._admin = server.url
        self.url = f"{server.url.rpartition('/')[0]}/kept"
        self._do("CREATE DATABASE kept")

    def keep(self) -> None:
        self._do("CREATE DATABASE backup TEMPLATE kept")

    def restore(self) -> None:
        self._do("DROP DATABASE kept WITH (FORCE)")
        self._do("ALTER DATABASE backup RENAME TO kept")

    def _do(self, statement: str) -> None:
        with psycopg.connect(self._admin, autocommit=True) as admin:
            admin.execute(statement.encode())


@pytest.fixture(params=["valkey", "postgresql", "sqlite"])
def backed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backed]:
    with contextlib.ExitStack() as stack:
        if request.param == "sqlite":
            yield SqliteFile(tmp_path)
        elif request.param == "valkey":
            request.getfixturevalue("redis_server")  # skips or fails where there is none
            yield Valkey(stack.enter_context(servers.start_redis(appendonly=True)), tmp_path)
        else:
            request.getfixturevalue("postgres_server")
            yield PostgresDatabase(stack.enter_context(servers.start_postgres()))


async def until_published(ledger: Ledger, count: int) -> None:
    """Publish while no host is there."""
    async with ledger.app() as app, ledger.publishing(app):
        wanted = len(ledger.known) + count
        await until(lambda: len(ledger.known) >= wanted)


@on_both_loops
async def test_what_comes_after_a_store_was_restored_is_all_delivered(
    backed: Backed, tmp_path: Path, record_property: Note
) -> None:
    ledger = Ledger(backed.url, f"sqlite:///{tmp_path}/catalog.db", record_property)
    async with ledger.host():
        await ledger.more(150)
    await until_published(ledger, 50)
    backed.keep()
    async with ledger.host():
        await ledger.more(300)
    backed.restore()
    await until_published(ledger, 100)
    async with ledger.host():
        await ledger.more(300)
    ledger.judge()


@pytest.mark.parametrize("backed", ["postgresql", "sqlite"], indirect=True)
@on_both_loops
async def test_what_the_store_has_is_all_delivered_after_its_database_was_restored(
    backed: Backed, redis_server: servers.RedisServer, tmp_path: Path, record_property: Note
) -> None:
    with servers.start_redis(appendonly=True) as store:
        ledger = Ledger(store.url, backed.url, record_property)
        async with ledger.host():
            await ledger.more(150)
        backed.keep()
        async with ledger.host():
            await ledger.more(300)
        await until_published(ledger, 100)
        backed.restore()
        async with ledger.host():
            await ledger.more(300)
        ledger.judge()
