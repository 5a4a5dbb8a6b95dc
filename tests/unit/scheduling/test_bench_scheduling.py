"""What the benchmarks of scheduling judge by: the optimum of the linear program, and the count of overshoot."""

from __future__ import annotations

import pytest

from bench.scheduling import pools
from bench.scheduling.counting import Start, overshoot, overshoots, work
from bench.scheduling.optimum import most_work
from bench.scheduling.replay import Replay
from emq_scheduling.model import Limit, Pool, Resource, TaskType


def pool_of(resources: dict[str, Resource], **types: TaskType) -> Pool:
    return Pool("p", resources=resources, types=types)


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
