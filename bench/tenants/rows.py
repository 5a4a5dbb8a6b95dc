"""Topics that have a row in the catalog, of which few are awake: what they cost hosts and producers."""

from __future__ import annotations

import gc
from typing import Any

import psutil

import emq
from bench.support.stage import Stage
from bench.tenants import family, starts
from bench.tenants.watched_host import watched

OPTIONS = (
    ("topics", 1_000_000, 1_000, "topics with a setting, and so a row, of their own"),
    ("awake", 10_000, 50, "topics that get a message before the host starts"),
    ("published", 1_000, 20, "topics to which the measured producer publishes"),
    ("idle-seconds", 20.0, 1.0, "seconds of watching the idle host"),
)

BATCH = 1_000


async def publisher(url: str, database: str, count: int) -> dict[str, float]:
    """Publish to topics as a process of its own; return its megabytes once it is open and at the end."""
    async with emq.App(url, database=database) as app:
        gc.collect()
        before = psutil.Process().memory_info().rss
        for start in range(0, count, BATCH):
            await family.publish(app, range(start, min(count, start + BATCH)))
        gc.collect()
        return {"before": before / 1e6, "after": psutil.Process().memory_info().rss / 1e6}


async def run(
    stage: Stage, *, topics: int, awake: int, published: int, idle_seconds: float, patience: float
) -> dict[str, Any]:
    awake, published = min(topics, awake), min(topics, published)
    async with stage.app() as app:
        await family.create(app, most=topics, idle_s=None)
    await family.make(stage, topics, asleep=True)
    await stage.elsewhere(publisher, stage.url, stage.database, awake)
    with watched(stage, patience) as host:
        stage.say("starting the host")
        await host.start(awake)
        await starts.reached(host.starts, awake, host.waits)
        stage.say(f"idle for {idle_seconds:g} s")
        cpu_percent = await host.idle_cpu_percent(idle_seconds)
        rss = host.rss_bytes
        producer = await stage.elsewhere(publisher, stage.url, stage.database, published)
        await starts.reached(host.starts, awake + published, host.waits)
        await host.stop()
    return {
        "start_s": host.start_s,
        "host_mb": rss / 1e6,
        "producer_mb": producer["after"],
        "producer_mb_before_publishing": producer["before"],
        "idle_cpu_percent": cpu_percent,
        "acquired_groups": host.groups,
    }
