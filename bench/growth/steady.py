"""What a steady flow costs: messages come in one by one, at random, to tenants that are all awake.

A backlog is the cheapest work that there is, since one read brings many messages. A steady flow is what a platform has.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import psutil
import redis.asyncio

import emq
from bench.cluster.crew import InvalidRun
from bench.support.stage import Stage, Stopwatch
from bench.tenants import family
from emq.producer.outgoing import Outgoing
from emq.runtime import errors, plurals
from emq.storage.message import Message

TICK_S = 0.005
"""Time between two calls of the publisher; messages of one tick go to tenants by chance, as from many callers."""

AT_ONCE = 1_000
"""Tenants that get their first message in one call."""

BEHIND_S = 2.0
"""A run counts only if no more than this much of the flow waits at its end."""

OPTIONS = (
    ("tenants", 3_000, 300, "tenants that are awake"),
    ("rate", 3_000, 300, "messages a second to all of them"),
    ("payload", 100, 100, "bytes of a message"),
    ("seconds", 15, 3, "seconds of watching"),
)
STORES = ("redis",)


async def run(stage: Stage, *, tenants: int, rate: int, payload: int, seconds: int) -> dict[str, Any]:
    seen = 0
    async with stage.app() as app:
        await family.create(app, most=tenants, idle_s=None)

        @app.handler("*")
        async def handle(_: Message) -> None:
            nonlocal seen
            seen += 1

        bare_bytes = await _used_bytes(stage)
        async with app.running() as host:
            stage.say(f"waking {plurals.count(tenants, 'tenant')}")
            await stage.elsewhere(wake, stage.url, stage.database, tenants)
            while seen < tenants:
                await asyncio.sleep(0.1)
            await asyncio.sleep(3.0)  # what belongs to waking is over
            awake_bytes = await _used_bytes(stage)
            stage.say(f"{rate} messages a second of {payload} bytes for {seconds} s")
            flow = asyncio.create_task(
                stage.elsewhere(publish, stage.url, stage.database, tenants, rate, payload, seconds + 4)
            )
            while seen < tenants + rate:  # the first second warms up
                await asyncio.sleep(0.05)
            before, saved, server_s, watch = seen, host.work.checkpointer.saved, stage.server_cpu_s(), Stopwatch()
            await asyncio.sleep(seconds)
            count, wall_s = seen - before, watch.wall_s
            values = {
                "steady_per_s": count / wall_s,
                "steady_host_us": watch.cpu_s / count * 1e6,
                "steady_store_us": (stage.server_cpu_s() - server_s) / count * 1e6,
                "steady_rows_per_s": (host.work.checkpointer.saved - saved) / wall_s,
                "steady_host_mb": psutil.Process().memory_info().rss / 1e6,
                "steady_store_bytes_a_tenant": (awake_bytes - bare_bytes) / tenants,
            }
            sent = await flow
            if values["steady_per_s"] < 0.95 * rate:
                raise InvalidRun(f"only {values['steady_per_s']:.0f} of {rate} messages a second were published")
            if (behind := tenants + sent - seen) > BEHIND_S * rate:
                raise InvalidRun(f"{behind} messages wait at the end, so the flow was more than the host could take")
            return values


async def wake(url: str, database: str, tenants: int) -> None:
    """Publish one message to each tenant."""
    async with emq.App(url, database=database) as app:
        for first in range(0, tenants, AT_ONCE):
            await family.publish(app, range(first, min(tenants, first + AT_ONCE)))


async def publish(url: str, database: str, tenants: int, rate: int, payload: int, seconds: int) -> int:
    """Publish at an even rate to tenants by chance; return the number of messages. Raises what kept one away."""
    chance, body = random.Random(1), b"x" * payload
    async with emq.App(url, database=database) as app:
        begun, sent = time.monotonic(), 0
        while (spent := time.monotonic() - begun) < seconds:
            due = int(spent * rate) - sent
            messages = [Outgoing(family.name_of(chance.randrange(tenants)), body) for _ in range(due)]
            for outcome in await app.send(messages) if messages else ():
                if isinstance(outcome, errors.EMQError):
                    raise outcome
            sent += due
            await asyncio.sleep(TICK_S)
        return sent


async def _used_bytes(stage: Stage) -> int:
    client = redis.asyncio.Redis.from_url(stage.url.partition("?")[0])
    try:
        return int((await client.info("memory"))["used_memory"])
    finally:
        await client.aclose()
