"""Cost of recording the trail in a host at a given rate of starts, by the interval between segments."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

import emq
from bench.support.backlog import fill
from bench.support.figures import Benchmark, Figure, percentile
from bench.support.stage import Stage, Stopwatch
from emq.runtime import plurals
from emq.runtime.clock import SystemClock
from emq.storage.message import Message
from emq.topics.model import Topic
from emq.trail.options import TrailOptions
from emq.trail.writer import Trail

TOPICS = 20
TICK_S = 0.005
"""Seconds between two checks of the event loop's delay."""
SETTLE_S = 3.0
"""Seconds until a new host starts its whole quota."""

EVERY_S = (0.0, 2.0, 1.0)
"""Seconds between two segments; 0 for no trail."""


async def run(stage: Stage, *, rate: int, seconds: int) -> dict[str, Any]:
    values: dict[str, Any] = {"rate": rate}
    with tempfile.TemporaryDirectory(prefix="emq-bench-") as directory:
        for every_s in EVERY_S:
            name = f"each_{every_s:g}_s" if every_s else "none"
            stage.say(
                f"starting {plurals.count(rate, 'message')} a second for {seconds} s; trail: {name.replace('_', ' ')}"
            )
            found = await _measure(stage, Path(directory) / name, rate, seconds, every_s)
            values |= {f"{name}_{figure}": value for figure, value in found.items()}
    values["cost_us"] = values["each_1_s_cpu_us"] - values["none_cpu_us"]
    values["twice_as_often_us"] = values["each_1_s_cpu_us"] - values["each_2_s_cpu_us"]
    return values


async def _measure(stage: Stage, directory: Path, rate: int, seconds: int, every_s: float) -> dict[str, float]:
    """Return CPU microseconds for each message, and the event loop's delay, while a host starts a backlog at `rate`."""
    started = 0
    late_ms: list[float] = []

    async def handle(_: Message) -> None:
        nonlocal started
        started += 1

    async def tick() -> None:
        while True:
            at = time.perf_counter()
            await asyncio.sleep(TICK_S)
            late_ms.append((time.perf_counter() - at - TICK_S) * 1000)

    options = TrailOptions(rotate_s=every_s or 1.0)
    trail = Trail.open(directory, "bench", SystemClock(), options) if every_s else None
    async with emq.App(stage.url, database=stage.database, trail=trail) as app:
        each = rate // TOPICS
        made = [Topic(f"{directory.name}-{i}", each, group_qps=each, priorities=("only",)) for i in range(TOPICS)]
        topics = await app.admin.create(made)
        await stage.elsewhere(fill, stage.url, topics, round(each * (seconds + SETTLE_S + 1)))
        app.handlers.bind("*", handle)
        async with app.running():
            await asyncio.sleep(SETTLE_S)
            before, watch = started, Stopwatch()
            ticking = asyncio.create_task(tick())
            await asyncio.sleep(seconds)
            ticking.cancel()
            cpu_us = watch.cpu_s / (started - before) * 1e6
            per_s = (started - before) / watch.wall_s
    found = {"cpu_us": cpu_us, "started_per_s": per_s, "late_p99_ms": percentile(late_ms, 99)}
    if trail is not None:
        found |= await asyncio.to_thread(_closed, trail, directory)
    return found


def _closed(trail: Trail, directory: Path) -> dict[str, float]:
    trail.close()
    told = trail.statistics()
    size = sum(path.stat().st_size for path in directory.iterdir())
    return {"bytes_per_event": size / told.written, "segments": told.segments, "dropped": told.dropped}


BENCHMARK = Benchmark(
    run,
    options=(("rate", 40_000, "messages started a second"), ("seconds", 10, "seconds of each measurement")),
    figures=(Figure("cost_us", "<=", 6.0), Figure("twice_as_often_us", "<=", 1.0)),
)
