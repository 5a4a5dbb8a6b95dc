"""How many handlers can wait at a time: starts a second, beside what as many handlers would do without any cost."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from bench.cluster.crew import InvalidRun
from bench.support.backlog import fill
from bench.support.stage import Stage, Stopwatch, unlimited_topics
from emq.runtime import plurals
from emq.runtime.settings import Settings
from emq.storage.message import Message

IN_FLIGHT = (1, 10, 100, 1_000, 5_000, 20_000)
QUEUES = 30

OPTIONS = (
    ("wait", 0.5, 0.05, "seconds that each handler waits"),
    ("rounds", 8, 4, "messages for each handler that may run at a time"),
    ("most", 20_000, 1_000, "most handlers in flight"),
)
STORES = ("redis", "sqlite", "memory", "postgres")


async def run(stage: Stage, *, wait: float, rounds: int, most: int) -> dict[str, Any]:
    if wait <= 0:
        raise InvalidRun(f"--handlers-wait: {wait:g} is too small")
    async with stage.app() as app:
        topics = await app.admin.create(unlimited_topics(QUEUES))
    values: dict[str, Any] = {}
    for in_flight in [number for number in IN_FLIGHT if number <= most]:
        per_queue = -(-rounds * in_flight // QUEUES)
        total = await stage.elsewhere(fill, stage.url, topics, per_queue)
        stage.say(f"{plurals.count(in_flight, 'handler')} at a time, {plurals.count(total, 'message')}")
        running = await Running(stage, in_flight, wait, total).drained()
        values |= {
            f"handlers_{in_flight}_per_s": total / running.wall_s,
            f"handlers_{in_flight}_use": total * wait / in_flight / running.wall_s,
            f"handlers_{in_flight}_cpu_us": running.cpu_s / total * 1e6,
            f"handlers_{in_flight}_most": running.most,
        }
    return values


class Running:
    """The handlers of one host, from the first start to the last end.

    Attributes:
        most: the most handlers that ran at a time.
        wall_s, cpu_s: seconds in all.
    """

    def __init__(self, stage: Stage, in_flight: int, wait_s: float, total: int) -> None:
        self.most = self._now = self._ended = 0
        self.wall_s = self.cpu_s = 0.0
        self._stage, self._in_flight, self._wait_s, self._total = stage, in_flight, wait_s, total
        self._watch = Stopwatch()
        self._done = asyncio.Event()

    async def drained(self) -> Self:
        async with self._stage.app(Settings(max_in_flight=self._in_flight)) as app:
            app.handler("*")(self._handle)
            async with app.running():
                await self._done.wait()
        return self

    async def _handle(self, _: Message) -> None:
        if not self.most:
            self._watch = Stopwatch()
        self._now += 1
        self.most = max(self.most, self._now)
        await asyncio.sleep(self._wait_s)
        self._now -= 1
        self._ended += 1
        if self._ended == self._total:
            self.wall_s, self.cpu_s = self._watch.wall_s, self._watch.cpu_s
            self._done.set()
