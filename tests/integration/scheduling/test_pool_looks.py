"""A host goes on with a pool after a look at it has failed in a way that nobody thought of."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

import emq
from emq.offsets.sleep import put_to_sleep
from emq_scheduling import Limit, Pool, Resource, Run, Scheduling, Task, TaskType, topics
from emq_scheduling.records import snapshots
from support.waiting import until


def pool_of(kind: TaskType) -> Pool:
    limit = Limit("requests", 100, "second")
    return Pool("p", resources={"r": Resource(limits=(limit,), takes={"work": {}})}, types={"work": kind})


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
    async with app:
        await scheduling.pools.put(pool_of(TaskType()))
        with caplog.at_level(logging.ERROR, "emq_scheduling"):
            async with app.running():
                await scheduling.submit("p", "work", b"1")
                await until(lambda: failures < 0)
                await scheduling.submit("p", "work", b"2")
                await until(lambda: len(done) == 2)
    assert [record.message for record in caplog.records] == ["pool 'p': a look failed; trying again"] * 2


@pytest.mark.parametrize("fault", ["error", "crash"])
async def test_topics_follow_a_change_of_which_a_host_made_one_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    app = emq.App(f"sqlite:///{tmp_path}/emq.db")
    scheduling = Scheduling(app)
    adapt, breaks = topics.adapt, list[Exception]()

    @scheduling.performer("p")
    async def perform(task: Task, run: Run) -> None:
        return

    async def failing(*given: object) -> None:
        if breaks:
            raise breaks.pop()
        await adapt(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(topics, "adapt", failing)
    changed = pool_of(TaskType(max_attempts=17))
    async with app:
        await scheduling.pools.put(pool_of(TaskType()))
        await topics.ensure(app, pool_of(TaskType()), [("work", "")])
        before = (await app.catalog.get("p.work")).options.max_attempts
        if fault == "crash":  # of the host that was to follow
            await scheduling.pools.put(changed)
        async with app.running():
            if fault == "error":
                await until(lambda: "p" in scheduling._hosts and scheduling._hosts["p"].scheduler is not None)
                await asyncio.sleep(1.5)
                breaks.append(RuntimeError("planted"))
                await scheduling.pools.put(changed)
            async with asyncio.timeout(20):
                while (await app.catalog.get("p.work")).options.max_attempts == before:
                    await asyncio.sleep(0.05)


async def test_a_tenants_topic_that_sleeps_follows_a_change_and_wakes_with_its_next_task(tmp_path: Path) -> None:
    app = emq.App(f"sqlite:///{tmp_path}/emq.db")
    scheduling = Scheduling(app)
    done: list[str] = []

    @scheduling.performer("p")
    async def perform(task: Task, run: Run) -> None:
        done.append(task.tenant)

    async with app:
        await scheduling.pools.put(pool_of(TaskType()))
        await topics.ensure(app, pool_of(TaskType()), [("work", ""), ("work", "acme")])
        made = await app.catalog.get("p.work.acme")
        assert (made.options.idle_s, (await app.catalog.get("p.work")).options.idle_s) == (topics.TENANT_IDLE_S, None)
        assert await put_to_sleep(app.store, app.catalog, app.checkpoints, [made], 0) == {"p.work.acme"}
        await scheduling.pools.put(pool_of(TaskType(max_attempts=17)))
        async with app.running():
            wanted = topics.of_tasks(pool_of(TaskType(max_attempts=17)), "work", "acme").options.max_attempts

            async def follows() -> bool:
                return (await app.catalog.get("p.work.acme")).options.max_attempts == wanted

            async with asyncio.timeout(60):
                while not await follows():
                    await asyncio.sleep(0.05)
            assert (await app.catalog.get("p.work.acme")).asleep_s
            await scheduling.submit("p", "work", b"1", tenant="acme")
            await until(lambda: done == ["acme"])
            assert not (await app.catalog.get("p.work.acme")).asleep_s
