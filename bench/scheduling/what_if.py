"""A forecast for a million waiting tasks, and how near it is to what then happens.

What then happens is not simulated by counts: each single task goes through the real matching and the real accounts, on
a virtual clock. Only store, event loop and performers are left out. Both go from the same backlog and the same rates of
arrival, before and after a change.
"""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

from bench.scheduling import pools
from bench.scheduling.counting import overshoot
from bench.scheduling.optimum import most_work
from bench.scheduling.replay import Replay
from bench.support.figures import Benchmark, Figure, percentile
from bench.support.stage import Stage
from emq.scheduling.model import Pool
from emq.scheduling.prediction import Forecast
from emq.scheduling.snapshot import PoolState
from emq.scheduling.what_if import changed, what_if

AT = 1_000_000_800.0
ARRIVALS = 0.2
"""Units that come in a second, as a part of the optimum."""

LEAST_S = 10.0
"""Errors of waits that are shorter than this are parts of this, since limits are per whole second."""


async def run(stage: Stage, *, tasks: int, resources: int) -> dict[str, Any]:
    pool = pools.overlapping(resources)
    removed, halved = [name for name, each in pool.resources.items() if each.takes][:2]
    limit = pool.resources[halved].limits[0]
    after = changed(pool, [f"remove {removed}", f"limit {halved} {limit.name}={limit.amount / 2:g}/{limit.per}"])
    mean = sum(pools.SIZES) / len(pools.SIZES)
    rate = most_work(pool) * ARRIVALS / mean / len(pool.types)
    waiting = {kind: tasks // len(pool.types) for kind in pool.types}
    state = PoolState(AT, waiting, dict.fromkeys(pool.types, rate))
    began = time.perf_counter()
    found = what_if(pool, state, after)
    forecast_s = time.perf_counter() - began
    errors = {}
    for name, each, told in (("before", pool, found.before), ("after", after, found.after)):
        stage.say(f"{name} the change: all tasks through the real matching")
        errors[name] = _errors(stage, each, state, told)
    return {
        "forecast_s": forecast_s,
        "error": max(each["error"] for each in errors.values()),
        "drained_error": max(each["drained"] for each in errors.values()),
        "overshoot": sum(each["overshoot"] for each in errors.values()),
        "before_drained_s": found.before.drained_s or math.inf,
        "after_drained_s": found.after.drained_s or math.inf,
        "replay_us_per_task": max(each["us"] for each in errors.values()),
    }


def _errors(stage: Stage, pool: Pool, state: PoolState, told: Forecast) -> dict[str, float]:
    """Return how far the forecast is off what happens, as parts of what happens."""
    replay = Replay(pool, state.waiting, state.arrivals, AT)
    began = time.process_time()
    happened = replay.run(2 * (told.drained_s or told.over_s))
    spent_s = time.process_time() - began
    worst = 0.0
    for kind, waits in happened.waits.items():
        one = told.types[kind]
        for name, forecast, real in (
            ("mean", one.mean_s, statistics.fmean(waits)),
            ("p50", one.p50_s, percentile(waits, 50)),
            ("p99", one.p99_s, percentile(waits, 99)),
        ):
            error = abs(forecast - real) / max(real, LEAST_S)
            stage.say(f"  {kind} {name}: forecast {forecast:,.1f} s, then {real:,.1f} s")
            worst = max(worst, error)
    drained = abs((told.drained_s or math.inf) - happened.drained_s) / happened.drained_s
    count = sum(map(len, happened.waits.values()))
    return {
        "error": max(worst, drained),
        "drained": drained,
        "overshoot": overshoot(pool, replay.starts()),
        "us": spent_s / count * 1e6,
    }


BENCHMARK = Benchmark(
    run,
    options=(("tasks", 1_000_000, "waiting tasks"), ("resources", 50, "resources")),
    figures=(
        Figure("forecast_s", "<", 10),
        Figure("error", "<=", 0.1),
        Figure("overshoot", "==", 0),
    ),
    stores=("memory",),
)
