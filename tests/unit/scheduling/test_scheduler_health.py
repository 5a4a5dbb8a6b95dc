"""A scheduler whose resource has been out of order uses it again."""

from __future__ import annotations

import asyncio
import random

import pytest

from emq.runtime.clock import ManualClock
from emq_scheduling.choice.health import Health
from emq_scheduling.hosting.attempts import Ended, NotNow, Run
from emq_scheduling.hosting.scheduler import Scheduler
from emq_scheduling.hosting.viewing import Viewer
from emq_scheduling.model import Limit, Pool, Resource, TaskType
from emq_scheduling.outcomes import ResourceFailed
from emq_scheduling.tasks import Task


async def nothing(_: Ended) -> None:
    pass


def task(number: int) -> Task:
    return Task(f"t{number}", "p", "work", "", None, b"", 1, 0)


@pytest.mark.parametrize("per", ["second", "in_flight"])
async def test_a_resource_that_answers_a_probe_again_starts_what_waited(per: str) -> None:
    limit = Limit("requests", 100.0, per)  # type: ignore[arg-type]
    pool = Pool("p", resources={"r": Resource(limits=(limit,), takes={"work": {}})}, types={"work": TaskType()})
    clock = ManualClock(1_000.1)
    scheduler = Scheduler(pool, clock, lambda: True, nothing)
    clock.advance(1.0)
    health = Health(random.Random(1))
    now = clock.now()
    health.broken(now, now, "nobody answers")
    scheduler.apply("r", health, now)
    clock.advance(10.0)
    gate = asyncio.Event()
    begun: list[str] = []
    viewer = Viewer(scheduler, "host-1", now)
    scheduler.healths["r"] = health

    async def perform(one: Task, run: Run) -> None:
        begun.append(one.id)
        await gate.wait()

    tasks = [asyncio.create_task(scheduler.perform(task(number), perform)) for number in range(5)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert begun == ["t0"]  # the probe; the others find no room, and nothing says when there will be some
    now = clock.now()
    health.succeeded(now, now + 0.01)
    scheduler.apply("r", health, now + 0.01)
    for _ in range(10):
        await asyncio.sleep(0)
    assert begun == [f"t{number}" for number in range(5)]
    view = viewer.look({}, now + 0.01).resources["r"]
    assert (view.factor, view.slowed) == (0.1, "it answers again; before: out of order: nobody answers")
    gate.set()
    await asyncio.gather(*tasks)
    scheduler.close()


async def test_a_resource_that_no_longer_adapts_gets_all_of_its_limits_at_once() -> None:
    limits = (Limit("requests", 100.0, "second"),)
    pool = Pool("p", resources={"r": Resource(limits=limits, takes={"work": {}})}, types={"work": TaskType()})
    clock = ManualClock(1_000.1)
    scheduler = Scheduler(pool, clock, lambda: True, nothing)
    clock.advance(1.0)

    async def broken(_: Task, __: Run) -> None:
        raise ResourceFailed("no route")

    waiting = asyncio.create_task(scheduler.perform(task(1), broken))
    for _ in range(10):
        await asyncio.sleep(0)
    assert scheduler.closed(clock.now()) == {"r": "out of order: no route"}
    resource = Resource(limits=limits, takes={"work": {}}, adapts=False)
    scheduler.follow(Pool("p", resources={"r": resource}, types=pool.types), 2)
    assert scheduler.closed(clock.now()) == {}
    assert scheduler.accounts.factor("r") == 1
    with pytest.raises(NotNow):  # it waited, and tried again and again
        await asyncio.wait_for(waiting, 5)
    scheduler.close()


async def test_a_resource_without_limits_goes_on_when_the_tasks_end_that_its_health_allows() -> None:
    pool = Pool("p", resources={"r": Resource(takes={"work": {}})}, types={"work": TaskType()})
    clock = ManualClock(1_000.1)
    scheduler = Scheduler(pool, clock, lambda: True, nothing)
    clock.advance(1.0)
    health = scheduler.healths["r"] = Health(random.Random(1))
    now = clock.now()
    health.too_much(now, now, "429")
    scheduler.apply("r", health, now)
    begun: list[str] = []

    async def perform(one: Task, run: Run) -> None:
        begun.append(one.id)
        await asyncio.sleep(0)

    tasks = [asyncio.create_task(scheduler.perform(task(number), perform)) for number in range(5)]
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(begun) == 5, "one after another"
    await asyncio.gather(*tasks)
    scheduler.close()
