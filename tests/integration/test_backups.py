"""docs/backup.md is followed for every combination of store, database and tree; then hosts go on as it says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import emq
import emq_servers as servers
from support.cluster import Note
from support.emq_processes import EMQ
from support.kept import Kept, PostgresDatabase, SqliteFile, Valkey, cluster, listed
from support.ledger import Ledger

VALKEYS: dict[str, Callable[[Path, contextlib.ExitStack], Kept]] = {
    "valkey": Valkey,
    "valkey-cluster": cluster,
    "valkey-servers": listed,
}


@pytest.fixture
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str, str], Kept]]:
    """Return a function that makes what is kept, of a kind and by a name."""
    with contextlib.ExitStack() as stack:

        def make(kind: str, name: str) -> Kept:
            if kind == "sqlite":
                return SqliteFile(tmp_path / name)
            if kind in VALKEYS:
                request.getfixturevalue("redis_server")  # skips or fails where there is none
                return VALKEYS[kind](tmp_path / name, stack)
            server: servers.PostgresServer = request.getfixturevalue("postgres_server")
            return PostgresDatabase(tmp_path / name, server, f"{name}_{uuid.uuid4().hex[:8]}")

        yield make


def told_by(words: str, store: str, database: str) -> tuple[int, Any]:
    """Return the exit code of a command of `emq`, and what it says."""
    command = [*EMQ, *words.split(), "--json", "--store", store, "--database", database]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert not ended.stderr
    return ended.returncode, json.loads(ended.stdout)


def checked(store: str, database: str) -> tuple[int, Any]:
    """Return the exit code of `emq backup check`, and what it says."""
    return told_by("backup check", store, database)


COMBINATIONS = [
    (store, database, tree)
    for store in ("sqlite", "postgresql", *VALKEYS)
    for database in ("sqlite", "postgresql")
    for tree in ("database", "zookeeper")
    if (store, tree) != ("sqlite", "zookeeper")  # only one host may have such a store
]


@pytest.mark.parametrize(("store_kind", "database_kind", "tree"), COMBINATIONS)
async def test_copies_are_taken_under_load_and_restored(
    kept: Callable[[str, str], Kept],
    store_kind: str,
    database_kind: str,
    tree: str,
    request: pytest.FixtureRequest,
    record_property: Note,
) -> None:
    store, database = kept(store_kind, "store"), kept(database_kind, "database")
    cluster = ""
    if tree == "zookeeper":
        cluster = f"{request.getfixturevalue('zookeeper_server').url}/{uuid.uuid4().hex[:8]}"
    ledger = Ledger(store.url, database.url, record_property, cluster=cluster)

    async with ledger.host():
        await ledger.more(100)
        await asyncio.to_thread(database.copy)
        await ledger.more(100)
        safe = set(ledger.known)
        await asyncio.to_thread(store.copy)
        await ledger.more(100)
    ledger.unknown |= ledger.known - safe
    ledger.known = safe

    await asyncio.to_thread(store.restore)
    code, told = await asyncio.to_thread(checked, store.url, database.url)
    assert (code, told["fits"]) == (1, False)
    assert told["behind"] > 0
    assert told["missing"] >= 100 - told["lost"]

    await asyncio.to_thread(database.restore)
    code, told = await asyncio.to_thread(checked, store.url, database.url)
    assert (code, told["fits"], told["behind"], told["orphans"]) == (0, True, 0, [])
    async with ledger.host():
        await ledger.more(200)
    ledger.judge()


@pytest.mark.parametrize("store_kind", ["sqlite", "postgresql", *VALKEYS])
async def test_what_the_store_alone_has_is_found_and_adopted(kept: Callable[[str, str], Kept], store_kind: str) -> None:
    store, database = kept(store_kind, "store"), kept("sqlite", "database")
    async with emq.App(store.url, database=database.url) as app:
        await app.create_topic("orders", 10)
        await app.publish_many("orders", [b"x"] * 5)
        await asyncio.to_thread(database.copy)
        await app.create_topic("late", 200)
        await app.publish_many("late", [b"x"] * 40)
        await asyncio.to_thread(store.copy)
        await app.publish_many("late", [b"lost"] * 40)
    await asyncio.to_thread(store.restore)
    await asyncio.to_thread(database.restore)

    def told(words: str) -> tuple[int, Any]:
        return told_by(words, store.url, database.url)

    code, found = await asyncio.to_thread(told, "store orphans")
    assert (code, [(each["topic"], each["ready"]) for each in found]) == (0, [("late", 40)])
    code, check = await asyncio.to_thread(told, "backup check")
    assert (code, [each["topic"] for each in check["orphans"]]) == (1, ["late"])
    assert (await asyncio.to_thread(told, "store orphans --adopt late --qps 200"))[0] == 0
    assert await asyncio.to_thread(told, "store orphans") == (0, [])
    assert (await asyncio.to_thread(told, "backup check"))[1]["orphans"] == []
