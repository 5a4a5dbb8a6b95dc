"""Millions of messages that wait for their due times: their cost while none is due, and the delay of their starts."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import emq
from bench.sorted.rmq import CHUNK, payloads, topic
from bench.support.figures import Benchmark, Figure, percentile
from bench.support.stage import Stage, Stopwatch
from emq.runtime import plurals
from emq.storage.message import Message
from emq.topics.model import Kind

FAR_MS = 3_600_000
IDLE_S = 10.0
AHEAD_S = 3.0


async def pend(url: str, database: str, name: str, total: int) -> None:
    """Publish `total` messages with due times from an hour from now on."""
    async with emq.App(url, database=database) as app:
        due_ms = time.time() * 1000 + FAR_MS
        for start in range(0, total, CHUNK):
            part = payloads(start, min(CHUNK, total - start))
            await app.publish_many(name, part, scores=[due_ms + start + i for i in range(len(part))])


async def fall_due(url: str, database: str, name: str, rate: int, seconds: int, first: int) -> None:
    """Publish `rate` messages for each of `seconds` seconds, spread over the milliseconds, some seconds ahead."""
    async with emq.App(url, database=database) as app:
        begin_ms = time.time() * 1000 + AHEAD_S * 1000
        started = time.monotonic()
        for second in range(seconds * 10):
            await asyncio.sleep(max(0.0, started + second / 10 - time.monotonic()))
            part = payloads(first + second * rate // 10, rate // 10)
            scores = [int(begin_ms + second * 100 + i * 100 / len(part)) for i in range(len(part))]
            await app.publish_many(name, part, scores=scores)


async def run(stage: Stage, *, pending: int, rate: int, seconds: int, slots: int) -> dict[str, Any]:
    async with stage.app() as app:
        await app.admin.create([topic("timer", Kind.FIXED_TIME, slots, precision="millisecond", ordering="none")])
        before = await _used_memory(stage)
        stage.say(f"{plurals.count(pending, 'message')} for later")
        await stage.elsewhere(pend, stage.url, stage.database, "timer", pending)
        memory = await _used_memory(stage) - before
        late_ms: list[float] = []

        @app.handler("*")
        async def handle(m: Message) -> None:
            late_ms.append(m.started_us / 1000 - m.score)

        async with app.running():
            await asyncio.sleep(3)
            stage.say(f"{IDLE_S:g} s with nothing due")
            idle, server_cpu_s = Stopwatch(), stage.server_cpu_s()
            await asyncio.sleep(IDLE_S)
            idle_percent = idle.cpu_s / idle.wall_s * 100
            idle_server_percent = (stage.server_cpu_s() - server_cpu_s) / IDLE_S * 100
            stage.say(f"{rate:,} a second falling due, {seconds} s")
            busy = Stopwatch()
            await stage.elsewhere(fall_due, stage.url, stage.database, "timer", rate, seconds, pending)
            while len(late_ms) < rate * seconds and busy.wall_s < seconds + AHEAD_S + 30:
                await asyncio.sleep(0.1)
            busy_percent = busy.cpu_s / busy.wall_s * 100
    return {
        "pending": pending,
        "delivered": len(late_ms),
        "early": sum(late < 0 for late in late_ms),
        "p50_ms": percentile(late_ms, 50),
        "p99_ms": percentile(late_ms, 99),
        "max_ms": max(late_ms, default=0.0),
        "cpu_percent": idle_percent,
        "server_cpu_percent": idle_server_percent,
        "busy_cpu_percent": busy_percent,
        "bytes_per_pending": round(memory / pending),
    }


async def _used_memory(stage: Stage) -> int:
    """Return the bytes that the server holds; 0 if it does not tell."""
    if stage.store != "redis":
        return 0
    import redis.asyncio

    client = redis.asyncio.Redis.from_url(stage.url.partition("?")[0])
    info = await client.info("memory")
    await client.aclose()
    return int(info["used_memory"])


BENCHMARK = Benchmark(
    run,
    options=(
        ("pending", 1_000_000, "messages that wait for later"),
        ("rate", 5_000, "messages a second that fall due"),
        ("seconds", 20, "seconds in which messages fall due"),
        ("slots", 64, "slots of the topic, a power of two"),
    ),
    figures=(
        Figure("early", "==", 0),
        Figure("p50_ms", "<", 5),
        Figure("p99_ms", "<", 25),
        Figure("cpu_percent", "<", 1.5),
    ),
)
