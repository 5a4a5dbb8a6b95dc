"""Messages a second from one producer process: in batches, and as concurrent awaited single publishes.

Both once more into a topic that remembers the id of each message (`dedupe_s`).
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

import emq
from bench.support.backlog import PAYLOAD
from bench.support.figures import Benchmark, Figure
from bench.support.stage import UNLIMITED, Stage, Stopwatch
from emq.runtime import plurals
from emq.topics.model import Topic, TopicOptions

CONCURRENT = 1_000
"""Tasks that await single publishes at the same time."""

BATCH = 5_000
"""Messages in one `publish_many`."""

RUNS = 3


async def batched(app: emq.App, topic: str, messages: int) -> float:
    async def publisher() -> None:
        for _ in range(messages // BATCH // 2):
            await app.publish_many(topic, [PAYLOAD] * BATCH)

    watch = Stopwatch()
    await asyncio.gather(publisher(), publisher())
    return messages // BATCH // 2 * 2 * BATCH / watch.wall_s


async def single(app: emq.App, topic: str, messages: int) -> float:
    async def publisher() -> None:
        for _ in range(messages // CONCURRENT):
            await app.publish(topic, PAYLOAD)

    watch = Stopwatch()
    await asyncio.gather(*(publisher() for _ in range(CONCURRENT)))
    return messages // CONCURRENT * CONCURRENT / watch.wall_s


async def run(stage: Stage, *, messages: int) -> dict[str, Any]:
    async with stage.app() as app:
        plain = Topic("plain", UNLIMITED * 10, group_qps=UNLIMITED)
        remembering = msgspec.structs.replace(plain, name="remembering", options=TopicOptions(dedupe_s=600.0))
        await app.admin.create([plain, remembering])

        async def measured(what: Callable[[emq.App, str, int], Awaitable[float]], topic: str, count: int) -> int:
            await app.publish(topic, PAYLOAD)
            stage.say(f"{what.__name__}, {topic}: {plurals.count(count, 'message')}, {RUNS} times")
            return round(statistics.median([await what(app, topic, count) for _ in range(RUNS)]))

        return {
            "batched_per_s": await measured(batched, "plain", messages),
            "single_per_s": await measured(single, "plain", messages // 5),
            "batched_remembered_per_s": await measured(batched, "remembering", messages // 5),
            "single_remembered_per_s": await measured(single, "remembering", messages // 5),
        }


BENCHMARK = Benchmark(
    run,
    options=(("messages", 1_000_000, "messages for each batched run; a fifth for each single one"),),
    figures=(Figure("batched_per_s", ">=", 250_000), Figure("single_per_s", ">=", 60_000)),
)
