"""A message that its handler gives back waits in its place, uncounted, wherever it came from, on every store."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import emq
from emq.runtime.clock import SystemClock
from emq.trail.writer import Trail
from emq_proof.proof import Expectations, prove
from support.store_apps import STORES, app_on
from support.waiting import until

SOON_S = 30.0
N = 30

KINDS: dict[str, dict[str, Any]] = {
    "log": {},
    "delayed": {},
    "keyed": {},
    "batched": {},
    "range_merge": {"kind": "range_merge", "slots": 1, "time_range_ms": 1},
    "range_merge_backoff": {"kind": "range_merge", "slots": 1, "time_range_ms": 1, "retry": "backoff"},
    "priority": {"kind": "priority", "slots": 1},
    "serial": {"kind": "fixed_time", "slots": 1, "ordering": "slot"},
}


class Receiver:
    """Gives each message back twice, once before it waits and once after; then takes it.

    Attributes:
        taken: the payloads that were taken, in their order, by topic.
        attempts: the attempts of what was taken.
    """

    def __init__(self) -> None:
        self.taken: dict[str, list[bytes]] = defaultdict(list)
        self.attempts: Counter[int] = Counter()
        self.given_back: Counter[tuple[str, bytes]] = Counter()
        self.is_closed = False

    async def take(self, m: emq.Message) -> None:
        place = m.topic, m.payload
        self.given_back[place] += 1
        if self.is_closed or self.given_back[place] == 1:
            raise emq.GiveBack("not now", pause_s=0.1)
        await asyncio.sleep(0.001)
        if self.given_back[place] == 2:
            raise emq.GiveBack("not now", pause_s=0.1)
        self.attempts[m.attempt] += 1
        self.taken[m.topic].append(m.payload)

    async def take_many(self, messages: list[emq.Message]) -> None:
        failures: dict[str, Exception] = {}
        for m in messages:
            try:
                await self.take(m)
            except emq.GiveBack as exc:
                failures[m.id] = exc
        raise emq.PartialFailure(failures)


@pytest.fixture(params=STORES)
async def app(request: pytest.FixtureRequest, tmp_path: Path, names: str) -> AsyncIterator[emq.App]:
    trail = Trail.open(tmp_path / "trail", "app", SystemClock())
    async with app_on(request, tmp_path, names, trail=trail) as app:
        yield app
    trail.close()


async def publish(app: emq.App, topics: dict[str, str]) -> None:
    for kind, topic in topics.items():
        await app.create_topic(topic, qps=100, **KINDS[kind])
        payloads = [b"%03d" % i for i in range(N)]
        if kind in ("delayed", "serial"):
            await app.publish_many(topic, payloads, delay_ms=1)
        elif kind == "keyed":
            await app.publish_many(topic, payloads, keys=[f"k{i % 3}" for i in range(N)])
        elif kind == "priority":
            for i, payload in enumerate(payloads):
                await app.publish(topic, payload, priority=1000 - i)
        else:
            await app.publish_many(topic, payloads)


async def until_taken(receiver: Receiver, topics: dict[str, str]) -> None:
    await until(lambda: not any(len(receiver.taken[topic]) < N for topic in topics.values()), SOON_S)
    await asyncio.sleep(0.3)  # for whatever else might come


async def test_messages_that_were_given_back_come_again_once_and_uncounted(
    app: emq.App, names: str, tmp_path: Path
) -> None:
    receiver = Receiver()
    topics = {kind: f"{names}-{kind}" for kind in KINDS}
    app.handlers.bind(topics["batched"], receiver.take_many, batch_size=4)
    app.handlers.bind("*", receiver.take)
    await publish(app, topics)
    async with app.running():
        await until_taken(receiver, topics)
    for kind, topic in topics.items():
        assert sorted(receiver.taken[topic]) == [b"%03d" % i for i in range(N)], kind
    assert receiver.attempts == {1: N * len(KINDS)}
    for key in range(3):
        of_key = [payload for payload in receiver.taken[topics["keyed"]] if int(payload) % 3 == key]
        assert of_key == sorted(of_key)
    assert app.trail.close()  # type: ignore[attr-defined]
    proof = prove(tmp_path / "trail", Expectations(still_queued=0, serial=[topics["serial"]]))
    assert proof.ok, str(proof)


async def test_messages_that_were_given_back_survive_a_change_of_hosts(app: emq.App, names: str) -> None:
    receiver = Receiver()
    receiver.is_closed = True
    topics = {kind: f"{names}-{kind}" for kind in KINDS if kind != "batched"}
    app.handlers.bind("*", receiver.take)
    await publish(app, topics)
    async with app.running():
        await until(lambda: len({topic for topic, _ in receiver.given_back}) >= len(topics), SOON_S)
    receiver.is_closed = False
    async with app.running():
        await until_taken(receiver, topics)
    for kind, topic in topics.items():
        assert sorted(receiver.taken[topic]) == [b"%03d" % i for i in range(N)], kind
    assert receiver.attempts == {1: N * len(topics)}
