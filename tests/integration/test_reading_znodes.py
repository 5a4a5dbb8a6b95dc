"""Commands that only look at a cluster leave no node behind."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import emq_servers as servers
from emq.allocation import zookeeper
from emq.allocation.tree.database import DatabaseTree
from emq.runtime import errors, settings
from emq_trace import cluster_view
from support import emq_shell
from support.emq_shell import Shell


async def nodes(url: str) -> list[str]:
    async with cluster_view.opened(zookeeper.tree_of(settings.Settings(cluster=url)), url) as tree:
        return await tree.children("/")


@pytest.mark.parametrize("line", ["hosts", "plan"])
async def test_looking_at_a_cluster_that_nobody_joined_creates_no_node(
    line: str, zookeeper_server: servers.ZooKeeperServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emq_shell.enter(tmp_path, monkeypatch)
    name = f"reading-{os.getpid()}-{line}"
    monkeypatch.setenv("EMQ_CLUSTER", f"{zookeeper_server.url}/{name}")
    await asyncio.to_thread(Shell(), line)
    assert name not in await nodes(zookeeper_server.url)
    await nodes(f"{zookeeper_server.url}/{name}")  # as a host opens it
    assert name in await nodes(zookeeper_server.url)


async def test_looking_at_hosts_that_meet_in_a_database_creates_no_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emq_shell.enter(tmp_path, monkeypatch)
    with pytest.raises(errors.NoDatabase, match=r"no EMQ database at sqlite:.*emq\.db yet"):
        async with cluster_view.opened(DatabaseTree("sqlite:///emq.db", 5.0, create=False), "no database"):
            pass
    assert os.listdir() == []
