"""Pools on real hosts: tasks start once, within all limits, also while hosts stop, die and take over."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import emq
from emq.runtime import errors
from emq_scheduling.hosting.attempts import Run
from emq_scheduling.model import Limit, Pool, Resource, TaskType
from emq_scheduling.outcomes import Overloaded, ResourceFailed
from emq_scheduling.scheduling import Scheduling
from emq_scheduling.submission import Receipt, Submission
from emq_scheduling.tasks import Task
from support import meeting
from support.waiting import until


class Starts:
    """Every attempt that ran, of all hosts of a test."""

    def __init__(self, took_s: float = 0.02) -> None:
        self.took_s = took_s
        self.ids: list[str] = []
        self.done: list[str] = []
        self.keys: dict[str, list[bytes]] = {}
        self.hosts: Counter[str] = Counter()
        self.resources: Counter[str] = Counter()
        self.broken: set[str] = set()
        self.tired: set[str] = set()
        self._seconds: Counter[tuple[str, int]] = Counter()

    def on(self, scheduling: Scheduling, pool: str, host: str) -> None:
        @scheduling.performer(pool)
        async def perform(task: Task, run: Run) -> bytes:
            second = int(run.at)
            self.ids.append(task.id)
            self.hosts[host] += 1
            self.resources[run.resource] += 1
            self._seconds[run.resource, second] += 1
            if task.key is not None:
                self.keys.setdefault(task.key, []).append(task.payload)
            if run.resource in self.broken:
                raise ResourceFailed("the line is dead")
            if run.resource in self.tired:
                raise Overloaded("429", after_s=3)
            await asyncio.sleep(self.took_s)
            self.done.append(task.id)
            return task.payload

    def most(self, *resources: str) -> int:
        """Return the most starts that the limits counted in a second on these resources together."""
        together: Counter[int] = Counter()
        for (resource, second), count in self._seconds.items():
            if resource in resources:
                together[second] += count
        return max(together.values(), default=0)


def pool_of(name: str, per_s: float = 20) -> Pool:
    limit = (Limit("requests", per_s, "second"),)
    return Pool(
        name,
        resources={
            "account": Resource(limits=(Limit("requests", 2 * per_s, "second"),)),
            **{f"r{i}": Resource("account", limit, {"code": {}, "notice": {}}) for i in range(3)},
        },
        types={"code": TaskType(priority=0), "notice": TaskType(priority=1, backoff_s=(0.1,))},
    )


class Party:
    """Hosts that share a store and a database, each with the performers of one pool."""

    def __init__(self, made: meeting.Meeting, name: str) -> None:
        self.meeting = made
        self.pool = name
        self.starts = Starts()

    @contextlib.asynccontextmanager
    async def app(self, host: str) -> AsyncIterator[tuple[emq.App, Scheduling]]:
        app = self.meeting.app(host, "")
        scheduling = Scheduling(app)
        self.starts.on(scheduling, self.pool, host)
        async with app:
            yield app, scheduling


@pytest.fixture(params=["redis", "postgresql"])
def party(request: pytest.FixtureRequest, tmp_path: Path) -> Party:
    if request.param == "redis":
        made = meeting.on_redis(request.getfixturevalue("redis_url"), tmp_path)
    else:
        made = meeting.on_postgres(request.getfixturevalue("fresh_postgres"))
    [name] = made.topics(1)
    return Party(made, name.replace(".", "-"))


def accepted(outcomes: list[Receipt | errors.EMQError]) -> list[str]:
    refused = [outcome for outcome in outcomes if not isinstance(outcome, Receipt)]
    assert not refused, refused[:1]
    return [outcome.id for outcome in outcomes if isinstance(outcome, Receipt)]


async def test_a_stop_and_a_takeover_start_each_task_once_within_the_limits(party: Party) -> None:
    starts, resources = party.starts, ("r0", "r1", "r2")
    async with party.app("a") as (a, scheduling), party.app("b") as (b, _):
        await scheduling.pools.put(pool_of(party.pool))
        tasks = [Submission("notice", b"%d" % i, key=f"k{i % 5}" if i % 2 else None) for i in range(240)]
        sent = accepted(await scheduling.submit_many(party.pool, tasks))
        async with b.running():
            async with a.running():
                await until(lambda: len(starts.done) >= 60)
            await until(lambda: starts.hosts["b"] > 0 or len(starts.done) == len(sent))
            await until(lambda: len(starts.done) >= len(sent))
    assert Counter(starts.ids) == dict.fromkeys(sent, 1)
    assert starts.most(*resources) <= 40
    assert max(starts.most(resource) for resource in resources) <= 20
    for key, payloads in starts.keys.items():
        numbers = [int(payload) for payload in payloads]
        assert numbers == sorted(numbers), key


async def test_a_crash_repeats_only_what_ran(party: Party) -> None:
    starts = party.starts
    starts.took_s = 0.3
    async with party.app("a") as (a, scheduling), party.app("b") as (b, _):
        await scheduling.pools.put(pool_of(party.pool))
        sent = accepted(await scheduling.submit_many(party.pool, [Submission("notice", b"x")] * 120))
        run = asyncio.create_task(a.run())
        await until(lambda: len(starts.done) >= 30)
        run.cancel()  # as a crash: no drain
        await asyncio.gather(run, return_exceptions=True)
        began, ended = len(starts.ids), len(starts.done)
        async with b.running():
            await until(lambda: len(set(starts.done)) >= len(sent))
    assert set(starts.done) == set(sent)
    assert len(starts.ids) - len(sent) <= began - ended, "only tasks that ran are repeated"
    assert starts.most("r0", "r1", "r2") <= 40


async def test_the_work_of_a_failed_resource_goes_on_elsewhere_once(party: Party) -> None:
    starts = party.starts
    async with party.app("a") as (a, scheduling):
        await scheduling.pools.put(pool_of(party.pool))
        sent = accepted(await scheduling.submit_many(party.pool, [Submission("notice", b"x")] * 300))
        async with a.running():
            await until(lambda: len(starts.done) >= 40)
            starts.broken = {"r1"}
            before = Counter(starts.resources)
            await until(lambda: len(starts.done) >= 160)
            tried = starts.resources["r1"] - before["r1"]
            assert tried <= 30, "closed after the first failures"
            starts.broken = set()
            await until(lambda: len(starts.done) >= len(sent))
    assert sorted(starts.done) == sorted(sent)
    assert starts.most("r0", "r1", "r2") <= 40


async def test_what_asks_for_less_gets_less_and_no_attempt_is_counted(party: Party) -> None:
    starts = party.starts
    async with party.app("a") as (a, scheduling):
        await scheduling.pools.put(pool_of(party.pool))
        sent = accepted(await scheduling.submit_many(party.pool, [Submission("notice", b"x")] * 150))
        starts.tired = {"r2"}
        async with a.running():
            await until(lambda: len(starts.done) >= 120)
            assert starts.resources["r2"] <= 25
            await until(lambda: len(starts.done) >= len(sent))
            await asyncio.sleep(1.0)
            status = await scheduling.status(party.pool, sent[0])
    assert sorted(starts.done) == sorted(sent)
    assert status.state == "done"


async def test_a_live_change_counts_for_the_backlog(party: Party) -> None:
    starts = party.starts
    async with party.app("a") as (a, scheduling):
        await scheduling.pools.put(pool_of(party.pool, per_s=5))
        sent = accepted(await scheduling.submit_many(party.pool, [Submission("notice", b"x")] * 200))
        async with a.running():
            await until(lambda: len(starts.done) >= 20)
            assert starts.most("r0", "r1", "r2") <= 10
            await scheduling.pools.change(party.pool, lambda _: pool_of(party.pool, per_s=50))
            await until(lambda: len(starts.done) >= len(sent), 8)
    assert starts.most("r0", "r1", "r2") > 10


async def test_a_removed_resource_loses_nothing_and_cancelled_tasks_do_not_start(party: Party) -> None:
    starts = party.starts
    async with party.app("a") as (a, scheduling):
        await scheduling.pools.put(pool_of(party.pool))
        sent = accepted(await scheduling.submit_many(party.pool, [Submission("notice", b"x")] * 200))
        await scheduling.cancel(party.pool, *sent[-20:])
        async with a.running():
            await until(lambda: len(starts.done) >= 30)

            def without(pool: Pool) -> Pool:
                left = {name: resource for name, resource in pool.resources.items() if name != "r0"}
                return Pool(pool.name, pool.zone, left, pool.types)

            await scheduling.pools.change(party.pool, without)
            await until(lambda: len(starts.done) >= 180)
            status = await scheduling.result(party.pool, sent[-1])
    assert status.state == "cancelled"
    assert sorted(starts.done) == sorted(sent[:-20])
