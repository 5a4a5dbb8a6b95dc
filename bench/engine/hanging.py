"""Waits of other tenants while hundreds of tenants hang at once, as when a region fails.

The benchmark publishes the same messages to all tenants in both halves of a round. In the first half all tenants
answer, in the second half some hang.

`python -m bench isolation --hang 300 --of 1000` is the usual mix. With `--hang 20 --of 720 --hang-qps 200` a few large
tenants hang, with `--hang 2500 --of 3200 --hang-qps 1` thousands of tiny ones.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

import emq
from bench.engine import victims
from bench.support.pacing import steadily
from bench.support.stage import Stage
from emq.host import garbage_collection
from emq.storage.message import Message
from emq.topics.model import Topic

QPS = 20.0
RATE_PER_S = 1_400.0
"""Messages a second to all victims together; two busy cores carry this rate with ease."""
WORK_S = 0.05
"""Seconds that a victim's handler takes."""
BACKLOG_S = 6.0
"""Backlog of a hanging tenant in seconds of its qps: more messages than it may have in flight."""
SETTLE_S = 2.0


class Mix(NamedTuple):
    """The numbers of tenants, and the qps of each hanging tenant."""

    hanging: int
    victims: int
    qps: float


async def publisher(url: str, database: str, mix: Mix, seconds: float, seed: int) -> dict[str, float]:
    """Publish the messages of all tenants; see `victims.publish`."""

    async def noise(app: emq.App) -> None:
        async for due in steadily(mix.qps, min(seconds, BACKLOG_S), max(0.1, 1 / mix.qps)):
            for i in range(mix.hanging):
                await app.publish_many(f"hanging-{i}", [b"x" * 100] * due)

    arrivals = victims.arrivals(mix.victims, RATE_PER_S, seconds, seed)
    return await victims.publish(url, database, arrivals, noise)


async def run(stage: Stage, mix: Mix, *, seconds: float, rounds: int) -> dict[str, Any]:
    started: dict[str, float] = {}
    released = asyncio.Event()
    is_hanging = False
    most_in_flight = 0

    async def handle(message: Message) -> None:
        started[message.id] = time.monotonic()
        await asyncio.sleep(WORK_S)

    async def hang(_: Message) -> None:
        if is_hanging:
            await released.wait()
        else:
            await asyncio.sleep(WORK_S)

    async with stage.app() as app:
        await app.admin.create(
            [Topic(f"tenant-{i}", QPS) for i in range(mix.victims)]
            + [Topic(f"hanging-{i}", mix.qps) for i in range(mix.hanging)]
        )
        app.handlers.bind("tenant-*", handle)
        app.handlers.bind("hanging-*", hang)
        async with app.running() as host:
            garbage_collection.shorten_pauses()  # as `emq host` does
            await asyncio.sleep(SETTLE_S)
            found, unstarted = victims.Waits(), 0
            for i in range(rounds):
                for is_hanging in (False, True):
                    stage.say(f"round {i + 1} of {rounds}, {seconds:g} s {'hanging' if is_hanging else 'all well'}")
                    released.clear()
                    began = await stage.elsewhere(publisher, stage.url, stage.database, mix, seconds, i)
                    await asyncio.sleep(SETTLE_S)
                    most_in_flight = max(most_in_flight, host.work.dispatcher.flight.count)
                    waits = victims.waits_ms(began, started)
                    unstarted += len(began) - len(waits)
                    found.add(is_hanging, waits)
                    released.set()
                    if is_hanging:
                        await asyncio.sleep(BACKLOG_S + SETTLE_S)
    return found.compared() | {"unstarted": unstarted, "most_in_flight": most_in_flight}
