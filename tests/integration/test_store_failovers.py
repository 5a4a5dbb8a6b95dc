"""Stores on real servers that go back in time under a live host: what is acknowledged after it is all delivered."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import emq
from emq.runtime import errors
from emq.runtime.clock import SystemClock
from emq.topics.model import Kind, Topic, TopicOptions
from emq.trail.options import TrailOptions
from emq.trail.writer import Trail
from emq_proof.proof import Expectations, prove
from support.loops import on_both_loops
from support.lossy_servers import LOSSY, Lossy
from support.waiting import until

GROUP_QPS = 50.0
RETRIES: dict[str, Any] = {"backoff_s": (0.5,), "jitter": 0.0}

TOPICS = (
    Topic("log", 100, group_qps=GROUP_QPS, priorities=("high", "low"), options=TopicOptions(**RETRIES)),
    Topic("keyed", 100, group_qps=GROUP_QPS, priorities=("p",), options=TopicOptions(**RETRIES)),
    Topic("slow", 6, priorities=("p",)),
    Topic("delayed", 100),
    Topic("timed", 100, kind=Kind.FIXED_TIME, slots=4, options=TopicOptions(precision="millisecond")),
)
"""`slow` has a backlog that nobody has read; a part of `log` fails once and waits in a lane."""

TOLD: dict[str, dict[str, Any]] = {"delayed": {"delay_ms": 400}, "timed": {"delay_ms": 400}}

Wanted = set[tuple[str, bytes]]


class Consumer:
    def __init__(self, app: emq.App) -> None:
        self.app = app
        self.handled: Wanted = set()
        app.handler("*")(self.handle)

    async def handle(self, m: emq.Message) -> None:
        if m.topic == "log" and m.attempt == 1 and m.payload.endswith(b"7"):
            raise ValueError("once")
        self.handled.add((m.topic, m.payload))

    async def publish(self, phase: str, count: int) -> Wanted:
        """Publish to every topic; returns what the store has acknowledged."""
        known: Wanted = set()
        for topic, i in itertools.product(TOPICS, range(count)):
            payload = f"{phase} {i}".encode()
            told = dict(TOLD.get(topic.name, {}))
            if topic.name == "keyed":
                told["key"] = f"k{i % 5}"
            while True:
                try:
                    await self.app.publish(topic.name, payload, **told)
                except errors.StoreUnavailable:
                    await asyncio.sleep(0.05)
                else:
                    known.add((topic.name, payload))
                    break
        return known

    async def until(self, wanted: Wanted, timeout_s: float = 30.0) -> None:
        try:
            await until(lambda: wanted <= self.handled, timeout_s)
        except AssertionError:
            missing = sorted(wanted - self.handled)
            pytest.fail(f"{len(missing)} were never delivered: {missing[:10]}")


@pytest.fixture(params=LOSSY)
def lossy(request: pytest.FixtureRequest) -> Iterator[Lossy]:
    request.getfixturevalue("redis_server")  # skips or fails where there is none
    made = LOSSY[request.param]()
    yield made
    made.close()


@on_both_loops
async def test_all_that_is_acknowledged_after_a_store_has_gone_back_is_delivered(lossy: Lossy, tmp_path: Path) -> None:
    trail = Trail.open(tmp_path / "trail", "host", SystemClock(), TrailOptions(rotate_s=0.5))
    options = emq.Settings(checkpoint_s=0.2)
    app = emq.App(lossy.url, database=f"sqlite:///{tmp_path}/catalog.db", options=options, trail=trail)
    local = Consumer(app)
    async with app:
        await app.admin.create(list(TOPICS))
        run = asyncio.create_task(app.run())
        before = await local.publish("before", 10)
        await local.until({(topic, body) for topic, body in before if topic != "slow"})
        await asyncio.to_thread(lossy.cut)
        lost = await local.publish("lost", 10)
        await local.until({(topic, body) for topic, body in lost if topic == "keyed"})
        await asyncio.to_thread(lossy.crash)
        await asyncio.to_thread(lossy.back)
        after = await local.publish("after", 12)
        await local.until(after)
        host = app.host
        assert host is not None
        assert host.ownership.shrunk_queues + app.producer.shrunk > 0, "nothing was lost"
        app.stop()
        await run
    trail.close()
    proof = prove(tmp_path / "trail", Expectations())
    assert (proof.promises["L"], proof.promises["K"], proof.promises["Q"]) == (True, True, True), proof
