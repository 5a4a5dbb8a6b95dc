"""What a message costs as it grows: bytes a second in and out, beside the bare client, and stalls of the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import AsyncIterator
from typing import Any

import redis.asyncio

import emq
from bench.engine.floor import PUT_LISTS, put_floor, read_lists
from bench.support.stage import UNLIMITED, Stage, Stopwatch
from emq.runtime import plurals
from emq.storage import message
from emq.topics.model import Topic, TopicOptions

SIZES = {"100b": 100, "1kb": 1_000, "10kb": 10_000, "100kb": 100_000, "1mb": 1_000_000, "10mb": 10_000_000}
"""Bytes of a payload, by the name in the figures."""

CALL_BYTES = 4_000_000
CALL_MESSAGES = 500
"""Most bytes and messages in one call of a publisher or of the bare client, at least one message."""

OPTIONS = (("megabytes", 200, 4, "bytes of each size, in millions"),)
STORES = ("redis",)

PUBLISHERS = len(PUT_LISTS)
PROBE_S = 0.001
ROUNDS = 3
MOST_MESSAGES = 200_000


def together(size: int) -> int:
    """Return the number of messages of this size in one call."""
    return max(1, min(CALL_MESSAGES, CALL_BYTES // size))


class Stalls:
    """The longest time for which the event loop ran nothing else. Attributes: longest_s."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._probe())
        try:
            yield
        finally:
            task.cancel()

    async def _probe(self) -> None:
        while True:
            watch = Stopwatch()
            await asyncio.sleep(PROBE_S)
            self.longest_s = max(self.longest_s, watch.wall_s - PROBE_S)


async def bare(url: str, size: int, count: int) -> tuple[float, float]:
    """Return the bytes of payload a second that the bare client appends, and that it reads and decodes."""
    n = together(size)
    appended_per_s = await put_floor(url, count, b"x" * size, n)
    read_per_s = await read_lists(url, PUT_LISTS, count // len(PUT_LISTS), n)
    async with redis.asyncio.Redis.from_url(url.partition("?")[0]) as client:
        await client.delete(*PUT_LISTS)
    return appended_per_s * size, read_per_s * size


async def put(app: emq.App, topic: str, size: int, count: int) -> float:
    """Return the bytes of payload a second that one process publishes, with two calls under way."""
    payload, n = b"x" * size, together(size)

    async def publisher() -> None:
        for _ in range(count // n // PUBLISHERS):
            await app.publish_many(topic, [payload] * n)

    watch = Stopwatch()
    await asyncio.gather(*(publisher() for _ in range(PUBLISHERS)))
    return count // n // PUBLISHERS * PUBLISHERS * n * size / watch.wall_s


async def get(stage: Stage, topic: str, total: int, size: int, stalls: Stalls) -> float:
    """Return the bytes of payload a second that a host hands to an empty handler, from its first message on."""
    taken, watch, last = 0, Stopwatch(), asyncio.Event()
    async with stage.app() as app:

        @app.handler(topic)
        async def handle(received: message.Message) -> None:
            nonlocal taken, watch
            if not taken:
                watch = Stopwatch()
            taken += 1
            if taken >= total:
                last.set()

        async with app.running(), stalls.watched():
            await last.wait()
            return (total - 1) * size / watch.wall_s


async def run(stage: Stage, *, megabytes: int) -> dict[str, Any]:
    """Measure each size in turns with the bare client; ratios are medians of rounds, stalls the longest of them."""
    ratios: dict[str, list[float]] = {}
    values: dict[str, Any] = {}
    putting, getting = ({name: Stalls() for name in SIZES} for _ in range(2))
    async with stage.app() as app:
        options = TopicOptions(max_payload=2 * max(SIZES.values()))
        await app.admin.create([Topic(f"of.{name}", UNLIMITED, group_qps=UNLIMITED, options=options) for name in SIZES])
        for _ in range(ROUNDS):
            for name, size in SIZES.items():
                n = together(size) * PUBLISHERS
                count = max(4, min(MOST_MESSAGES, megabytes * 1_000_000 // size) // n) * n
                stage.say(f"{plurals.count(count, 'message')} of {size:,} bytes")
                bare_in, bare_out = await bare(stage.url, size, count)
                async with putting[name].watched():
                    came_in = await put(app, f"of.{name}", size, count)
                came_out = await get(stage, f"of.{name}", count, size, getting[name])
                for what, figure in {
                    "put_mb_per_s": came_in / 1e6,
                    "get_mb_per_s": came_out / 1e6,
                    "put_ratio": came_in / bare_in,
                    "get_ratio": came_out / bare_out,
                }.items():
                    ratios.setdefault(f"payload_{name}_{what}", []).append(figure)
    values |= {name: statistics.median(figures) for name, figures in ratios.items()}
    for name in SIZES:
        values[f"payload_{name}_put_stall_ms"] = putting[name].longest_s * 1e3
        values[f"payload_{name}_get_stall_ms"] = getting[name].longest_s * 1e3
    values["payload_stall_ms"] = max(putting["1mb"].longest_s, getting["1mb"].longest_s) * 1e3
    return values
