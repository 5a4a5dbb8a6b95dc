"""The costs of topics that exist, for a producer that publishes to one of them, and to a thousand."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from typing import Any

import psutil

import emq
from bench.support.figures import Benchmark, Figure
from bench.support.stage import Stage, Stopwatch
from emq.runtime import plurals
from emq.topics.model import Topic

AT_ONCE = 10_000
"""Topics in one transaction."""

SOME = 1_000


async def made(url: str, database: str, topics: int) -> None:
    """Write topics to the catalog alone: nothing is consumed, so the store needs no queues of theirs."""
    async with emq.App(url, database=database) as app:
        for start in range(0, topics, AT_ONCE):
            await app.catalog.create_many([Topic(name_of(i), 50) for i in range(start, min(topics, start + AT_ONCE))])


def name_of(number: int) -> str:
    return f"tenant-{number:06}"


async def first_publishes(url: str, database: str, numbers: Sequence[int]) -> tuple[float, float]:
    """Publish once to each of some topics; return the CPU seconds and the megabytes that this took."""
    async with emq.App(url, database=database) as app:
        gc.collect()
        before, watch = psutil.Process().memory_info().rss, Stopwatch()
        await asyncio.gather(*(app.publish(name_of(number), b"x") for number in numbers))
        cpu_s = watch.cpu_s
        gc.collect()
        return cpu_s, (psutil.Process().memory_info().rss - before) / 1e6


async def run(stage: Stage, *, topics: int) -> dict[str, Any]:
    stage.say(f"creating {plurals.count(topics, 'topic')}")
    await stage.elsewhere(made, stage.url, stage.database, topics)
    one_s, one_mb = await stage.elsewhere(first_publishes, stage.url, stage.database, [topics // 2])
    some = range(0, topics, max(1, topics // SOME))
    some_s, some_mb = await stage.elsewhere(first_publishes, stage.url, stage.database, some)
    return {"one_cpu_s": one_s, "one_mb": one_mb, "thousand_cpu_s": some_s, "thousand_mb": some_mb}


BENCHMARK = Benchmark(
    run,
    options=(("topics", 100_000, "topics that exist"),),
    figures=(Figure("one_cpu_s", "<", 0.1), Figure("one_mb", "<", 8), Figure("thousand_mb", "<", 20)),
    stores=("redis", "sqlite", "postgres"),
)
