"""p99 wait of tenants with and without a flood, a slow endpoint and a failing endpoint beside them.

`--hang 300 --of 1000` measures the waits of 700 tenants beside 300 that hang; see `bench.engine.hanging`. `--start`
starts the host into tenants that hang; see `bench.engine.hung_start`. `--http` pushes to endpoints, of which some are
in trouble; see `bench.engine.troubles`.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import emq
from bench.engine import hanging, hung_start, troubles, victims
from bench.support.figures import Benchmark, Figure
from bench.support.pacing import steadily
from bench.support.stage import Stage
from emq.storage.message import Message
from emq.topics.model import Topic, TopicOptions

QPS = 20.0
FLOOD_FACTOR = 100
SLOW_S = 5.0
TICK_S = 0.1
NOISY = ("flooded", "slow", "failing")


async def publisher(url: str, database: str, tenants: int, seconds: float, seed: int, noisy: bool) -> dict[str, float]:
    """Publish the victims' messages at their times, and the noise if wanted; see `victims.publish`."""

    async def noise(app: emq.App) -> None:
        async for due in steadily(QPS * FLOOD_FACTOR, seconds, TICK_S):
            await app.publish_many("flooded", [b"x" * 100] * due)
            for tenant in ("slow", "failing"):
                await app.publish_many(tenant, [b"x" * 100] * max(1, round(QPS / 3 * TICK_S)))

    arrivals = victims.arrivals(tenants, tenants * QPS / 3, seconds, seed)
    return await victims.publish(url, database, arrivals, noise if noisy else None)


async def run(
    stage: Stage,
    *,
    tenants: int,
    seconds: float,
    rounds: int,
    hang: int,
    of: int,
    hang_qps: float,
    http: bool,
    trouble: str,
    rate: float,
    start: bool,
) -> dict[str, Any]:
    if start:
        return await hung_start.run(stage)
    if http:
        chosen = troubles.chosen(trouble, few=of // 50, crowd=hang or of * 3 // 10)
        return await troubles.run(stage, chosen, of=of, rate=rate, seconds=seconds, rounds=rounds)
    if hang:
        return await hanging.run(stage, hanging.Mix(hang, of - hang, hang_qps), seconds=seconds, rounds=rounds)
    names = [f"tenant-{i}" for i in range(tenants)]
    started: dict[str, float] = {}

    async def handle(message: Message) -> None:
        started[message.id] = time.monotonic()

    async def slow(_: Message) -> None:
        await asyncio.sleep(SLOW_S)

    async def failing(_: Message) -> None:
        raise emq.Retry("HTTP 500")

    async with stage.app() as app:
        options = TopicOptions(backoff_s=(0.5, 1.0, 2.0, 4.0), max_attempts=8)
        await app.admin.create([Topic(name, QPS, options=options) for name in (*names, *NOISY)])
        app.handlers.bind("tenant-*", handle)
        app.handlers.bind("flooded", handle)
        app.handlers.bind("slow", slow)
        app.handlers.bind("failing", failing)
        async with app.running():
            await asyncio.sleep(2)
            found, lost = victims.Waits(), 0
            for i in range(rounds):
                # The quiet half comes first in each round, so it never meets the flood's backlog.
                for noisy in (False, True):
                    stage.say(f"round {i + 1} of {rounds}, {seconds:g} s {'with' if noisy else 'without'} the noise")
                    began = await stage.elsewhere(publisher, stage.url, stage.database, tenants, seconds, i, noisy)
                    await asyncio.sleep(1.5)
                    waits = victims.waits_ms(began, started)
                    lost += len(began) - len(waits)
                    found.add(noisy, waits)
                for tenant in NOISY:
                    await app.admin.delete(tenant, force=True)
                await app.admin.create([Topic(name, QPS, options=options) for name in NOISY])
                await asyncio.sleep(2)
    return found.compared() | {"unstarted": lost}


BENCHMARK = Benchmark(
    run,
    options=(
        ("tenants", 200, "tenants whose waits are compared (the victims)"),
        ("seconds", 10.0, "seconds of each half of a round"),
        ("rounds", 5, "rounds, each with a half without and a half with the trouble"),
        ("hang", 0, "tenants whose endpoints hang, in place of the flood, the slow and the failing endpoint"),
        ("of", 1_000, "tenants in all, if some hang, or with --http"),
        ("hang-qps", hanging.QPS, "of each that hangs"),
        ("http", False, "push to endpoints over HTTP, of which some are in trouble"),
        ("trouble", "all", f"with --http: {', '.join(troubles.NAMES)}, several with commas between them, or all"),
        ("start", False, "start the host into tenants that hang, 10 to 80 % of all, by count and by bytes"),
        ("rate", troubles.RATE_PER_S, "with --http: messages a second to all good tenants together"),
    ),
    figures=(
        Figure("victim_p99_ratio", "<=", 1.2),
        Figure("unstarted", "==", 0),
        Figure("delivery_p99_ratio", "<=", 1.2),
        Figure("undelivered", "==", 0),
        Figure("start_share", ">=", 0.99),
    ),
)
