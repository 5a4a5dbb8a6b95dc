"""Whether a large backlog costs more than a small one: consumption as it shrinks, start, lag and what is trimmed."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from bench.support.backlog import fill
from bench.support.stage import Stage, Stopwatch, unlimited_topics
from emq.runtime import plurals
from emq.storage.message import Message

QUEUES = 300
PARTS = 5
TRIMMED_S = 120.0
LOOK_S = 0.2

OPTIONS = (("messages", 5_000_000, 100_000, "messages that wait, in 300 queues"),)
STORES = ("redis", "sqlite", "postgres")


async def run(stage: Stage, *, messages: int) -> dict[str, Any]:
    """Drain the backlog; `backlog_flat` is the rate of the slowest fifth over that of the fastest."""
    async with stage.app() as app:
        topics = await app.admin.create(unlimited_topics(QUEUES))
        stage.say(f"filling {plurals.count(QUEUES, 'queue')} with {plurals.count(messages, 'message')}")
        filling = Stopwatch()
        total = await stage.elsewhere(fill, stage.url, topics, messages // QUEUES)
        values: dict[str, Any] = {"backlog_filled_per_s": total / filling.wall_s}
        watch = Stopwatch()
        waiting = sum(lag.unfinished for lag in await app.admin.lag(topics))
        values |= {"backlog_lag_ms": watch.wall_s * 1e3, "backlog_messages": waiting}
        seen, marks, done = 0, list[float](), asyncio.Event()
        part = total // PARTS

        @app.handler("*")
        async def handle(_: Message) -> None:
            nonlocal seen
            seen += 1
            if seen % part == 1:
                marks.append(watch.wall_s)
            if seen == total:
                marks.append(watch.wall_s)
                done.set()

        stage.say("draining")
        starting = watch = Stopwatch()
        async with app.running():
            values["backlog_start_s"] = starting.wall_s
            await done.wait()
            rates = [part / (after - before) for before, after in itertools.pairwise(marks)][:PARTS]
            values |= {f"backlog_part{i}_per_s": rate for i, rate in enumerate(rates, 1)}
            values["backlog_flat"] = min(rates) / max(rates)
            trimming = Stopwatch()
            lag = waiting
            while lag and trimming.wall_s < TRIMMED_S:
                await asyncio.sleep(LOOK_S)
                lag = sum(one.unfinished for one in await app.admin.lag(topics))
            values |= {"backlog_saved_s": trimming.wall_s, "backlog_unfinished": lag}
    return values
