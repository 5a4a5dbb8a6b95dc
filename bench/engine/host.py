"""Messages a second that one host process drains from a backlog in N physical queues, with unlimited quota."""

from __future__ import annotations

import asyncio
import resource
import statistics
from typing import Any

from bench.engine.floor import read_floor
from bench.support.backlog import fill
from bench.support.figures import Benchmark, Figure
from bench.support.stage import Stage, Stopwatch, unlimited_topics
from emq.runtime import plurals
from emq.storage.message import Message


async def run(stage: Stage, *, queues: int, messages: int) -> dict[str, Any]:
    per_queue = max(1, messages // queues)
    seen = 0
    everything = asyncio.Event()

    async with stage.app() as app:
        topics = await app.admin.create(unlimited_topics(queues))
        stage.say(f"filling {plurals.count(queues, 'queue')} with {plurals.count(per_queue, 'message')} each")
        total = await stage.elsewhere(fill, stage.url, topics, per_queue)
        floor_per_s = 0.0
        if stage.store == "redis":
            stage.say("measuring the bare loop")
            floors = [await stage.elsewhere(read_floor, stage.url, topics, per_queue) for _ in range(3)]
            floor_per_s = statistics.median(floors)

        @app.handler("*")
        async def handle(_: Message) -> None:
            nonlocal seen
            seen += 1
            if seen == 1:
                first.set()
            if seen >= total:
                everything.set()

        first = asyncio.Event()
        stage.say("draining")
        starting, server_cpu_s = Stopwatch(), stage.server_cpu_s()
        async with app.running() as host:
            start_s = starting.wall_s
            await first.wait()
            before, watch = seen, Stopwatch()
            await everything.wait()
            consumed_per_s = (total - before) / watch.wall_s
            values = {
                "consumed_per_s": round(consumed_per_s),
                "floor_per_s": round(floor_per_s),
                "ratio": consumed_per_s / floor_per_s if floor_per_s else 0.0,
                "start_s": start_s,
                "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                "messages": total,
                "host_cpu_us_per_message": watch.cpu_s / (total - before) * 1e6,
                "server_cpu_us_per_message": (stage.server_cpu_s() - server_cpu_s) / total * 1e6,
            }
            stopping = Stopwatch()
        values |= {"stop_s": stopping.wall_s, "checkpoints": host.work.checkpointer.saved}
        unfinished = sum(lag.unfinished for lag in await app.admin.lag(topics))
        assert unfinished == 0, f"{plurals.count(unfinished, 'message')} not checkpointed"
        return values


BENCHMARK = Benchmark(
    run,
    options=(("queues", 3_000, "physical queues"), ("messages", 3_000_000, "backlog in all")),
    figures=(Figure("consumed_per_s", ">=", 300_000), Figure("rss_mb", "<=", 500), Figure("start_s", "<=", 10)),
)
