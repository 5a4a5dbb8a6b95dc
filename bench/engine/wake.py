"""Time from the end of a publish to the handler's start, at a random idle queue of a host that owns many queues."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import emq
from bench.support.figures import Benchmark, Figure, percentile
from bench.support.stage import Stage, unlimited_topics
from emq.runtime import plurals
from emq.storage.message import Message

GAP_S = 0.005
"""Seconds between two publishes, so that each meets an idle host."""


async def publisher(url: str, database: str, topics: list[str], count: int) -> dict[str, float]:
    """Publish one message after the other to random topics; return the time when each publish returned, by id."""
    random_ = random.Random(1)
    async with emq.App(url, database=database) as app:
        await app.producer.refresh()
        returned = {}
        for _ in range(count):
            priority = random_.choice(("high", "mid", "low"))
            id_ = await app.publish(random_.choice(topics), b"x" * 100, priority=priority)
            returned[id_] = time.monotonic()
            await asyncio.sleep(GAP_S)
        return returned


async def run(stage: Stage, *, queues: int, count: int) -> dict[str, Any]:
    started: dict[str, float] = {}

    async def handle(message: Message) -> None:
        started[message.id] = time.monotonic()

    async with stage.app() as app:
        topics = await app.admin.create(unlimited_topics(queues))
        app.handlers.bind("*", handle)
        async with app.running() as host:
            while len(host.work.readiness):
                await asyncio.sleep(0.1)
            await asyncio.sleep(2)
            stage.say(f"publishing {plurals.count(count, 'message')} from another process")
            names = [topic.name for topic in topics]
            returned = await stage.elsewhere(publisher, stage.url, stage.database, names, count)
            async with asyncio.timeout(10):
                while len(started) < count:
                    await asyncio.sleep(0.05)
    # A wait is below zero if the handler was quicker than the reply on its way to the publisher.
    waits_ms = [(started[id_] - at) * 1000 for id_, at in returned.items()]
    return {
        "p50_ms": percentile(waits_ms, 50),
        "p99_ms": percentile(waits_ms, 99),
        "max_ms": max(waits_ms),
        "messages": len(waits_ms),
    }


BENCHMARK = Benchmark(
    run,
    options=(("queues", 60_000, "physical queues, a multiple of 30"), ("count", 1_000, "messages")),
    figures=(Figure("p50_ms", "<", 2), Figure("p99_ms", "<", 8)),
)
