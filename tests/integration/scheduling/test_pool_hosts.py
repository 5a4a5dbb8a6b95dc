"""Pools on real hosts: tasks start once, within all limits, also while hosts stop, die and take over."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from emq_scheduling.model import Limit, Pool, Resource, TaskType
from emq_scheduling.submission import Submission
from support import meeting
from support.pool_hosts import PoolHosts, submitted
from support.waiting import until


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


@pytest.fixture(params=["redis", "postgresql"])
def party(request: pytest.FixtureRequest, tmp_path: Path) -> PoolHosts:
    if request.param == "redis":
        made = meeting.on_redis(request.getfixturevalue("redis_url"), tmp_path)
    else:
        made = meeting.on_postgres(request.getfixturevalue("fresh_postgres"))
    [name] = made.topics(1)
    return PoolHosts(made, name.replace(".", "-"))


async def test_a_stop_and_a_takeover_start_each_task_once_within_the_limits(party: PoolHosts) -> None:
    ran, resources = party.ran, ("r0", "r1", "r2")
    async with party.app("a") as (a, scheduling), party.app("b") as (b, _):
        await scheduling.pools.put(pool_of(party.pool))
        tasks = [Submission("notice", b"%d" % i, key=f"k{i % 5}" if i % 2 else None) for i in range(240)]
        sent = await submitted(scheduling, party.pool, tasks)
        async with b.running():
            async with a.running():
                await until(lambda: len(ran.done) >= 60)
            await until(lambda: ran.hosts["b"] > 0 or len(ran.done) == len(sent))
            await until(lambda: len(ran.done) >= len(sent))
    assert Counter(ran.began) == dict.fromkeys(sent, 1)
    assert ran.most(*resources) <= 40
    assert max(ran.most(resource) for resource in resources) <= 20
    for key, payloads in ran.keys.items():
        numbers = [int(payload) for payload in payloads]
        assert numbers == sorted(numbers), key


async def test_a_crash_repeats_only_what_ran(party: PoolHosts) -> None:
    ran = party.ran
    ran.took_s = 0.3
    async with party.app("a") as (a, scheduling), party.app("b") as (b, _):
        await scheduling.pools.put(pool_of(party.pool))
        sent = await submitted(scheduling, party.pool, [Submission("notice", b"x")] * 120)
        run = asyncio.create_task(a.run())
        await until(lambda: len(ran.done) >= 30)
        run.cancel()  # as a crash: no drain
        await asyncio.gather(run, return_exceptions=True)
        began, ended = len(ran.began), len(ran.done)
        async with b.running():
            await until(lambda: len(set(ran.done)) >= len(sent))
    assert set(ran.done) == set(sent)
    assert len(ran.began) - len(sent) <= began - ended, "only tasks that ran are repeated"
    assert ran.most("r0", "r1", "r2") <= 40


async def test_the_work_of_a_failed_resource_goes_on_elsewhere_once(party: PoolHosts) -> None:
    ran = party.ran
    async with party.app("a") as (a, scheduling):
        await scheduling.pools.put(pool_of(party.pool))
        sent = await submitted(scheduling, party.pool, [Submission("notice", b"x")] * 300)
        async with a.running():
            await until(lambda: len(ran.done) >= 40)
            ran.broken = {"r1"}
            before = Counter(ran.resources)
            await until(lambda: len(ran.done) >= 160)
            tried = ran.resources["r1"] - before["r1"]
            assert tried <= 30, "closed after the first failures"
            ran.broken = set()
            await until(lambda: len(ran.done) >= len(sent))
    assert sorted(ran.done) == sorted(sent)
    assert ran.most("r0", "r1", "r2") <= 40


async def test_what_asks_for_less_gets_less_and_no_attempt_is_counted(party: PoolHosts) -> None:
    ran = party.ran
    async with party.app("a") as (a, scheduling):
        await scheduling.pools.put(pool_of(party.pool))
        sent = await submitted(scheduling, party.pool, [Submission("notice", b"x")] * 150)
        ran.tired = {"r2"}
        async with a.running():
            await until(lambda: len(ran.done) >= 120)
            assert ran.resources["r2"] <= 25
            await until(lambda: len(ran.done) >= len(sent))
            await asyncio.sleep(1.0)
            status = await scheduling.status(party.pool, sent[0])
    assert sorted(ran.done) == sorted(sent)
    assert status.state == "done"


async def test_a_live_change_counts_for_the_backlog(party: PoolHosts) -> None:
    ran = party.ran
    async with party.app("a") as (a, scheduling):
        await scheduling.pools.put(pool_of(party.pool, per_s=5))
        sent = await submitted(scheduling, party.pool, [Submission("notice", b"x")] * 200)
        async with a.running():
            await until(lambda: len(ran.done) >= 20)
            assert ran.most("r0", "r1", "r2") <= 10
            await scheduling.pools.change(party.pool, lambda _: pool_of(party.pool, per_s=50))
            await until(lambda: len(ran.done) >= len(sent), 8)
    assert ran.most("r0", "r1", "r2") > 10


async def test_a_removed_resource_loses_nothing_and_cancelled_tasks_do_not_start(party: PoolHosts) -> None:
    ran = party.ran
    async with party.app("a") as (a, scheduling):
        await scheduling.pools.put(pool_of(party.pool))
        sent = await submitted(scheduling, party.pool, [Submission("notice", b"x")] * 200)
        await scheduling.cancel(party.pool, *sent[-20:])
        async with a.running():
            await until(lambda: len(ran.done) >= 30)

            def without(pool: Pool) -> Pool:
                left = {name: resource for name, resource in pool.resources.items() if name != "r0"}
                return Pool(pool.name, pool.zone, left, pool.types)

            await scheduling.pools.change(party.pool, without)
            await until(lambda: len(ran.done) >= 180)
            status = await scheduling.result(party.pool, sent[-1])
    assert status.state == "cancelled"
    assert sorted(ran.done) == sorted(sent[:-20])
