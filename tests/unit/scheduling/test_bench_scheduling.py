"""What the benchmarks of scheduling judge by: the optimum of the linear program, and the count of overshoot."""

from __future__ import annotations

from collections import Counter

import pytest

from bench.scheduling import pools, tenants
from bench.scheduling.counting import Start, overshoot, overshoots, work
from bench.scheduling.failure import Failing
from bench.scheduling.optimum import most_work
from bench.scheduling.replay import Replay
from emq_scheduling.model import Limit, Pool, Resource, TaskType


def pool_of(resources: dict[str, Resource], **types: TaskType) -> Pool:
    return Pool("p", resources=resources, types=types)


def test_the_optimum_gives_each_type_to_the_resource_that_nobody_else_can_use() -> None:
    ten = (Limit("requests", 10, "second"),)
    resources = {
        "both": Resource(limits=ten, takes={"a": {}, "b": {}}),
        "only-a": Resource(limits=ten, takes={"a": {}}),
    }
    assert most_work(pool_of(resources, a=TaskType(), b=TaskType())) == pytest.approx(20)


def test_the_optimum_respects_nested_limits_minutes_and_tasks_in_flight() -> None:
    takes: dict[str, dict[str, float]] = {"a": {}}
    resources = {
        "account": Resource(limits=(Limit("requests", 12, "second"),)),
        "x": Resource(parent="account", limits=(Limit("requests", 10, "second"),), takes=takes),
        "y": Resource(parent="account", limits=(Limit("requests", 10, "second"),), takes=takes),
        "z": Resource(limits=(Limit("requests", 50, "second"), Limit("tokens", 6000, "minute")), takes=takes),
        "w": Resource(limits=(Limit("requests", 50, "second"), Limit("calls", 4, "in_flight")), takes=takes),
    }
    kind = TaskType(costs={"tokens": 20.0}, duration_s=0.5)
    assert most_work(pool_of(resources, a=kind)) == pytest.approx(12 + 5 + 8)


def test_the_optimum_counts_units_and_not_tasks() -> None:
    resources = {"r": Resource(limits=(Limit("requests", 10, "second"),), takes={"small": {}, "large": {}})}
    pool = pool_of(resources, small=TaskType(), large=TaskType(costs={"requests": 5.0}))
    assert most_work(pool) == pytest.approx(10)


NESTED = pool_of(
    {
        "account": Resource(limits=(Limit("requests", 3, "second"),)),
        "r": Resource(
            parent="account",
            limits=(Limit("requests", 2, "second"), Limit("tokens", 50, "minute")),
            takes={"a": {}, "b": {}},
        ),
        "s": Resource(parent="account", limits=(Limit("requests", 2, "second"),), takes={"a": {}}),
    },
    a=TaskType(costs={"tokens": 10.0}),
    b=TaskType(costs={"tokens": 30.0, "requests": 2.0}),
)


def test_starts_within_all_limits_are_no_overshoot() -> None:
    starts = [Start(100.0, "a", "r"), Start(100.9, "a", "r"), Start(100.5, "a", "s"), Start(101.0, "b", "r")]
    assert overshoot(NESTED, starts) == 0
    assert work(NESTED, starts, 100.5, 101.0) == 2
    assert work(NESTED, starts, 100.0, 102.0) == 5


def test_overshoot_is_counted_in_each_limit_and_in_its_parents() -> None:
    second = [Start(100.0, "a", "r"), Start(100.2, "b", "r"), Start(100.9, "a", "s")]
    assert overshoots(NESTED, second) == [("account requests/second", 1.0), ("r requests/second", 1.0)]
    minute = [Start(100.0 + i, "a", "r") for i in range(5)] + [Start(159.9, "a", "r")]
    assert overshoots(NESTED, minute) == [("r tokens/minute", 10.0)]
    assert overshoot(NESTED, [*minute[:5], Start(160.0, "a", "r")]) == 0


def test_the_pool_is_the_same_for_the_same_seed_and_overlaps_in_part() -> None:
    pool = pools.overlapping()
    assert pool == pools.overlapping()
    assert pool != pools.overlapping(seed=2)
    takers = [set(each.takes) for each in pool.resources.values() if each.takes]
    assert len(takers) == 50
    assert {len(each) for each in takers} == {2, 3, 4}
    assert all(sum(kind in each for each in takers) >= 15 for kind in pools.KINDS)
    assert sum(len(each.limits) == 2 for each in pool.resources.values()) >= 10


def test_the_matching_does_nearly_the_optimum_with_a_backlog_everywhere() -> None:
    pool = pools.overlapping(resources=12, accounts=4)
    replay = Replay(pool, dict.fromkeys(pools.KINDS, 100_000), {})
    replay.run(62.0)
    starts = [start for start in replay.starts() if start.at < 1e9 + 61]
    assert overshoot(pool, starts) == 0
    done = work(pool, starts, 1e9 + 1, 1e9 + 61) / 60
    assert 0.98 * most_work(pool) <= done <= most_work(pool) * (1 + 1e-6)


def test_shares_of_tenants_are_judged_by_whole_tasks() -> None:
    pool = tenants.pool_of("p", 10, 55.0)
    exact = Counter({f"tenant-{number}": 10 * (number + 1) for number in range(10)})
    assert tenants.shares(pool, exact) == {"share_error": 0, "tasks_off": 0}
    off = exact + Counter({"tenant-0": 3}) - Counter({"tenant-9": 3})
    assert tenants.shares(pool, off) == {"share_error": pytest.approx(0.2), "tasks_off": pytest.approx(3)}


async def test_a_failing_resource_is_noticed_when_it_gets_nothing_but_probes() -> None:
    failing = Failing(pools.overlapping())
    assert len(failing.names) == 13
    assert set(failing.names.values()) == {True, False}
    failing.since, failing.until = 100.0, 120.0
    assert failing.noticed_s() == 0.0
    failing.tried = [100.1 + i / 100 for i in range(60)] + [105.0, 110.0]
    assert failing.noticed_s() == pytest.approx(0.69)
