"""A message that EMQ moves is added where it goes as safely as it was published, before it leaves where it was."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from typing import Any

import pytest

import emq
from emq.storage.durability import Durability
from emq_stores.memory.lane_store import MemoryLanes
from emq_stores.memory.slot_store import MemorySorted
from support.waiting import until

FSYNCED = {Durability.FSYNCED}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[Durability]]:
    """The durabilities with which entries and members were added, by topic."""
    found: dict[str, set[Durability]] = defaultdict(set)

    def noting(real: Any, topic_of: Any) -> Any:
        async def add(self: Any, adds: Any, durability: Durability = Durability.ACCEPTED) -> Any:
            for each in adds:
                found[topic_of(each)].add(durability)
            return await real(self, adds, durability)

        return add

    monkeypatch.setattr(MemoryLanes, "add", noting(MemoryLanes.add, lambda add: add.lane.split("/")[0]))
    monkeypatch.setattr(MemorySorted, "add", noting(MemorySorted.add, lambda add: add.slot.address.split("/")[0]))
    return found


@pytest.fixture
def app() -> emq.App:
    return emq.App("memory:", options=emq.Settings(checkpoint_s=0.05))


async def test_retries_and_dead_letters_of_one_call_each_have_the_durability_of_their_topic(
    asked: dict[str, set[Durability]], app: emq.App
) -> None:
    async with app:
        for topic in Durability:
            await app.create_topic(str(topic), 100, durability=topic, max_attempts=2, backoff_s=(0.01,))
        app.handler("*")(_fail)
        async with app.running():
            await asyncio.gather(*(app.publish(str(topic), b"x") for topic in Durability))
            for topic in Durability:
                await until(lambda t=topic: _dead(app, str(t), 1))
    assert [asked[str(topic)] for topic in Durability] == [{topic} for topic in Durability]


async def test_occurrences_of_a_schedule(asked: dict[str, set[Durability]], app: emq.App) -> None:
    handled = asyncio.Event()
    async with app:
        await app.create_topic("orders", 100, durability="fsynced")
        await app.create_topic("merged", 100, kind="range_merge", time_range_ms=100, durability="fsynced")

        async def handle(m: emq.Message) -> None:
            handled.set()

        app.handler("*")(handle)
        async with app.running():
            for topic in ("orders", "merged"):
                await app.schedule(topic, b"x", every_s=0.05)
                handled.clear()
                await until(handled.is_set)
    assert asked["orders"] == asked["merged"] == FSYNCED


async def test_what_a_topic_that_shrinks_has_in_lanes(asked: dict[str, set[Durability]], app: emq.App) -> None:
    async with app:
        topic = await app.create_topic("orders", 200, group_qps=50, durability="fsynced", max_attempts=1)
        app.handler("*")(_fail)
        async with app.running():
            for i in range(20):
                await app.publish("orders", b"x", key=f"k{i}")
                await app.publish("orders", b"x", key=f"k{i}", delay=1.0)
            await until(lambda: _dead(app, "orders", 20))
            await app.update_topic("orders", qps=50)
            await until(lambda: _groups(app, 1))
            await until(lambda: _dead(app, "orders", 40))
    assert topic.groups == 4
    assert asked["orders"] == FSYNCED


async def test_a_confirmation_that_does_not_come_holds_up_its_own_topics_only(
    monkeypatch: pytest.MonkeyPatch, app: emq.App
) -> None:
    add, there, both = MemoryLanes.add, asyncio.Event(), asyncio.Event()
    hangs: list[str] = []

    async def slow(self: Any, adds: Any, durability: Durability = Durability.ACCEPTED) -> Any:
        if durability is not Durability.ACCEPTED:
            hangs.extend(each.lane for each in adds)
            await there.wait()
        return await add(self, adds, durability)

    handled: dict[str, set[int]] = defaultdict(set)
    monkeypatch.setattr(MemoryLanes, "add", slow)
    async with app:
        for topic in ("well", "stuck"):
            durability = Durability.ACCEPTED if topic == "well" else Durability.REPLICATED
            await app.create_topic(topic, 1000, durability=durability, backoff_s=(0.01,))

        @app.handler("*")
        async def fail(m: emq.Message) -> None:
            handled[m.topic].add(m.attempt)
            if m.attempt == 1:
                await both.wait()  # so that one call adds both
            raise ValueError("out of order")

        async with app.running():
            for topic in ("stuck", "well"):
                await app.publish(topic, b"x")
                await until(lambda t=topic: handled[t])
            both.set()
            await until(lambda: {1, 2, 3} <= handled["well"])
            assert any(lane.startswith("stuck") for lane in hangs)
            assert handled["stuck"] == {1}
            there.set()
            await until(lambda: {1, 2, 3} <= handled["stuck"])


async def test_a_schedule_whose_confirmation_does_not_come_holds_up_its_own_topics_only(
    monkeypatch: pytest.MonkeyPatch, app: emq.App
) -> None:
    add, there, handled = MemoryLanes.add, asyncio.Event(), list[str]()
    hangs = False

    async def slow(self: Any, adds: Any, durability: Durability = Durability.ACCEPTED) -> Any:
        nonlocal hangs
        if durability is not Durability.ACCEPTED and "." in adds[0].id:  # an occurrence
            hangs = True
            await there.wait()
        return await add(self, adds, durability)

    monkeypatch.setattr(MemoryLanes, "add", slow)
    async with app:
        await app.create_topic("stuck", 100, durability="replicated")
        await app.create_topic("well", 100)
        at = time.time() + 0.3
        for topic in ("stuck", "well"):
            await app.schedule(topic, b"x", every_s=3600, at=at)

        async def handle(m: emq.Message) -> None:
            handled.append(m.topic)

        app.handler("*")(handle)
        async with app.running():
            await until(lambda: handled == ["well"] and hangs)
            there.set()
            await until(lambda: handled == ["well", "stuck"])


async def _fail(m: emq.Message) -> None:
    raise ValueError("out of order")


async def _dead(app: emq.App, topic: str, count: int) -> bool:
    [lag] = await app.admin.slot_lag([await app.catalog.get(topic)])
    return lag.dead >= count


async def _groups(app: emq.App, count: int) -> bool:
    return (await app.catalog.get("orders")).groups == count
