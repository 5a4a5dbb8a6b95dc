"""CPU and memory of an idle host that owns many empty queues."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

from bench.support.figures import Benchmark, Figure
from bench.support.stage import Stage, Stopwatch, unlimited_topics
from emq.storage.message import Message


async def handle(_: Message) -> None:
    pass


async def run(stage: Stage, *, queues: int, seconds: float, settle: float) -> dict[str, Any]:
    async with stage.app() as app:
        await app.admin.create(unlimited_topics(queues))
        app.handlers.bind("*", handle)
        starting = Stopwatch()
        async with app.running() as host:
            start_s = starting.wall_s
            while len(host.work.readiness):
                await asyncio.sleep(0.1)
            await asyncio.sleep(settle)
            stage.say(f"idle for {seconds:g} s")
            watch, server_cpu_s = Stopwatch(), stage.server_cpu_s()
            await asyncio.sleep(seconds)
            return {
                "cpu_percent": watch.cpu_s / watch.wall_s * 100,
                "server_cpu_percent": (stage.server_cpu_s() - server_cpu_s) / watch.wall_s * 100,
                "start_s": start_s,
                "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }


BENCHMARK = Benchmark(
    run,
    options=(
        ("queues", 60_000, "physical queues"),
        ("seconds", 20.0, "seconds of watching"),
        (
            "settle",
            3.0,
            "seconds before, for what belongs to the start; the first sweep of all queues begins after 120",
        ),
    ),
    figures=(Figure("cpu_percent", "<", 1.5),),
)
