"""The work that 50 resources with overlapping types do under a backlog, beside the optimum of a linear program."""

from __future__ import annotations

import math
from typing import Any

from bench.scheduling import pools, rig
from bench.scheduling.counting import overshoots, work
from bench.scheduling.optimum import most_work
from bench.support.stage import Stage, Stopwatch

WARM_S = 3
"""Seconds that the host runs before the measurement. Measure for whole minutes: limits a minute let a burst go at first
and wait then."""


async def run(stage: Stage, *, resources: int, seconds: int) -> dict[str, Any]:
    pool = pools.overlapping(resources)
    most = most_work(pool)
    each = math.ceil(most * (seconds + 20))
    async with rig.opened(stage, pool) as opened:
        stage.say(f"submitting {each:,} tasks of each type; the optimum is {most:,.1f} units a second")
        await stage.elsewhere(rig.fill, stage.url, stage.database, pool.name, {(kind, ""): each for kind in pool.types})
        async with rig.running(opened):
            while not opened.starts:
                await opened.until(opened.next_second())
            begin = opened.next_second(WARM_S)
            await opened.until(begin)
            stage.say(f"running for {seconds} s")
            watch = Stopwatch()
            await opened.until(begin + seconds)
            cpu_s = watch.cpu_s
        starts = opened.starts
    done = work(pool, starts, begin, begin + seconds)
    beyond = overshoots(pool, starts)
    for limit, units in beyond[:5]:
        stage.say(f"over its limit: {limit}, by {units:g} units in all")
    count = sum(begin <= start.at < begin + seconds for start in starts)
    return {
        "utilisation": done / seconds / most,
        "overshoot": sum(units for _, units in beyond),
        "optimum_per_s": most,
        "units_per_s": done / seconds,
        "starts_per_s": count / seconds,
        "cpu_us_per_start": cpu_s / max(1, count) * 1e6,
    }
