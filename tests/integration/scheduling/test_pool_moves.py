"""Pools whose owner changes, loses its lease, its records or the pool, or fails: limits hold, the pool goes on."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import msgspec
import pytest

import emq
from emq.database import Database
from emq.offsets.sleep import put_to_sleep
from emq.runtime import errors
from emq.topics.model import Topic
from emq_scheduling import administering, topics
from emq_scheduling.hosting.attempts import Run
from emq_scheduling.limits.usage_keeper import UsageTable
from emq_scheduling.model import Limit, Pool, Resource, TaskType
from emq_scheduling.pools import editing
from emq_scheduling.records import snapshots
from emq_scheduling.scheduling import Scheduling
from emq_scheduling.submission import Submission
from emq_scheduling.tasks import Task
from support import meeting
from support.pool_hosts import PoolHosts, submitted
from support.waiting import until

POOL = "jobs"


def pool_of(*limits: Limit) -> Pool:
    return Pool(POOL, resources={"r": Resource(limits=limits, takes={"job": {}})}, types={"job": TaskType()})


@pytest.fixture
def made(fresh_postgres: str) -> meeting.Meeting:
    return meeting.on_postgres(fresh_postgres)


def tasks(count: int) -> list[Submission]:
    return [Submission("job", b"", f"tenant-{i % 5}") for i in range(count)]


@pytest.mark.parametrize(("took_s", "drain_s"), [(2.0, 10.0), (4.0, 1.5)])
async def test_a_limit_in_flight_holds_while_the_pool_moves(
    made: meeting.Meeting, took_s: float, drain_s: float
) -> None:
    hosts = PoolHosts(made, POOL, took_s)
    ran = hosts.ran
    async with hosts.app("a", drain_s) as (a, scheduling), hosts.app("b", drain_s) as (b, _):
        await scheduling.pools.put(pool_of(Limit("slots", 4, "in_flight")))
        sent = await submitted(scheduling, POOL, tasks(16))
        async with a.running():
            await until(lambda: ran.running["a"] == 4)
            async with b.running():
                a.stop()
                await until(lambda: set(ran.done) >= set(sent), 60)
    assert ran.most_running == 4
    assert ran.hosts["b"] >= 4
    if took_s < drain_s:
        assert len(ran.began) == len(sent), "what ran has ended where it began"


async def test_a_lease_that_lapses_for_a_moment_does_not_let_more_run(made: meeting.Meeting) -> None:
    hosts = PoolHosts(made, POOL, 4.0)
    ran = hosts.ran
    async with hosts.app("a", drain_s=0.6) as (a, scheduling):
        await scheduling.pools.put(pool_of(Limit("slots", 4, "in_flight")))
        async with a.running() as host:
            await submitted(scheduling, POOL, tasks(12))
            await until(lambda: ran.running["a"] == 4)
            lease = host.membership.lease
            sure = lease._sure_until
            lease.sure(0.0)  # as after a jump of the clock
            await asyncio.sleep(1.8)
            lease.sure(sure)
            await until(lambda: len(ran.done) == 12, 30)
    assert ran.most_running == 4
    assert len(ran.began) == 12, "nothing was cancelled"


async def test_a_pool_that_leaves_its_topics_behind_is_let_go_of(
    made: meeting.Meeting, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    hosts = PoolHosts(made, POOL, 1.5)
    ran = hosts.ran
    async with hosts.app("a") as (a, scheduling):
        await scheduling.pools.put(pool_of(Limit("slots", 2, "in_flight"), Limit("jobs", 4, "day")))
        async with a.running():
            sent = await submitted(scheduling, POOL, tasks(8))
            await until(lambda: len(ran.began) == 2)
            await scheduling.pools.delete(POOL)
            await administering.forget(a, POOL)
            await until(lambda: "was deleted" in caplog.text)
            await asyncio.sleep(3.0)
            assert len(ran.began) == len(ran.done) == 2, "what ran has ended, and nothing else began"
            assert await scheduling.snapshot(POOL) is None
            assert caplog.text.count("was deleted") == 1
            await scheduling.pools.put(pool_of(Limit("slots", 2, "in_flight"), Limit("jobs", 6, "day")))
            await until(lambda: set(ran.done) >= set(sent))


async def test_a_pool_that_is_deleted_with_its_tasks_starts_none_of_them(made: meeting.Meeting) -> None:
    hosts = PoolHosts(made, POOL, 0.2)
    ran = hosts.ran
    async with hosts.app("a") as (a, scheduling):
        await scheduling.pools.put(pool_of(Limit("slots", 1, "in_flight")))
        async with a.running():
            await submitted(scheduling, POOL, tasks(100))
            await until(lambda: len(ran.done) >= 2)
            assert await administering.delete(a, POOL, force=True) > 50
            await asyncio.sleep(2.5)
            began = len(ran.began)
            await asyncio.sleep(1.0)
            assert len(ran.began) == began
            assert await scheduling.snapshot(POOL) is None
            with pytest.raises(errors.UnknownPool):
                await scheduling.submit(POOL, "job", b"")
            await scheduling.pools.put(pool_of(Limit("slots", 1, "in_flight")))
            new = await submitted(scheduling, POOL, tasks(3))
            await until(lambda: set(ran.done) >= set(new))


async def test_a_pool_whose_records_of_use_are_gone_goes_on(made: meeting.Meeting) -> None:
    hosts = PoolHosts(made, POOL, 0.01)
    ran = hosts.ran
    async with hosts.app("a") as (a, scheduling):
        await scheduling.pools.put(pool_of(Limit("jobs", 1_000, "minute")))
        async with a.running():
            await submitted(scheduling, POOL, tasks(20))
            await until(lambda: len(ran.done) == 20)
            await UsageTable(a.database, "online").drop(POOL)
            sent = await submitted(scheduling, POOL, tasks(300))
            await until(lambda: set(ran.done) >= set(sent))


async def test_no_limit_is_exceeded_while_two_hosts_take_turns(made: meeting.Meeting) -> None:
    hosts = PoolHosts(made, POOL, 0.2)
    ran, turns = hosts.ran, 0
    rates = Limit("jobs", 20, "second"), Limit("jobs", 1200, "minute"), Limit("jobs", 200, "day")
    async with hosts.app("a") as (a, scheduling), hosts.app("b") as (b, _):
        await scheduling.pools.put(pool_of(*rates, Limit("slots", 8, "in_flight")))
        await submitted(scheduling, POOL, tasks(250))
        while len(ran.began) < 200 and turns < 40:
            async with (a, b)[turns % 2].running():
                await asyncio.sleep(3.0)
            turns += 1
        async with (a, b)[turns % 2].running():
            await asyncio.sleep(3.0)
    assert turns >= 2
    assert len(ran.began) == 200, "the quota of the day, of which the turns lost nothing"
    assert len(set(ran.began)) == len(ran.began), "a host that stops lets its tasks end"
    assert ran.most("r") <= 20
    assert ran.most_running <= 8


async def test_a_pool_goes_on_and_moves_after_the_databases_clock_was_set_back(
    made: meeting.Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts, back_us = PoolHosts(made, POOL, 0.05), 0
    ran, clock_us = hosts.ran, Database.clock_us
    monkeypatch.setattr(Database, "clock_us", lambda self, connection: clock_us(self, connection) - back_us)
    limits = Limit("jobs", 20, "second"), Limit("jobs", 1_000, "minute"), Limit("slots", 8, "in_flight")
    kind = TaskType(ttl_s=30.0, longest_wait_s=20.0)
    pool = Pool(POOL, resources={"r": Resource(limits=limits, takes={"job": {}})}, types={"job": kind})
    async with hosts.app("a") as (a, scheduling), hosts.app("b") as (b, other):
        await scheduling.pools.put(pool)
        async with a.running():
            sent = await submitted(other, POOL, tasks(20))
            await until(lambda: set(ran.done) >= set(sent))
            back_us = 3_600_000_000
            await asyncio.sleep(2.5)  # the hosts ask for the time every 2 s
            sent = await submitted(other, POOL, tasks(20))
            await until(lambda: set(ran.done) >= set(sent), 10)
            await scheduling.pools.put(msgspec.structs.replace(pool, zone="Europe/Paris"))
            async with b.running():
                a.stop()
                await until(lambda: b.owns(topics.root_name(POOL)), 20)
                sent = await submitted(other, POOL, tasks(20))
                await until(lambda: set(ran.done) >= set(sent), 20)
                assert ran.hosts["b"] == 20
    async with hosts.app("c") as (c, scheduling), c.running():
        sent = await submitted(scheduling, POOL, tasks(20))
        await until(lambda: set(ran.done) >= set(sent), 20)
        await scheduling.pools.change(POOL, lambda found: editing.changed(found, "resource", "r", ["paused=true"]))
        await asyncio.sleep(2.0)
        [waiting] = await submitted(scheduling, POOL, tasks(1))
        await scheduling.cancel(POOL, waiting)
        assert (await scheduling.result(POOL, waiting, timeout_s=10)).state == "cancelled"
    assert ran.most("r") <= 20


# -------------------------------------------------------------------------------------------- looks at a pool that fail


def working(kind: TaskType) -> Pool:
    limit = Limit("requests", 100, "second")
    return Pool("p", resources={"r": Resource(limits=(limit,), takes={"work": {}})}, types={"work": kind})


def performing(tmp_path: Path) -> tuple[emq.App, Scheduling, list[Task]]:
    """Return an app, its pools, and the tasks of pool "p" that it has done."""
    app = emq.App(f"sqlite:///{tmp_path}/emq.db")
    scheduling = Scheduling(app)
    done: list[Task] = []

    @scheduling.performer("p")
    async def perform(task: Task, run: Run) -> None:
        done.append(task)

    return app, scheduling, done


async def test_a_failed_look_is_logged_and_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app, scheduling, done = performing(tmp_path)
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
        await scheduling.pools.put(working(TaskType()))
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
    app, scheduling, _ = performing(tmp_path)
    adapt, breaks = topics.adapt, list[Exception]()

    async def failing(*given: object) -> None:
        if breaks:
            raise breaks.pop()
        await adapt(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(topics, "adapt", failing)
    changed = working(TaskType(max_attempts=17))
    async with app:
        await scheduling.pools.put(working(TaskType()))
        await topics.ensure(app, working(TaskType()))
        before = (await app.catalog.get("p.work")).options.max_attempts
        if fault == "crash":  # of the host that was to follow
            await scheduling.pools.put(changed)
        async with app.running():
            if fault == "error":
                await until(lambda: "p" in scheduling._hosts and scheduling._hosts["p"].scheduler is not None)
                await asyncio.sleep(1.5)
                breaks.append(RuntimeError("planted"))
                await scheduling.pools.put(changed)

            async def follows() -> bool:
                return (await app.catalog.get("p.work")).options.max_attempts != before

            await until(follows, step_s=0.05)


async def test_a_tenants_topic_sleeps_without_a_trace_and_wakes_as_the_pool_is_then(tmp_path: Path) -> None:
    app, scheduling, done = performing(tmp_path)
    async with app:
        await scheduling.pools.put(working(TaskType()))
        await topics.ensure(app, working(TaskType()))
        made = (await app.catalog.families.make(["p.work.acme"])).found["p.work.acme"]
        assert isinstance(made, Topic)
        assert (made.options.idle_s, (await app.catalog.get("p.work")).options.idle_s) == (topics.TENANT_IDLE_S, None)
        assert await put_to_sleep(app.store, app.catalog, app.checkpoints, [made], 0) == {"p.work.acme"}
        assert await app.catalog.some(["p.work.acme"]) == {}
        await scheduling.pools.put(working(TaskType(max_attempts=17)))
        async with app.running():
            wanted = topics.of_tenants(working(TaskType(max_attempts=17)), "work").topic.options.max_attempts

            async def follows() -> bool:
                return (await app.families.get("p.work.*")).family.topic.options.max_attempts == wanted

            await until(follows, 60, step_s=0.05)
            await scheduling.submit("p", "work", b"1", tenant="acme")
            await until(lambda: [task.tenant for task in done] == ["acme"])
            woken = await app.catalog.get("p.work.acme")
            assert (woken.options.max_attempts, woken.own) == (wanted, ())
