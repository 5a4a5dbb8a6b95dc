"""What performers and pools do to the scheduler of one host: nothing runs twice, nothing is stuck."""

from __future__ import annotations

import asyncio
import datetime
import random

import msgspec
import pytest

from emq.runtime import errors
from emq.storage.message import Message
from emq_scheduling.choice.health import Health
from emq_scheduling.hosting.attempts import Dropped, Lost, NotNow, Run
from emq_scheduling.hosting.viewing import Viewer
from emq_scheduling.model import Hours, Limit, Period, Pool, Resource, TaskType
from emq_scheduling.outcomes import Overloaded, ResourceFailed
from emq_scheduling.records.cancels import CLOCKS_US
from emq_scheduling.tasks import NOT_NOW, Task, task_of
from support.scheduler_bench import SchedulerBench, rest

EVENING = datetime.datetime(2026, 3, 2, 20, 59, tzinfo=datetime.UTC).timestamp()


def pool_of(per_s: float = 10, **of_type: object) -> Pool:
    limit = Limit("requests", per_s, "second")
    resources = {"r": Resource(limits=(limit,), takes={"work": {}}, adapts=False)}
    return Pool("p", resources=resources, types={"work": TaskType(**of_type)})  # type: ignore[arg-type]


def task(number: int, id_: str | None = None, attempt: int = 1) -> Task:
    return Task(id_ or f"t{number}", "p", "work", "", None, b"", attempt, 0)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Odd(BaseException):
    pass


@pytest.mark.parametrize("raised", [Mute(), Odd("odd"), GeneratorExit(), SystemExit(3), asyncio.CancelledError()])
async def test_whatever_a_performer_raises_is_a_failed_attempt(raised: BaseException) -> None:
    async def perform(one: Task, run: Run) -> None:
        raise raised

    async with SchedulerBench(pool_of()).working() as bench:
        found = await asyncio.gather(bench.scheduler.perform(task(1), perform), return_exceptions=True)
        assert isinstance(found[0], Exception)
        [ended] = bench.ended
        assert ended.outcome == "failed"
        assert type(raised).__name__ in (ended.error or "")
        assert not bench.scheduler.running


async def test_a_performer_gets_the_attributes_of_the_resource_and_its_parents() -> None:
    resources = {
        "provider": Resource(attributes={"url": "u", "key": "common"}),
        "account": Resource(parent="provider", attributes={"key": "own"}),
        "r": Resource(parent="account", takes={"work": {}}, attributes={"name": "r1"}),
    }
    pool = Pool("p", resources=resources, types={"work": TaskType()})
    found = list[dict[str, str]]()

    async def perform(one: Task, run: Run) -> None:
        found.append(run.attributes)

    async with SchedulerBench(pool).working() as bench:
        await bench.scheduler.perform(task(1), perform)
    assert found == [{"url": "u", "key": "own", "name": "r1"}]


async def test_a_task_that_its_host_stops_is_not_a_failed_attempt() -> None:
    async def perform(one: Task, run: Run) -> None:
        await asyncio.sleep(100)

    async with SchedulerBench(pool_of()).working() as bench:
        running = asyncio.create_task(bench.scheduler.perform(task(1), perform))
        await rest()
        bench.is_held = False
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert [ended.outcome for ended in bench.ended] == ["stopped"]


async def test_a_performer_that_cancels_its_own_task_has_failed() -> None:
    async def perform(one: Task, run: Run) -> None:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        await asyncio.sleep(100)

    async with SchedulerBench(pool_of()).working() as bench:
        running = asyncio.create_task(bench.scheduler.perform(task(1), perform))
        with pytest.raises(RuntimeError, match="the performer raised CancelledError"):
            await running
        assert [ended.outcome for ended in bench.ended] == ["failed"]


@pytest.mark.parametrize("ends", ["returns", "fails"])
async def test_the_end_of_a_call_after_the_hosts_lease_is_refused(ends: str) -> None:
    async def perform(one: Task, run: Run) -> str:
        bench.clock.advance(5.0)  # as while the process is stopped
        bench.is_held = False
        if ends == "fails":
            raise ValueError("the line was busy")
        return "done"

    async with SchedulerBench(pool_of()).working() as bench:
        with pytest.raises(Lost):
            await bench.scheduler.perform(task(1), perform)
        [ended] = bench.ended
        assert (ended.outcome, ended.result, ended.at) == ("lost", None, ended.placement.at)


