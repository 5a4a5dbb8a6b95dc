"""What the benchmarks of scheduling judge by: the count of overshoot, and the optimum of the linear program."""

from __future__ import annotations

from bench.scheduling import pools
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
