"""Load for a cluster: topics with many small groups, and a publisher that keeps them a little below their quotas."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple

import emq

STEP_S = 0.1
FLAKY_EVERY = 10


class LoadTopic(NamedTuple):
    """A topic of the load.

    Attributes:
        groups: number of groups, each of `GROUP_QPS` starts a second.
        kind: the kind, see `emq.topics.model.Kind`.
    """

    name: str
    groups: int
    kind: str = "log"

    @property
    def qps(self) -> float:
        return self.groups * GROUP_QPS


GROUP_QPS = 10.0
TOPICS = (
    LoadTopic("orders", 20),
    LoadTopic("mails", 20),
    LoadTopic("calls", 16),
    LoadTopic("timed", 4, "fixed_time"),
)
FEW_TOPICS = (LoadTopic("orders", 8), LoadTopic("calls", 6), LoadTopic("timed", 2, "fixed_time"))


async def create(app: emq.App, topics: Sequence[LoadTopic] = TOPICS) -> None:
    for topic in topics:
        # By key, that is by content, so that slots are not held to one message at a time.
        sorted_options = {} if topic.kind == "log" else {"slots": topic.groups, "ordering": "key"}
        await app.create_topic(topic.name, topic.qps, kind=topic.kind, group_qps=GROUP_QPS, **sorted_options)


class Load:
    """Publishes to topics until it is told to stop.

    Attributes:
        sent: ids of all messages whose publish returned.
        shares: of a topic's qps that is published, by topic; 0.65 where it is not given. One tenth comes on top of
            that as retries.
    """

    def __init__(self, app: emq.App, topics: Sequence[LoadTopic], shares: Mapping[str, float] | None = None) -> None:
        self.sent: set[str] = set()
        self.shares = dict.fromkeys((t.name for t in topics), 0.65) | dict(shares or {})
        self._app = app
        self._topics = topics
        self._numbers = itertools.count()
        self._stopping = asyncio.Event()

    async def backlog(self, seconds: float) -> None:
        """Publish this many seconds of work at once."""
        for topic in self._topics:
            await self._publish(topic, round(topic.qps * seconds))

    async def run(self) -> None:
        owed = {topic.name: 0.0 for topic in self._topics}
        last = time.monotonic()
        while not self._stopping.is_set():
            now = time.monotonic()
            for topic in self._topics:
                owed[topic.name] += (now - last) * topic.qps * self.shares[topic.name]
                n = int(owed[topic.name])
                owed[topic.name] -= n
                await self._publish(topic, n)
            last = now
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), STEP_S)

    def stop(self) -> None:
        self._stopping.set()

    async def _publish(self, topic: LoadTopic, n: int) -> None:
        payloads = [self._payload(next(self._numbers)) for _ in range(n)]
        if topic.kind != "log":
            self.sent.update(await self._app.publish_many(topic.name, payloads, delay_ms=1))
            return
        for priority, some in (("high", payloads[::4]), ("mid", payloads[1::4]), ("low", payloads[2::4])):
            self.sent.update(await self._app.publish_many(topic.name, some, priority=priority))
        self.sent.update(await self._app.publish_many(topic.name, payloads[3::4]))

    def _payload(self, number: int) -> bytes:
        return b"%s %d" % (b"flaky" if number % FLAKY_EVERY == 0 else b"plain", number)


@contextlib.asynccontextmanager
async def under_load(
    app: emq.App, topics: Sequence[LoadTopic] = TOPICS, *, backlog_s: float = 1.0
) -> AsyncIterator[Load]:
    """Create the topics, and publish to them for the length of the block."""
    await create(app, topics)
    load = Load(app, topics)
    await load.backlog(backlog_s)
    running = asyncio.create_task(load.run())
    try:
        yield load
    finally:
        load.stop()
        await running
