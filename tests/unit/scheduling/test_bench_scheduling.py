"""What the benchmarks of scheduling judge by: the count of overshoot, and the optimum of the linear program."""

from __future__ import annotations

import pytest

from bench.scheduling import costs, pools, windows
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


def test_each_kind_of_a_limit_is_counted_in_its_own_way() -> None:
    def beyond(limit: Limit, *at: float) -> float:
        pool = Pool("p", resources={"r": Resource(limits=(limit,), takes={"a": {}})}, types={"a": TaskType()})
        return overshoot(pool, [Start(each, "a", "r") for each in at])

    assert beyond(Limit("n", 2, "minute"), 58.0, 59.0, 61.0) == 1
    assert beyond(Limit("n", 2, "minute", "calendar"), 58.0, 59.0, 61.0) == 0
    assert beyond(Limit("n", 2, "minute", "calendar"), 60.0, 61.0, 119.9) == 1
    assert beyond(Limit("n", 60, "minute", "bucket", 2), 60.0, 60.0, 61.0, 62.0) == 0
    assert beyond(Limit("n", 60, "minute", "bucket", 2), 60.0, 60.0, 60.5) == pytest.approx(0.5)


def test_chats_under_each_limit_are_judged_by_waits_use_and_overshoot() -> None:
    case = windows.CASES[0]
    starts = [Start(1_000 + number / 9.99, windows.BATCH, "model") for number in range(2_000)]
    found = windows.found(case, [0.1] * 98 + [2.0] * 2, starts, 1_000.0, 1_200.0)
    assert (found.p99_s, found.first_s, found.use) == (2.0, 0.1, pytest.approx(1.0, rel=2e-3))
    assert found.over == 0
    crowded = [*starts, *(Start(1_100.0, windows.BATCH, "model") for _ in range(5))]
    assert windows.found(case, [], sorted(crowded), 1_000.0, 1_200.0).over > 0
    calm = windows.replayed(windows.CASES[0])
    assert calm.p99_s < 1.0
    assert calm.use >= 0.97
    assert calm.over == 0
