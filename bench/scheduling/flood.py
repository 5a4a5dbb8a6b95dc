"""Waits of verification codes with and without a flood of marketing on the same resources.

Verification takes a twentieth of the capacity, marketing comes at `FLOOD` times the capacity. Each half of a round has
an app and a pool of its own, so that no half meets the backlog of another one. A wait goes from the time at which a
task is due to be submitted until its performer begins. Two processes of their own submit.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import msgspec

from bench.scheduling import pools, rig
from bench.scheduling.counting import overshoot
from bench.scheduling.optimum import most_work
from bench.support.figures import percentile
from bench.support.stage import Stage
from emq_scheduling.hosting.attempts import Run
from emq_scheduling.model import Pool
from emq_scheduling.tasks import Task

FLOOD = 20
PART = 0.05
WARM_S = 4.0
URGENT, FLOODING = pools.KINDS[0], pools.KINDS[-1]


async def half(stage: Stage, pool: Pool, rate: float, seconds: float, flooded: bool, seed: int) -> dict[str, Any]:
    began: dict[str, float] = {}

    async def work(task: Task, run: Run) -> None:
        if task.type == URGENT:
            began[task.id] = time.monotonic()
        await asyncio.sleep(pool.types[task.type].duration_s)

    async with rig.opened(stage, pool, work) as opened, rig.running(opened):
        where = stage.url, stage.database, pool.name
        sides = []
        if flooded:
            flood = stage.elsewhere(rig.steady, *where, (FLOODING,), rate * FLOOD, seconds + WARM_S)
            sides.append(asyncio.create_task(flood))
        await asyncio.sleep(WARM_S)
        due = await stage.elsewhere(rig.singles, *where, URGENT, rate * PART, seconds, seed=seed)
        sent = sum(map(len, await asyncio.gather(*sides)))
        await asyncio.sleep(2)
        waits = [(began[id_] - at) * 1000 for id_, at in due.items() if id_ in began]
        return {
            "waits": waits,
            "unstarted": len(due) - len(waits),
            "overshoot": overshoot(pool, opened.starts),
            "flooded_per_s": sent / (seconds + WARM_S),
        }


async def run(stage: Stage, *, resources: int, seconds: float, rounds: int) -> dict[str, Any]:
    drawn = pools.overlapping(resources, accounts=max(2, resources // 5))
    rate = most_work(drawn)
    found: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for number in range(rounds):
        for flooded in (False, True):
            stage.say(f"round {number + 1} of {rounds}, {seconds:g} s {'with' if flooded else 'without'} the flood")
            pool = msgspec.structs.replace(drawn, name=f"{pools.NAME}-{number}-{'flood' if flooded else 'calm'}")
            found[flooded].append(await half(stage, pool, rate, seconds, flooded, number))
    p99 = {key: [percentile(each["waits"], 99) for each in halves] for key, halves in found.items()}
    all_waits = {key: [wait for each in halves for wait in each["waits"]] for key, halves in found.items()}
    ratios = [with_ / without for without, with_ in zip(p99[False], p99[True], strict=True)]
    both = [*found[False], *found[True]]
    return {
        "p99_wait_ms": percentile(all_waits[True], 99),
        "calm_p99_wait_ms": percentile(all_waits[False], 99),
        "p99_wait_ratio": statistics.median(ratios),
        "p99_wait_ratio_worst": max(ratios),
        "p50_wait_ms": percentile(all_waits[True], 50),
        "calm_p50_wait_ms": percentile(all_waits[False], 50),
        "unstarted": sum(each["unstarted"] for each in both),
        "overshoot": sum(each["overshoot"] for each in both),
        "capacity_per_s": rate,
        "flood_per_s": statistics.fmean(each["flooded_per_s"] for each in found[True]),
        "tasks": len(all_waits[True]),
    }
