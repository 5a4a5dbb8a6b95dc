"""A host starts into topics that hang from their first message: the healthy ones, unknown too, get their rate."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from emq.storage.message import Message
from emq.topics.model import Kind
from emq_stores.memory import MemoryStore
from support.doubles import FaultyStore
from support.rig import Rig, Seen, running
from support.virtual import virtual

pytestmark = virtual

HANDLED_S = 0.05
RATE = 20
SOON_S = 3
"""Seconds after the host's start from which the healthy topics have their full rate."""
MEASURED_S = 3


class Crowd(NamedTuple):
    """Attributes:
    hung, healthy: numbers of topics.
    places: the host's `max_in_flight`.
    size: bytes of a message of a hung topic.
    memory: bytes that the host may hold.
    """

    hung: int
    healthy: int
    places: int
    size: int = 1
    memory: int = 256 << 20

    def __str__(self) -> str:
        return "-".join(map(str, self))


CROWDS = [
    Crowd(hung=10, healthy=90, places=250),
    Crowd(hung=60, healthy=20, places=2_000),
    Crowd(hung=160, healthy=40, places=250),
    Crowd(hung=160, healthy=40, places=1_000),
    Crowd(hung=60, healthy=20, places=20_000, size=32 << 10, memory=8 << 20),
    Crowd(hung=160, healthy=40, places=20_000, size=32 << 10, memory=16 << 20),
]


async def load(r: Rig, topics: list[str], seconds: int) -> None:
    """Publish to each topic `RATE` messages a second, all topics in each tenth of a second."""
    for _ in range(seconds * 10):
        for name in topics:
            await r.producer.publish_many(name, [b"x" * 100] * (RATE // 10))
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "never-waiting"])
@pytest.mark.parametrize("crowd", CROWDS, ids=str)
async def test_topics_that_hang_from_the_start_leave_their_rate_to_unknown_ones(
    r: Rig, crowd: Crowd, waits: bool
) -> None:
    async def handle(m: Message) -> None:
        if m.topic.startswith("hung"):
            await asyncio.sleep(10_000)
        if waits:
            await asyncio.sleep(HANDLED_S)

    for i in range(crowd.hung):
        await r.topic(f"hung.{i}", 200, max_in_flight=1_000)
        backlog = 50 + 2 * crowd.places if crowd.size == 1 else 20 + 2 * crowd.memory // crowd.size // crowd.hung
        await r.producer.publish_many(f"hung.{i}", [b"x" * crowd.size] * min(500, backlog))
    healthy = [f"well.{i}" for i in range(crowd.healthy)]
    for name in healthy:
        await r.topic(name, RATE * 2)
    seen = Seen(handle)
    host = r.host(seen, drain_s=0.1, max_in_flight=crowd.places)
    host.work.gauge.max_bytes = crowd.memory
    async with running(host):
        began_us = int(r.clock.now() * 1e6)
        await load(r, healthy, SOON_S + MEASURED_S)
        assert host.work.dispatcher.flight.count <= crowd.places
    rights = [d for d in seen.deliveries if d.topic.startswith("well")]
    soon = [d for d in rights if SOON_S <= (d.started_us - began_us) / 1e6 < SOON_S + MEASURED_S]
    assert len(soon) >= 0.99 * RATE * MEASURED_S * crowd.healthy
    assert max(d.started_us - d.ready_us for d in soon) < 1e6


@pytest.mark.parametrize("kind", [Kind.LOG, Kind.PRIORITY])
@pytest.mark.parametrize("crowd", [Crowd(60, 20, 250), Crowd(120, 30, 250), Crowd(60, 20, 1_000)], ids=str)
async def test_topics_that_hang_for_nine_of_ten_messages_leave_their_rate_to_unknown_ones(
    r: Rig, crowd: Crowd, kind: Kind
) -> None:
    chance, number = random.Random(1), itertools.count()

    async def handle(m: Message) -> None:
        if m.topic.startswith("hung"):
            await asyncio.sleep(0 if chance.random() < 0.1 else 10_000)
        await asyncio.sleep(HANDLED_S)

    of_kind = {} if kind is Kind.LOG else {"kind": kind, "slots": 4, "ordering": "none"}
    hung, healthy = ([f"{name}.{i}" for i in range(n)] for name, n in (("hung", crowd.hung), ("well", crowd.healthy)))
    for name in hung:
        await r.topic(name, 200, max_in_flight=1_000, **of_kind)
        await publish(r, name, 500, number, kind)
    for name in healthy:
        await r.topic(name, RATE * 2, **of_kind)
    seen = Seen(handle)
    async with r.consuming(seen, drain_s=0.1, max_in_flight=crowd.places):
        began_us = int(r.clock.now() * 1e6)
        for _ in range((SOON_S + MEASURED_S) * 10):
            for name in healthy:
                await publish(r, name, RATE // 10, number, kind)
            await asyncio.sleep(0.1)
    rights = [d for d in seen.deliveries if d.topic.startswith("well")]
    soon = [d for d in rights if SOON_S <= (d.started_us - began_us) / 1e6 < SOON_S + MEASURED_S]
    assert len(soon) >= 0.99 * RATE * MEASURED_S * crowd.healthy


async def publish(r: Rig, topic: str, count: int, number: Iterator[int], kind: Kind) -> None:
    payloads = [b"%d" % next(number) for _ in range(count)]
    await r.producer.publish_many(topic, payloads, **({} if kind is Kind.LOG else {"priority": 20}))


async def test_members_that_find_no_place_are_claimed_again_only_when_their_topic_may_find_one(r: Rig) -> None:
    async def handle(m: Message) -> None:
        if m.topic == "hung":
            await asyncio.sleep(10_000)

    for name in ("hung", "well"):
        await r.topic(name, 200, kind=Kind.PRIORITY, slots=8, ordering="none", max_in_flight=1_000)
    await r.producer.publish_many("hung", [b"%d" % i for i in range(500)], priority=20)
    seen, store = Seen(handle), FaultyStore(MemoryStore(r.world))
    claims = store.sorted.inject("claim", before_s=0.02, times=None)  # a call takes time
    async with r.consuming(seen, drain_s=0.1, max_in_flight=100, store=store):
        await asyncio.sleep(3)
        before = claims.happened
        await asyncio.sleep(5)
        assert claims.happened - before <= 100
        await r.producer.publish_many("well", [b"%d" % i for i in range(100)], priority=20)
        await asyncio.sleep(1)
    assert len(seen.of("well")) == 100
