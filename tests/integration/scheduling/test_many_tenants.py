"""A pool costs what waits, not the tenants that exist; its first task starts while the host still reads the rest."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

import emq
from emq.topics import topic_changes
from emq.topics.catalog_reading import CatalogReading
from emq.topics.topic_changes import Changes, Place
from emq_scheduling import administering, topics
from emq_scheduling.hosting.attempts import Run
from emq_scheduling.model import Limit, Pool, Resource, TaskType
from emq_scheduling.scheduling import Scheduling
from emq_scheduling.submission import Receipt, Submission
from emq_scheduling.tasks import Task
from support import meeting
from support.waiting import until

PAGE, TENANTS = 10, 60
RATE = 2_000.0


@pytest.fixture(params=["sqlite", "redis", "postgresql"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> meeting.Meeting:
    if request.param == "sqlite":
        return meeting.Meeting(f"sqlite:///{tmp_path}/emq.db", f"sqlite:///{tmp_path}/emq.db")
    if request.param == "redis":
        return meeting.on_redis(request.getfixturevalue("redis_url"), tmp_path)
    return meeting.on_postgres(request.getfixturevalue("fresh_postgres"))


def performing(made: meeting.Meeting, name: str) -> tuple[emq.App, Scheduling, Counter[str]]:
    """Return an app, its pools, and the starts by tenant."""
    app = made.app("a", "")
    scheduling, started = Scheduling(app), Counter[str]()

    @scheduling.performer(name)
    async def perform(task: Task, run: Run) -> None:
        started[task.tenant] += 1

    return app, scheduling, started


def pool_of(name: str) -> Pool:
    limit = Limit("requests", RATE, "second")
    return Pool(name, resources={"r": Resource(limits=(limit,), takes={"t": {}})}, types={"t": TaskType()})


async def test_the_first_task_starts_before_the_host_knows_all_tenants(
    made: meeting.Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_changes, "PAGE", PAGE)
    more, may_go_on = CatalogReading.more, asyncio.Event()

    async def waits(self: CatalogReading, version: int, after: Place) -> tuple[Changes, Place | None]:
        await may_go_on.wait()
        return await more(self, version, after)

    monkeypatch.setattr(CatalogReading, "more", waits)
    [name] = made.topics(1)
    name = name.replace(".", "-")
    app, scheduling, started = performing(made, name)
    async with asyncio.timeout(60), app:
        await scheduling.pools.put(pool_of(name))
        tasks = [Submission("t", b"x", tenant=f"tenant-{i % TENANTS}") for i in range(2 * TENANTS)]
        assert all(isinstance(outcome, Receipt) for outcome in await scheduling.submit_many(name, tasks))
        async with app.running():
            await until(lambda: bool(started), 10)
            assert app.host is not None
            assert len(app.host.ownership.topics) < TENANTS / 2
            may_go_on.set()
            await until(lambda: started.total() == 2 * TENANTS, 30)
            assert set(started.values()) == {2}, "each task once"
            planned = app.host.membership._inner.given()
            assert [each for each in planned if each.startswith(name)] == [f"{name}.*/bucket/0"]
        rows = await app.catalog.list(f"{name}.t.*")
        assert len(rows) == TENANTS
        assert {(row.groups, row.own, row.family) for row in rows} == {(1, (), f"{name}.t.*")}
        assert await administering.delete(app, name) == 0
        assert await app.catalog.list(f"{name}.*") == []
        assert await app.families.matching(f"{name}.*") == []


async def test_a_fast_tenant_has_more_groups_for_as_long_as_it_is_fast(
    made: meeting.Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    [name] = made.topics(1)
    name = name.replace(".", "-")
    app, scheduling, started = performing(made, name)
    async with app:
        await scheduling.pools.put(pool_of(name))
        await scheduling.submit_many(name, [Submission("t", b"x", tenant="fast")] * 3_000)
        await scheduling.submit(name, "t", b"x", tenant="slow")
        async with app.running():

            async def groups() -> dict[str, tuple[int, tuple[str, ...]]]:
                return {row.name[-4:]: (row.active_groups, row.own) for row in await app.catalog.list(f"{name}.t.*")}

            async def is_fast() -> bool:
                return (await groups())["fast"] == (7, ("qps",))

            await until(is_fast, 10)
            assert (await groups())["slow"] == (1, ())
            await until(lambda: started["fast"] == 3_000, 30)
            monkeypatch.setattr(topics, "FAST_IDLE_S", 0.5)

            async def is_as_before() -> bool:
                return (await groups())["fast"] == (1, ())

            await until(is_as_before, 10)
