"""A process whose machine's clock is an hour wrong goes by the environment's time in all that it does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from emq import App, Environment
from emq.database import Database, tables
from emq.storage.lane_store import LaneAdd, LaneClaim, LaneSettle, LaneStore, LaneVerdict
from emq.storage.log_store import Put, Read
from emq.storage.message import Message, encode_retry
from emq.storage.opening import open_store
from emq_cli.commands import app
from support.manual_clock import ManualClock

HOUR_S = 3_600
URLS = ["redis_url", "postgres_url", "sqlite"]


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/s.db" if request.param == "sqlite" else str(request.getfixturevalue(request.param))


@pytest.fixture
def emq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs a command, in an environment whose time is an hour ahead of this machine's clock."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EMQ_STORE", f"sqlite:///{tmp_path}/emq.db")

    async def note() -> None:
        db = await Database.open(f"sqlite:///{tmp_path}/emq.db")
        now_us = time.time_ns() // 1000
        rows = {"time_us": now_us + HOUR_S * 10**6, "time_at_us": now_us}
        values = [{"environment": "online", "key": key, "value": value} for key, value in rows.items()]
        await db.run(lambda c: c.execute(sa.insert(tables.meta), values))
        await db.close()

    asyncio.run(note())

    def run(line: str) -> str:
        result = CliRunner().invoke(app, line.split())
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


def opened(work: Callable[[App], Any]) -> Any:
    async def run() -> Any:
        async with App() as made:
            return await work(made)

    return asyncio.run(run())


def test_spans_of_the_command_line_begin_at_the_environments_now(emq: Callable[..., str]) -> None:
    emq("topic create t --qps 10")
    emq("topic create fixed --qps 10 --kind fixed_time --slots 1")
    for line in ("publish t a --at 100s", "publish t b --delay 100s", "publish t c --every 60s --at 100s"):
        emq(line)
    emq("publish fixed d --at 100s")
    due_s = time.time() + HOUR_S + 100

    async def waits(made: App) -> list[float]:
        lane = await made.store.lanes.waiting("t/0")
        [member] = await made.store.sorted.waiting((await made.catalog.get("fixed")).slot(0), 0, 10)
        return [*(entry.due_ms / 1000 for entry in lane), member.score / 1000]

    found = opened(waits)
    assert len(found) == 4
    assert found == pytest.approx([due_s] * 4, abs=30)


def test_dead_letters_are_found_and_replayed_by_the_environments_time(emq: Callable[..., str]) -> None:
    emq("topic create t --qps 10")

    async def bury(made: App) -> None:
        m = Message("m", b"x", None, 1, None, 0, 16, 5, "HTTP 503")
        await made.store.lanes.add([LaneAdd("t/0", "m", encode_retry(m), 0, reason="HTTP 503")])

    opened(bury)
    assert '"m"' in emq("dead list t --since 5m --json")
    assert "1 dead letter" in emq("dead replay t")


async def dead_ms(lanes: LaneStore, group: str) -> list[int]:
    return [letter.dead_ms for letter in await lanes.dead(group)]


@pytest.mark.parametrize("url", URLS, indirect=True)
async def test_stores_stamp_dead_letters_by_the_clock_that_they_follow(url: str) -> None:
    clock, group = ManualClock(time.time() + HOUR_S), f"stamps-{time.time_ns()}/0"
    store = await open_store(url, Environment.ONLINE, clock)
    try:
        await store.lanes.add([LaneAdd(group, "a", b"x", 0, reason="damaged"), LaneAdd(group, "b", b"x", 0)])
        await store.lanes.claim([LaneClaim(group, 1, 1)], 1)
        await store.lanes.settle([LaneSettle(group, "b", LaneVerdict.DEAD, 1, body=b"x", reason="HTTP 503")])
        assert await dead_ms(store.lanes, group) == [int(clock.now() * 1000)] * 2
    finally:
        await store.close()


@pytest.mark.parametrize("url", URLS[:2], indirect=True)
async def test_a_process_an_hour_ahead_forgets_nobodys_wake_ups(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wake-ups that nobody takes for ten minutes are forgotten: by the server's clock."""
    queue = f"sleepers-{time.time_ns()}/0/0"
    store = await open_store(url, Environment.ONLINE)
    try:
        await swept(store)  # so that it is known to be alive
        await store.log.read([Read(queue, store.log.first_offset, 1, 1)])
        other = await open_store(url, Environment.ONLINE)
        await other.log.put([Put(queue, [b"x"])])
        await other.close()
        monkeypatch.setattr(time, "time", lambda: time.time_ns() / 1e9 + HOUR_S)
        ahead = await open_store(url, Environment.ONLINE)
        try:
            await swept(ahead)
        finally:
            await ahead.close()
        monkeypatch.undo()
        assert queue in await swept(store)
    finally:
        await store.close()


async def swept(store: Any) -> list[str]:
    """What the store's watcher would find that was woken, were it under way."""
    if hasattr(store, "_backend"):
        return list(await store._backend.run(lambda t: [row[0] for row in t.rows("woken_take")]))
    return list(await store._wakeups._sweep())