async def test_calls_are_cancelled_at_the_end_of_the_hosts_lease_and_may_run_again_under_the_next_one() -> None:
    took: list[str] = []

    async def perform(one: Task, run: Run) -> str:
        try:
            await asyncio.sleep(0.0 if len(took) == 1 else 30.0)
        finally:
            took.append(one.id)
        return "done"

    async with SchedulerBench(pool_of(timeout_s=0.4)).working() as bench:
        running = asyncio.create_task(bench.scheduler.perform(task(1), perform))
        await rest()
        bench.is_held = False
        with pytest.raises(Lost):
            await asyncio.wait_for(running, 0.3)
        bench.is_held = True
        assert await bench.scheduler.perform(task(1), perform) == "done"
        with pytest.raises(TimeoutError):  # of its type: a failed attempt as before
            await bench.scheduler.perform(task(2), perform)
        assert [ended.outcome for ended in bench.ended] == ["lost", "done", "failed"]


async def test_what_a_performer_tells_after_its_end_changes_nothing() -> None:
    runs: list[Run] = []

    async def perform(one: Task, run: Run) -> None:
        runs.append(run)
        run.used(requests=2)

    async with SchedulerBench(pool_of()).working() as bench:
        await bench.scheduler.perform(task(1), perform)
        runs[0].used(requests=500)
        assert bench.ended[0].actual == {"requests": 2}


async def test_a_task_that_comes_after_its_id_was_cancelled_is_another_one() -> None:
    async def perform(one: Task, run: Run) -> str:
        return "done"

    async with SchedulerBench(pool_of()).working() as bench:
        one = task(1)
        bench.cancels.add({one.id: one.submitted_us - CLOCKS_US - 1})
        assert await bench.scheduler.perform(one, perform) == "done"
        bench.cancels.add({one.id: one.submitted_us})
        with pytest.raises(Dropped):
            await bench.scheduler.perform(one, perform)


async def test_tasks_with_the_same_id_are_all_given_back_or_cancelled() -> None:
    async def perform(one: Task, run: Run) -> None:
        raise AssertionError("there is no room")

    async with SchedulerBench(pool_of(per_s=0)).working() as bench:
        waiting = [asyncio.create_task(bench.scheduler.perform(task(i, "same"), perform)) for i in range(3)]
        await rest()
        bench.scheduler.close()
        await rest()
        assert all(isinstance(one.exception(), errors.GiveBack) for one in waiting)


async def test_a_task_whose_hours_end_while_it_waits_waits_for_the_next() -> None:
    begun: list[str] = []

    async def perform(one: Task, run: Run) -> None:
        begun.append(one.id)

    pool = pool_of(per_s=1, hours=(Hours("09:00", "21:00"),))
    async with SchedulerBench(pool, EVENING).working() as bench:
        waiting = [asyncio.create_task(bench.scheduler.perform(task(i), perform)) for i in range(3)]
        await rest()
        assert begun == ["t0"]
        bench.clock.advance(60.0)
        bench.scheduler.sweep()
        await rest()
        assert begun == ["t0"]
        for one in waiting[1:]:
            found = one.exception()
            assert isinstance(found, NotNow)
            assert found.after_s == pytest.approx(12 * 3600 - 1, abs=2)


@pytest.mark.parametrize("notices", ["sweep", "start"])
async def test_a_task_that_cannot_be_checked_keeps_no_other_task_and_no_unit(notices: str) -> None:
    """A type gets hours while a task of it waits whose zone this host does not know."""

    async def perform(one: Task, run: Run) -> str:
        return "done"

    async with SchedulerBench(pool_of(per_s=1), now=EVENING - 10.0).working() as bench:
        scheduler = bench.scheduler
        await scheduler.perform(task(0), perform)
        waiting = [
            scheduler.perform(each, perform) for each in (msgspec.structs.replace(task(1), zone="Mars/Base"), task(2))
        ]
        outcomes = asyncio.gather(*waiting, return_exceptions=True)
        await rest()
        scheduler.follow(pool_of(per_s=1, hours=(Hours("09:00", "21:00"),)), 2)
        if notices == "sweep":
            scheduler.sweep()
        for _ in range(3):
            bench.clock.advance(1.0)
            scheduler.sweep() if notices == "sweep" else scheduler.soon()
            await rest()
        bad, good = await asyncio.wait_for(outcomes, 1)
        assert isinstance(bad, KeyError)
        assert good == "done"
        assert not scheduler.running


def test_only_attempts_that_ran_count_also_when_older_reasons_are_forgotten() -> None:
    def attempt(number: int, reasons: list[str]) -> int:
        message = Message("m", "p.work", b"", attempt=number, history=[(0, reason) for reason in reasons])
        return task_of(message, None).attempt

    waited = f"{NOT_NOW}its hours are over"
    assert attempt(1, []) == 1
    assert attempt(4, ["boom"] * 3) == 4
    assert attempt(4, ["boom", waited, waited]) == 2
    assert attempt(40, [waited] * 16) == 1
    assert attempt(40, ["boom"] * 16) == 40


# ------------------------------------------------------------------------------------------- resources out of order


def unwell(resource: Resource) -> Pool:
    return Pool("p", resources={"r": resource}, types={"work": TaskType()})


