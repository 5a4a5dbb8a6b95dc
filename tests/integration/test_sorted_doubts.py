"""Sorted topics when answers are lost: verdicts of unknown outcome must not meet newer claims that look the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from emq.storage.message import Message
from emq.storage.slot_store import SlotVerdict
from emq_stores.memory import MemoryStore
from support.doubles import FaultyStore, has_entries
from support.rig import Rig, Seen
from support.virtual import virtual
from support.waiting import until

pytestmark = virtual


async def states(r: Rig) -> tuple[int, int, int]:
    topic = await r.catalog.get("t")
    [s] = await r.store.sorted.inspect([topic.slot(0)], int(r.clock.now() * 1000))
    return s.waiting, s.prepared, s.dead


async def early_in_a_second(r: Rig) -> None:
    now = r.clock.now()
    await asyncio.sleep(int(now) + 1.1 - now)


def has_ack(requests: Any, _: Any) -> bool:
    return any(s.verdict is SlotVerdict.ACK for s in requests)


async def test_a_repeated_acknowledgement_does_not_hit_a_later_claim_of_the_same_second(r: Rig) -> None:
    await r.topic("t", 50, kind="priority", slots=1)
    store = FaultyStore(MemoryStore(r.world))

    async def second_fails(_: Message) -> None:
        if len(seen) == 2:
            await asyncio.sleep(2)
            raise ValueError("must be tried again")

    seen = Seen(second_fails)
    async with r.consuming(seen, store=store):
        await asyncio.sleep(1.5)
        await early_in_a_second(r)
        store.sorted.lose("settle", when=has_ack)
        await r.producer.publish("t", "x", priority=30)
        await until(lambda: len(seen) == 1)
        await asyncio.sleep(0.05)
        await r.producer.publish("t", "x", priority=30)
        await until(lambda: len(seen) == 3)
        await asyncio.sleep(5)
    assert [d.attempt for d in seen.deliveries] == [1, 1, 2]
    assert await states(r) == (0, 0, 0)


@pytest.mark.parametrize("later_s", [0.05, 1.05])
async def test_a_twin_whose_claim_is_lost_while_the_first_is_being_settled_is_delivered_soon(
    r: Rig, later_s: float
) -> None:
    await r.topic("t", 50, kind="priority", slots=1, ordering="none")
    store = FaultyStore(MemoryStore(r.world))
    seen = Seen()
    async with r.consuming(seen, store=store):
        await asyncio.sleep(1.5)
        await early_in_a_second(r)
        store.sorted.lose("settle", when=has_ack, times=2)
        await r.producer.publish("t", "x", priority=30)
        await until(lambda: len(seen) == 1)
        store.sorted.lose("claim", when=has_entries)
        await asyncio.sleep(later_s)
        await r.producer.publish("t", "x", priority=30)
        await until(lambda: len(seen) == 2, 10)
        await asyncio.sleep(5)
    assert len(seen) == 2
    assert await states(r) == (0, 0, 0)


async def test_a_running_member_is_not_recovered_when_its_twins_acknowledgement_was_slow(r: Rig) -> None:
    await r.topic("t", 50, kind="priority", slots=1, ordering="none")
    store = FaultyStore(MemoryStore(r.world))

    async def second_is_long(m: Message) -> None:
        if m.payload == b"x" and seen.payloads.count(b"x") >= 2:
            await asyncio.sleep(5)

    seen = Seen(second_is_long)
    async with r.consuming(seen, store=store):
        await asyncio.sleep(1.5)
        await early_in_a_second(r)
        store.sorted.inject("settle", after_s=0.3)
        await r.producer.publish("t", "x", priority=30)
        await until(lambda: len(seen) == 1)
        await asyncio.sleep(0.05)
        await r.producer.publish("t", "x", priority=30)
        await until(lambda: len(seen) == 2)
        await asyncio.sleep(0.5)
        store.sorted.lose("claim", when=has_entries)
        await r.producer.publish("t", "y", priority=30)
        await asyncio.sleep(20)
    assert sorted(seen.payloads) == [b"x", b"x", b"y"]
    assert await states(r) == (0, 0, 0)


@pytest.mark.parametrize("claim", ["quick", "slow", "lost"])
async def test_a_repeated_acknowledgement_does_not_hit_a_claim_that_was_made_before_its_loss_was_known(
    r: Rig, claim: str
) -> None:
    await r.topic("t", 50, kind="priority", slots=1, ordering="none")
    store = FaultyStore(MemoryStore(r.world))

    async def second_fails(_: Message) -> None:
        if len(seen) == 2:
            await asyncio.sleep(3)
            raise ValueError("must be tried again")

    seen = Seen(second_fails)
    async with r.consuming(seen, store=store):
        await asyncio.sleep(1.5)
        await early_in_a_second(r)
        store.sorted.lose("settle", after_s=0.3)
        await r.producer.publish("t", "x", priority=30)
        await until(lambda: len(seen) == 1)
        if claim == "slow":
            store.sorted.inject("claim", after_s=2.0, when=has_entries, times=None)
        elif claim == "lost":
            store.sorted.lose("claim", when=has_entries)
        await asyncio.sleep(0.05)
        await r.producer.publish("t", "x", priority=30)
        await until(lambda: len(seen) == 3, 20)
        await asyncio.sleep(5)
    assert [d.attempt for d in seen.deliveries[:2]] == [1, 1 + (claim == "lost")]
    assert len(seen) == 3
    assert await states(r) == (0, 0, 0)


async def test_a_twin_whose_claim_is_lost_during_a_slow_acknowledgement_is_delivered_soon(r: Rig) -> None:
    await r.topic("t", 50, kind="priority", slots=1, ordering="none")
    store, seen = FaultyStore(MemoryStore(r.world)), Seen()
    async with r.consuming(seen, store=store):
        await asyncio.sleep(1.5)
        store.sorted.inject("settle", after_s=3)
        await r.producer.publish("t", "x", priority=30)
        await until(lambda: len(seen) == 1)
        store.sorted.lose("claim", when=has_entries)
        await asyncio.sleep(0.05)
        await r.producer.publish("t", "x", priority=30)
        await until(lambda: len(seen) == 2, 10)
        await asyncio.sleep(1)
    assert await states(r) == (0, 0, 0)
