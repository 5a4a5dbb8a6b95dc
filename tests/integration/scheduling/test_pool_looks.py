"""A host goes on with a pool after a look at it has failed in a way that nobody thought of."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import emq
from emq_scheduling import Limit, Pool, Resource, Run, Scheduling, Task, TaskType
from emq_scheduling.records import snapshots
from support.meeting import until


async def test_a_failed_look_is_logged_and_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = emq.App(f"sqlite:///{tmp_path}/emq.db")
    scheduling = Scheduling(app)
    done: list[str] = []

    @scheduling.performer("p")
    async def perform(task: Task, run: Run) -> None:
        done.append(task.id)

    failures = 2
    save = snapshots.Snapshots.save

    async def failing(self: snapshots.Snapshots, *args: object) -> None:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise RuntimeError("planted")
        await save(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(snapshots.Snapshots, "save", failing)
    limit = Limit("requests", 100, "second")
    pool = Pool("p", resources={"r": Resource(limits=(limit,), takes={"work": {}})}, types={"work": TaskType()})
    async with app:
        await scheduling.pools.put(pool)
        with caplog.at_level(logging.ERROR, "emq_scheduling"):
            async with app.running():
                await scheduling.submit("p", "work", b"1")
                await until(lambda: failures < 0)
                await scheduling.submit("p", "work", b"2")
                await until(lambda: len(done) == 2)
    assert [record.message for record in caplog.records] == ["pool 'p': a look failed; trying again"] * 2
