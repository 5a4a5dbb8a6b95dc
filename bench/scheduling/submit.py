"""Tasks a second that one process submits to a pool of 1,000 resources, in batches and one by one.

The owner of the pool tells predicted waits each second, as a host does, so each submit looks at them.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bench.scheduling import pools, rig
from bench.support.figures import Benchmark, Figure
from bench.support.stage import Stage, Stopwatch
from emq_scheduling.forecast.prediction import Predictor
from emq_scheduling.records.snapshot import PoolState, Snapshot, TypeView
from emq_scheduling.records.snapshots import Snapshots
from emq_scheduling.scheduling import Scheduling
from emq_scheduling.submission import Submission

CONCURRENT = 1_000
"""Tasks of asyncio that submit one by one at the same time."""

BATCH = 5_000
RUNS = 3

Submits = Callable[[Scheduling, int], Awaitable[None]]


async def batched(scheduling: Scheduling, tasks: int) -> None:
    some = [Submission(pools.KINDS[number % len(pools.KINDS)], rig.PAYLOAD) for number in range(BATCH)]

    async def submitter() -> None:
        for _ in range(tasks // BATCH // 2):
            await rig.accepted(scheduling, pools.NAME, some)

    await asyncio.gather(submitter(), submitter())


async def single(scheduling: Scheduling, tasks: int) -> None:
    async def submitter(number: int) -> None:
        kind = pools.KINDS[number % len(pools.KINDS)]
        for _ in range(tasks // CONCURRENT):
            await scheduling.submit(pools.NAME, kind, rig.PAYLOAD)

    await asyncio.gather(*(submitter(number) for number in range(CONCURRENT)))


async def run(stage: Stage, *, tasks: int, resources: int) -> dict[str, Any]:
    pool = pools.overlapping(resources, accounts=max(2, resources // 50))
    predictor = Predictor(pool)
    predicted_ms: list[float] = []
    async with rig.opened(stage, pool) as opened:
        app = opened.app
        snapshots = Snapshots(app.database, app.settings.environment)

        async def tell() -> None:
            while True:
                now = app.clock.now()
                state = PoolState(now, dict.fromkeys(pool.types, 10_000), dict.fromkeys(pool.types, 100.0))
                began = time.process_time()
                waits = predictor.waits(state, now)
                predicted_ms.append((time.process_time() - began) * 1000)
                types = {kind: TypeView(waiting=10_000, predicted_wait_s=waits[kind]) for kind in pool.types}
                await snapshots.save(Snapshot(pool.name, 1, "bench", state, now, types=types))
                await asyncio.sleep(1.0)

        telling = asyncio.create_task(tell())
        await asyncio.sleep(0.2)
        try:
            await opened.scheduling.submit(pool.name, pools.KINDS[0], rig.PAYLOAD)
            return {
                "submitted_per_s": await _rate(stage, opened.scheduling, batched, tasks),
                "single_per_s": await _rate(stage, opened.scheduling, single, tasks // 4),
                "predicted_waits_ms": statistics.median(predicted_ms),
            }
        finally:
            telling.cancel()


async def _rate(stage: Stage, scheduling: Scheduling, submits: Submits, tasks: int) -> int:
    found = []
    for _ in range(RUNS):
        stage.say(f"{submits.__name__}: {tasks:,} tasks")
        watch = Stopwatch()
        await submits(scheduling, tasks)
        found.append(tasks / watch.wall_s)
    return round(statistics.median(found))


BENCHMARK = Benchmark(
    run,
    options=(
        ("tasks", 200_000, "tasks of each of three runs in batches; a quarter of them one by one"),
        ("resources", 1_000, "resources"),
    ),
    figures=(
        Figure("submitted_per_s", ">=", 20_000),
        Figure("single_per_s", ">=", 20_000),
        Figure("predicted_waits_ms", "<=", 20),
    ),
)
