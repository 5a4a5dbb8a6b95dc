"""Sorted topics: adding, and the full two-phase cycle (store, prepare, gone), alone and both at once."""

from __future__ import annotations

import asyncio
import importlib.resources
import os
import time
from typing import Any

import redis.asyncio

import emq
from bench.support.figures import Benchmark, Figure
from bench.support.stage import UNLIMITED, Stage, Stopwatch
from emq.runtime import plurals
from emq.storage.message import Message
from emq.topics.model import Kind, Topic, TopicOptions

BYTES = 100
CHUNK = 2_000
CLAIM = 100
"""Members in one claim of the bare loop."""


def topic(name: str, kind: Kind, slots: int, **options: Any) -> Topic:
    """Return a sorted topic with a quota that no benchmark reaches."""
    chosen = TopicOptions(max_in_flight=20_000, **options)
    return Topic(name, UNLIMITED * slots, UNLIMITED, (), kind=kind, slots=slots, options=chosen)


def payloads(start: int, count: int) -> list[bytes]:
    """Return messages of 100 bytes, all of them different, also from those of other calls."""
    filling = os.urandom(BYTES - 20).hex()[: BYTES - 20]
    return [b"%020d%s" % (i, filling.encode()) for i in range(start, start + count)]


async def add(url: str, database: str, name: str, start: int, total: int) -> float:
    """Publish `total` messages from this process; return the messages a second."""
    async with emq.App(url, database=database) as app:
        chunks = [payloads(at, min(CHUNK, start + total - at)) for at in range(start, start + total, CHUNK)]
        await app.publish_many(name, chunks[0], priority=50)
        following = iter(chunks[1:])

        async def publisher() -> None:
            for chunk in following:
                await app.publish_many(name, chunk, priority=50)

        watch = Stopwatch()
        await asyncio.gather(publisher(), publisher())
        return (total - len(chunks[0])) / watch.wall_s


async def floor(url: str, slots: int, total: int) -> float:
    """Return the cycles a second of the bare client: claim a batch of one slot, acknowledge it; two loops at once."""
    client = redis.asyncio.Redis.from_url(url.partition("?")[0])
    script = client.register_script(importlib.resources.files("bench.engine").joinpath("floor_claim.lua").read_text())
    names = [(f"floor_{i}", f"prepare{{floor_{i}}}") for i in range(slots)]
    for start in range(0, total, CHUNK):
        members = payloads(start, CHUNK)
        await client.zadd(names[start // CHUNK % slots][0], dict.fromkeys(members, 50))
    left = total

    async def consumer(mine: list[tuple[str, str]]) -> None:
        nonlocal left
        while left > 0:
            for store, prepare in mine:
                members = await script(keys=[store, prepare], args=[CLAIM, int(time.time()) * 1000 + 16])
                if members:
                    await client.zrem(prepare, *members)
                    left -= len(members)

    watch = Stopwatch()
    await asyncio.gather(consumer(names[::2]), consumer(names[1::2]))
    per_s = total / watch.wall_s
    await client.aclose()
    return per_s


async def run(stage: Stage, *, messages: int, slots: int, kind: str) -> dict[str, Any]:
    chosen = Kind(kind)
    if chosen is not Kind.PRIORITY:
        raise emq.InvalidSettings(f"kind {kind!r}: this bench adds by priority; see timer and merge for the others")
    async with stage.app() as app:
        await app.admin.create([topic("alone", chosen, slots), topic("both", chosen, slots)])
        stage.say(f"adding {plurals.count(messages, 'message')} to {plurals.count(slots, 'slot')}")
        added = await stage.elsewhere(add, stage.url, stage.database, "alone", 0, messages)
        seen = {"alone": 0, "both": 0}
        done = {"alone": asyncio.Event(), "both": asyncio.Event()}
        began: dict[str, float] = {}

        @app.handler("*")
        async def handle(m: Message) -> None:
            count = seen[m.topic] = seen[m.topic] + 1
            if count == 1:
                began[m.topic] = time.perf_counter()
            elif count == messages:
                done[m.topic].set()

        stage.say("consuming them")
        server_cpu_s, watch = stage.server_cpu_s(), Stopwatch()
        async with app.running():
            await done["alone"].wait()
            consumed = (messages - 1) / (time.perf_counter() - began["alone"])
            host_us, server_us = watch.cpu_s / messages * 1e6, (stage.server_cpu_s() - server_cpu_s) / messages * 1e6
            stage.say("adding and consuming at once")
            while app.host is not None and app.host.work.dispatcher.flight.count:
                await asyncio.sleep(0.01)
            both_added = await stage.elsewhere(add, stage.url, stage.database, "both", 0, messages)
            await done["both"].wait()
            both_consumed = (messages - 1) / (time.perf_counter() - began["both"])
        [lag, both_lag] = await app.admin.slot_lag(await app.catalog.list("*"))
        assert not any([*lag[1:], *both_lag[1:]]), f"left over: {lag}, {both_lag}"
    values = {
        "add_per_s": round(added),
        "consume_per_s": round(consumed),
        "both_per_s": round(min(both_added, both_consumed)),
        "both_added_per_s": round(both_added),
        "both_consumed_per_s": round(both_consumed),
        "host_cpu_us_per_message": host_us,
        "server_cpu_us_per_message": server_us,
    }
    if stage.store == "redis":
        stage.say("measuring the bare cycle")
        values["floor_cycle_per_s"] = round(await stage.elsewhere(floor, stage.url, slots, messages))
    return values


BENCHMARK = Benchmark(
    run,
    options=(
        ("messages", 500_000, "messages in each of the three parts"),
        ("slots", 64, "slots of the topic, a power of two"),
        ("kind", "priority", "kind of the topic"),
    ),
    figures=(
        Figure("add_per_s", ">=", 200_000),
        Figure("consume_per_s", ">=", 150_000),
        Figure("both_per_s", ">=", 80_000),
    ),
)
