"""What several integration tests begin with."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import emq_servers as servers
from emq_stores.memory import forget
from support import cluster, emq_shell, meeting
from support.cluster import Cluster, Note
from support.emq_processes import Shell
from support.meeting import Meeting
from support.tree_watcher import TreeWatcher


@pytest.fixture
def emq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """Processes of commands in an empty directory, without settings from the environment."""
    emq_shell.enter(tmp_path, monkeypatch)
    shell = Shell()
    yield shell
    shell.close()


@pytest.fixture
def names() -> Iterator[str]:
    """A prefix of topics, and of a world in memory, that no other test uses."""
    name = f"t{time.time_ns()}"
    yield name
    forget(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def sql_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty SQLite file, or of the PostgreSQL database of the run."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/emq.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture(params=["redis", "postgresql"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Meeting:
    """A store and a database that several hosts without a cluster share."""
    if request.param == "redis":
        return meeting.on_redis(request.getfixturevalue("redis_url"), tmp_path)
    return meeting.on_postgres(request.getfixturevalue("fresh_postgres"))


@pytest.fixture
async def hosts(
    zookeeper_ensemble: servers.Ensemble, redis_url: str, tmp_path: Path, record_property: Note
) -> AsyncIterator[Cluster]:
    """Host processes on the ensemble of the run."""
    with cluster.place_on(zookeeper_ensemble, redis_url, tmp_path) as place:
        async with Cluster(place, tmp_path, note=record_property) as made:
            yield made


@pytest.fixture
async def watch() -> AsyncIterator[Callable[..., TreeWatcher]]:
    """Makes trees over ZooKeeper, and closes them."""
    watchers: list[TreeWatcher] = []

    def make(url: str, timeout_s: float = 4.0, **more: Any) -> TreeWatcher:
        watchers.append(TreeWatcher(url, timeout_s, **more))
        return watchers[-1]

    yield make
    for watcher in watchers:
        await watcher.tree.close()
