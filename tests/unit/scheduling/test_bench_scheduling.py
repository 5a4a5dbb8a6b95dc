"""What the benchmarks of scheduling judge by: the count of overshoot, and the optimum of the linear program."""

from __future__ import annotations

import pytest

from bench.scheduling import costs, pools
from bench.scheduling.counting import Start, overshoot, overshoots, work
from bench.scheduling.optimum import most_work
from bench.scheduling.replay import Replay
from emq_scheduling.model import Limit, Pool, Resource, TaskType

NESTED = Pool(
    "p",
    resources={
        "account": Resource(limits=(Limit("requests", 3, "second"),)),
        "r": Resource(
            parent="account",
            limits=(Limit("requests", 2, "second"), Limit("tokens", 50, "minute")),
            takes={"a": {}, "b": {}},
        ),
        "s": Resource(parent="account", limits=(Limit("requests", 2, "second"),), takes={"a": {}}),
    },
    types={"a": TaskType(costs={"tokens": 10.0}), "b": TaskType(costs={"tokens": 30.0, "requests": 2.0})},
)


def test_overshoot_is_counted_in_each_limit_and_in_its_parents() -> None:
    second = [Start(100.0, "a", "r"), Start(100.2, "b", "r"), Start(100.9, "a", "s")]
    assert overshoots(NESTED, second) == [("account requests/second", 1.0), ("r requests/second", 1.0)]
    minute = [Start(100.0 + i, "a", "r") for i in range(5)] + [Start(159.9, "a", "r")]
    assert overshoots(NESTED, minute) == [("r tokens/minute", 10.0)]
    assert overshoot(NESTED, [*minute[:5], Start(160.0, "a", "r")]) == 0


def test_the_matching_does_nearly_the_optimum_with_a_backlog_everywhere() -> None:
    pool = pools.overlapping(resources=12, accounts=4)
    replay = Replay(pool, dict.fromkeys(pools.KINDS, 100_000), {})
    replay.run(62.0)
    starts = [start for start in replay.starts() if start.at < 1e9 + 61]
    assert overshoot(pool, starts) == 0
    done = work(pool, starts, 1e9 + 1, 1e9 + 61) / 60
    assert 0.98 * most_work(pool) <= done <= most_work(pool) * (1 + 1e-6)


def test_shares_of_charged_units_are_judged_in_the_worst_ten_seconds_and_the_use_in_all() -> None:
    fair = [(1e9 + second + part / 10, "b" if part < 3 else "a", 10.0) for second in range(20) for part in range(4)]
    weights = {"a": 1.0, "b": 3.0}
    found = costs.figures(weights, 40.0, fair, 1e9, 20)
    assert found == {"share_error": pytest.approx(0.0, abs=1e-9), "use_percent": pytest.approx(100.0), "over": 0.0}
    turned = [(at, "a" if at >= 1e9 + 19 else tenant, cost) for at, tenant, cost in fair]
    found = costs.figures(weights, 30.0, turned, 1e9, 20)
    assert found["share_error"] == pytest.approx(0.075), "of ten seconds, one gave all to a"
    assert (found["use_percent"], found["over"]) == (pytest.approx(400 / 3), 200.0)


def test_the_pools_of_mixed_costs_take_the_largest_task_of_each_tenant() -> None:
    for case in costs.CASES:
        pool = costs.pool_of(case)
        least = min([case.tokens, *case.below])
        assert all(most <= least for _, _, most in case.tenants.values())
        assert pool.tenants.keys() == case.tenants.keys()