@pytest.mark.parametrize("per", ["second", "in_flight"])
async def test_a_resource_that_answers_a_probe_again_starts_what_waited(per: Period) -> None:
    gate, begun = asyncio.Event(), list[str]()

    async def perform(one: Task, run: Run) -> None:
        begun.append(one.id)
        await gate.wait()

    limits = (Limit("requests", 100.0, per),)
    async with SchedulerBench(unwell(Resource(limits=limits, takes={"work": {}})), 1_000.1).working() as bench:
        scheduler, health = bench.scheduler, Health(random.Random(1))
        scheduler.healths.known["r"] = health
        now = bench.clock.now()
        health.broken(now, now, "nobody answers")
        scheduler.healths.apply("r", health, now)
        bench.clock.advance(10.0)
        viewer = Viewer(scheduler, "host-1", now)
        tasks = [asyncio.create_task(scheduler.perform(task(number), perform)) for number in range(5)]
        await rest()
        assert begun == ["t0"]  # the probe; the others find no room, and nothing says when there will be some
        now = bench.clock.now()
        health.succeeded(now, now + 0.01)
        scheduler.healths.apply("r", health, now + 0.01)
        await rest()
        assert begun == [f"t{number}" for number in range(5)]
        view = viewer.look({}, now + 0.01).resources["r"]
        assert (view.factor, view.slowed) == (0.1, "it answers again; before: out of order: nobody answers")
        gate.set()
        await asyncio.gather(*tasks)


async def test_a_resource_that_no_longer_adapts_gets_all_of_its_limits_at_once() -> None:
    async def broken(_: Task, __: Run) -> None:
        raise ResourceFailed("no route")

    resource = Resource(limits=(Limit("requests", 100.0, "second"),), takes={"work": {}})
    async with SchedulerBench(unwell(resource), 1_000.1).working() as bench:
        scheduler, now = bench.scheduler, bench.clock.now()
        waiting = asyncio.create_task(scheduler.perform(task(1), broken))
        await rest()
        assert scheduler.healths.closed(now) == {"r": "out of order: no route"}
        scheduler.follow(unwell(msgspec.structs.replace(resource, adapts=False)), 2)
        assert scheduler.healths.closed(now) == {}
        assert scheduler.accounts.factor("r") == 1
        with pytest.raises(errors.Retry, match="no route") as found:
            await asyncio.wait_for(waiting, 5)
        assert not isinstance(found.value, NotNow), "the attempt counts, since nothing keeps the task from the resource"


@pytest.mark.parametrize("raised", [Overloaded("429", after_s=7.0), ResourceFailed("no route")])
async def test_what_a_resource_that_does_not_adapt_tells_is_a_failed_attempt(raised: Exception) -> None:
    calls: list[int] = []

    async def perform(one: Task, run: Run) -> None:
        calls.append(one.attempt)
        raise raised

    async with SchedulerBench(pool_of(max_attempts=2)).working() as bench:
        for attempt in (1, 2):
            with pytest.raises(errors.Retry) as found:
                await bench.scheduler.perform(task(1, attempt=attempt), perform)
            assert found.value.after_s == getattr(raised, "after_s", None)
        assert calls == [1, 2]
        assert [ended.outcome for ended in bench.ended] == ["failed", "dead"]


async def test_a_task_that_resources_send_away_comes_back_later_each_time() -> None:
    calls: list[str] = []

    async def perform(one: Task, run: Run) -> None:
        calls.append(run.resource)
        raise Overloaded("429")

    limits = (Limit("requests", 100.0, "second"),)
    resources = {name: Resource(limits=limits, takes={"work": {}}) for name in "ab"}
    pool = Pool("p", resources=resources, types={"work": TaskType()})
    async with SchedulerBench(pool, 1_000.1).working() as bench:
        waits = []
        for returned in (0, 1, 3, 100):
            with pytest.raises(NotNow, match="overloaded or out of order: a") as found:
                await bench.scheduler.perform(task(1), perform, returned)
            waits.append(found.value.after_s)
            bench.clock.advance(1.0)
        assert waits == [1.0, 2.0, 8.0, 60.0]
        assert len(calls) <= 4 * 3


async def test_a_resource_without_limits_goes_on_when_the_tasks_end_that_its_health_allows() -> None:
    begun: list[str] = []

    async def perform(one: Task, run: Run) -> None:
        begun.append(one.id)
        await asyncio.sleep(0)

    async with SchedulerBench(unwell(Resource(takes={"work": {}})), 1_000.1).working() as bench:
        scheduler, now = bench.scheduler, bench.clock.now()
        health = scheduler.healths.known["r"] = Health(random.Random(1))
        health.too_much(now, now, "429")
        scheduler.healths.apply("r", health, now)
        tasks = [asyncio.create_task(scheduler.perform(task(number), perform)) for number in range(5)]
        for _ in range(5):
            await rest()
        assert len(begun) == 5, "one after another"
        await asyncio.gather(*tasks)
