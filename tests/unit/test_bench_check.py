"""The comparison with an older commit names what fell, and takes a noisy machine for what it is."""

from __future__ import annotations

from bench import check

RUN = check.Run("host", {"queues": 100}, more=("consumed_per_s",), less=("rss_mb",))


def figures(*pairs: tuple[float, float]) -> list[dict[str, float]]:
    return [{"consumed_per_s": per_s, "rss_mb": mb} for per_s, mb in pairs]


def test_a_figure_that_is_worse_in_each_pair_and_by_more_than_the_bound_fell() -> None:
    before, now = figures((1000, 90), (500, 90), (800, 91)), figures((800, 150), (400, 151), (700, 153))
    rate, memory = check.judged(RUN, before, now)
    assert rate.figure == "host queues=100: consumed_per_s"
    assert (rate.before, rate.now, rate.worse, round(rate.least, 2)) == (800, 700, 1.25, 1.14)
    assert (round(memory.worse, 2), memory.before, memory.now) == (1.68, 90, 151)
    assert [verdict.fell(check.WORSE) for verdict in (rate, memory)] == [True, True]
    assert [verdict.fell(check.WORSE_SHORT) for verdict in (rate, memory)] == [False, True]


def test_the_baseline_is_a_commit_and_each_benchmark_exists() -> None:
    from bench.__main__ import NAMES

    assert len(check.BASELINE) == 40
    assert {run.name for run in (*check.RUNS, *check.RUNS_SHORT)} <= NAMES.keys()
