"""Messages a second from one producer process: in batches, and as concurrent awaited single publishes."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable
from typing import Any

import emq
from bench.support.backlog import PAYLOAD
from bench.support.figures import Benchmark, Figure
from bench.support.stage import UNLIMITED, Stage, Stopwatch
from emq.topics.model import Topic

CONCURRENT = 1_000
"""Tasks that await single publishes at the same time."""

BATCH = 5_000
"""Messages in one `publish_many`."""

RUNS = 3


async def batched(app: emq.App, messages: int) -> float:
    async def publisher() -> None:
        for _ in range(messages // BATCH // 2):
            await app.publish_many("bench", [PAYLOAD] * BATCH)

    watch = Stopwatch()
    await asyncio.gather(publisher(), publisher())
    return messages // BATCH // 2 * 2 * BATCH / watch.wall_s


async def single(app: emq.App, messages: int) -> float:
    async def publisher() -> None:
        for _ in range(messages // CONCURRENT):
            await app.publish("bench", PAYLOAD)

    watch = Stopwatch()
    await asyncio.gather(*(publisher() for _ in range(CONCURRENT)))
    return messages // CONCURRENT * CONCURRENT / watch.wall_s


async def run(stage: Stage, *, messages: int) -> dict[str, Any]:
    async with stage.app() as app:
        await app.admin.create([Topic("bench", UNLIMITED * 10, group_qps=UNLIMITED)])
        await app.publish("bench", PAYLOAD)

        async def measured(what: Callable[[emq.App, int], Awaitable[float]], count: int) -> float:
            stage.say(f"{what.__name__}: {count:,} messages, {RUNS} times")
            return statistics.median([await what(app, count) for _ in range(RUNS)])

        return {
            "batched_per_s": round(await measured(batched, messages)),
            "single_per_s": round(await measured(single, messages // 5)),
        }


BENCHMARK = Benchmark(
    run,
    options=(("messages", 1_000_000, "messages for each batched run; a fifth for each single one"),),
    figures=(Figure("batched_per_s", ">=", 250_000), Figure("single_per_s", ">=", 60_000)),
)
