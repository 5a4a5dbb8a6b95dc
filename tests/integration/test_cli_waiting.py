"""Hosts that are started before their servers are wait for them, say so, and obey."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

import emq_servers as servers
from emq.database import Database, host_stats
from emq_servers.server import free_port
from support.emq_processes import PATIENCE_S, Shell, line_with, until


@pytest.fixture
def emq(emq: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("EMQ_HOST_NAME", "h")
    Path("mine.py").write_text("import emq\napp = emq.App()\napp.handler('*')(lambda m: None)\n")
    return emq


@pytest.mark.parametrize("processes", [1, 2])
def test_hosts_that_start_before_their_store_wait_say_so_and_consume_when_it_is_there(
    emq: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, processes: int
) -> None:
    port = free_port()
    monkeypatch.setenv("EMQ_STORE", f"redis://127.0.0.1:{port}/0")
    monkeypatch.setenv("EMQ_DATABASE", "sqlite:///catalog.db")
    host = emq.start(f"host --app mine --processes {processes}")
    assert f"waiting for redis://127.0.0.1:{port}" in line_with(host, "waiting for")
    with servers.start_redis(port=port):
        emq.here("topic create t --qps 100")
        emq.here("publish t x x x")
        until(lambda: sum(emq.json("lag t")[0]["ready"].values()) == 0)
        host.send_signal(signal.SIGTERM)
        assert host.wait(PATIENCE_S) == 0


def test_a_host_that_waits_for_its_store_is_seen_and_ends_cleanly_by_sigterm(
    emq: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMQ_STORE", f"redis://127.0.0.1:{free_port()}/0")
    monkeypatch.setenv("EMQ_DATABASE", "sqlite:///catalog.db")
    host = emq.start("up --app mine")
    line_with(host, "waiting for")

    async def snapshots() -> list[tuple[str, str, int]]:
        database = await Database.open("sqlite:///catalog.db")
        found = await host_stats.load(database, "online")
        await database.close()
        return found

    until(lambda: len(asyncio.run(snapshots())) == 1)
    [(name, snapshot, _)] = asyncio.run(snapshots())
    assert name == "h"
    assert "cannot reach redis" in json.loads(snapshot)["store_unreachable"]
    host.send_signal(signal.SIGTERM)
    assert host.wait(PATIENCE_S) == 0
    line_with(host, "stopped while it waited")


def test_a_host_waits_for_a_database_that_starts_after_it(
    emq: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    port = free_port()
    url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    monkeypatch.setenv("EMQ_STORE", url)
    host = emq.start("up --app mine")
    line_with(host, "waiting for postgresql://")
    with servers.start_postgres(port=port):
        line_with(host, "consuming")
        host.send_signal(signal.SIGTERM)
        assert host.wait(PATIENCE_S) == 0
