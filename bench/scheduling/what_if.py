"""A forecast for a million waiting tasks, and how near it is to what then happens.

What then happens is not simulated by counts: each single task goes through the real matching and the real accounts, on
a virtual clock. Only store, event loop and performers are left out. Both go from the same backlog and the same rates of
arrival, before and after a change.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from typing import Any, NamedTuple

from bench.scheduling import pools
from bench.scheduling.counting import overshoot
from bench.scheduling.optimum import most_work
from bench.scheduling.replay import Replay
from bench.support.figures import Benchmark, Figure, percentile
from bench.support.stage import Stage
from emq_scheduling.forecast.prediction import Forecast
from emq_scheduling.forecast.what_if import changed, what_if
from emq_scheduling.model import Pool
from emq_scheduling.records.snapshot import PoolState

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
    stage.say("all tasks through the real matching, before and after the change, in a process each")
    both = await asyncio.gather(
        stage.elsewhere(compared, pool, state, found.before), stage.elsewhere(compared, after, state, found.after)
    )
    for when, each in zip(("before", "after"), both, strict=True):
        for line in each.lines:
            stage.say(f"{when}: {line}")
    return {
        "forecast_s": forecast_s,
        "error": max(each.error for each in both),
        "drained_error": max(each.drained_error for each in both),
        "overshoot": sum(each.overshoot for each in both),
        "before_drained_s": found.before.drained_s or math.inf,
        "after_drained_s": found.after.drained_s or math.inf,
        "replay_us_per_task": max(each.us for each in both),
    }


class Compared(NamedTuple):
    """How far a forecast is off what happens. Errors are parts of what happens.

    Attributes:
        error: the largest one of mean, p50 and p99 of the waits of all types, and of the time until all is drained.
        us: CPU of a task in the replay, in microseconds.
    """

    error: float
    drained_error: float
    overshoot: float
    us: float
    lines: list[str]


async def compared(pool: Pool, state: PoolState, told: Forecast) -> Compared:
    """Let all tasks go through the real matching, and compare."""
    replay = Replay(pool, state.waiting, state.arrivals, AT)
    began = time.process_time()
    happened = replay.run(2 * (told.drained_s or told.over_s))
    spent_s = time.process_time() - began
    errors, lines = [abs((told.drained_s or math.inf) - happened.drained_s) / happened.drained_s], []
    for kind, waits in happened.waits.items():
        one = told.types[kind]
        for name, forecast, real in (
            ("mean", one.mean_s, statistics.fmean(waits)),
            ("p50", one.p50_s, percentile(waits, 50)),
            ("p99", one.p99_s, percentile(waits, 99)),
        ):
            lines.append(f"{kind} {name}: forecast {forecast:,.1f} s, then {real:,.1f} s")
            errors.append(abs(forecast - real) / max(real, LEAST_S))
    count = sum(map(len, happened.waits.values()))
    return Compared(max(errors), errors[0], overshoot(pool, replay.starts()), spent_s / count * 1e6, lines)


BENCHMARK = Benchmark(
    run,
    options=(("tasks", 1_000_000, "waiting tasks"), ("resources", 50, "resources")),
    figures=(
        Figure("forecast_s", "<", 10),
        Figure("error", "<=", 0.1),
        Figure("overshoot", "==", 0),
    ),
    stores=("sqlite",),
)
