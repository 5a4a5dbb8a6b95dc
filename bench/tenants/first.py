"""The first publish to a name: from the call of publish until the handler starts, beside a family's other topics."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any, NamedTuple

import emq
from bench.support.figures import percentile
from bench.support.stage import Stage
from bench.tenants import family, starts
from bench.tenants.waits import Waits
from bench.tenants.watched_host import watched

OPTIONS = (
    ("topics", 60_000, 200, "other topics of the family, awake on the host"),
    ("publishes", 200, 3, "publishes, each to a name never seen before"),
)

APART_S = 1.0
"""Most seconds between a start and the next publish. The time is random, since starts keep to the seconds: a publish
right after each start would always find the same part of a second left."""


class Publish(NamedTuple):
    """When a publish was called and when it returned, by the clock that all processes of the machine share."""

    called_s: float
    returned_s: float


async def publisher(url: str, database: str, started: Path, first: int, count: int, waits: Waits) -> dict[int, Publish]:
    """Publish to one new name after the other, each after the start of the one before; the first warms up.

    Raises:
        InvalidRun: as `Waits.until`.
    """
    random_ = random.Random(1)
    published = dict[int, Publish]()
    async with emq.App(url, database=database) as app:
        for number in range(first, first + 1 + count):
            await asyncio.sleep(random_.random() * APART_S)
            message = family.message_to(number)
            called_s = time.monotonic()
            await app.publish(message.topic, message.payload)
            published[number] = Publish(called_s, time.monotonic())
            await starts.reached(started, len(published), waits)
    del published[first]
    return published


async def run(stage: Stage, *, topics: int, publishes: int, patience: float) -> dict[str, Any]:
    async with stage.app() as app:
        await family.create(app, most=topics + publishes + 1, idle_s=None)
    await family.make(stage, topics)
    with watched(stage, patience) as host:
        stage.say("starting the host")
        await host.start(topics)
        host.must_have(topics)
        async with stage.progress("publishing", publishes + 1, lambda: starts.count(host.starts)):
            published = await stage.elsewhere(
                publisher, stage.url, stage.database, host.starts, topics, publishes, host.waits
            )
        await host.stop()
        started_s = starts.read(host.starts)
    waits_ms = [(started_s[number] - one.called_s) * 1000 for number, one in published.items()]
    publish_ms = [(one.returned_s - one.called_s) * 1000 for one in published.values()]
    return {
        "first_start_p50_ms": percentile(waits_ms, 50),
        "first_start_p99_ms": percentile(waits_ms, 99),
        "first_start_max_ms": max(waits_ms),
        "first_publish_p50_ms": percentile(publish_ms, 50),
        "first_publish_p99_ms": percentile(publish_ms, 99),
        "messages": len(waits_ms),
    }
