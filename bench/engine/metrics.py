"""What metrics cost: a backlog drained with and without them, in turns, and the longest hold of one scrape."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from bench.support.backlog import fill
from bench.support.figures import Benchmark, Figure
from bench.support.stage import Stage, Stopwatch, unlimited_topics
from emq.observe.metrics import exposition, host_families
from emq.storage.message import Message
from emq.topics.model import Topic


async def run(stage: Stage, *, queues: int, messages: int, turns: int, topics: int) -> dict[str, Any]:
    async with stage.app() as app:
        made = await app.admin.create(unlimited_topics(queues))
    costs: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(2 * turns):
        counts = turn % 2 == 1
        stage.say(f"turn {turn + 1} of {2 * turns}, metrics {'on' if counts else 'off'}")
        costs[counts].append(await _drain_us(stage, made, max(1, messages // queues), counts))
    off_us, on_us = statistics.median(costs[False]), statistics.median(costs[True])
    pages = await _scrape(stage, topics)
    return {"off_us": off_us, "on_us": on_us, "ratio": off_us / on_us, **pages}


async def _drain_us(stage: Stage, topics: list[Topic], per_queue: int, counts: bool) -> float:
    """Return the CPU time of this process for each message, in microseconds."""
    async with stage.app() as app:
        app.monitor.counts = counts
        total = await stage.elsewhere(fill, stage.url, topics, per_queue)
        seen, everything = 0, asyncio.Event()
        first = asyncio.Event()

        @app.handler("*")
        async def handle(_: Message) -> None:
            nonlocal seen
            seen += 1
            if seen == 1:
                first.set()
            if seen >= total:
                everything.set()

        async with app.running():
            await first.wait()
            before, watch = seen, Stopwatch()
            await everything.wait()
            return watch.cpu_s / (total - before) * 1e6


async def _scrape(stage: Stage, topics: int) -> dict[str, Any]:
    """Return the size of a page of a host with many topics, and the CPU time of its longest piece of work."""
    async with stage.app() as app:
        await app.admin.create([_topic(n) for n in range(topics)])
        app.monitor.counts = True

        for n in range(200):

            @app.handler(f"metrics-{n}-*")
            async def handle(_: Message) -> None:
                pass

        async with app.running() as host:
            while len(host.ownership.owned) < topics:
                await asyncio.sleep(0.05)
            longest = []
            for _ in range(9):
                size, holds, began = 0, [0.0], time.process_time()
                for piece in exposition.pieces(host_families.of_process(app)):
                    holds.append(time.process_time() - began)
                    size += len(piece)
                    began = time.process_time()
                longest.append(max(holds))
        return {"page_kb": round(size / 1024), "hold_ms": statistics.median(longest) * 1e3}


def _topic(n: int) -> Topic:
    return Topic(f"metrics-{n % 200}-{n}", 10)


BENCHMARK = Benchmark(
    run,
    options=(
        ("queues", 300, "physical queues"),
        ("messages", 300_000, "backlog of a turn"),
        ("turns", 5, "turns with metrics, and as many without"),
        ("topics", 3_000, "topics of the host that is scraped, under 200 handlers"),
    ),
    figures=(Figure("ratio", ">=", 0.9), Figure("hold_ms", "<=", 5)),
)
