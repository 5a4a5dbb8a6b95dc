"""Sorted topics when answers are lost: verdicts of unknown outcome must not meet newer claims that look the same."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
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


@contextlib.asynccontextmanager
async def consumed(r: Rig, seen: Seen, rest_s: float = 5, **options: Any) -> AsyncIterator[FaultyStore]:
    """Consume one slot from early in a second on; after the block and a rest, nothing is left in it."""
    await r.topic("t", 50, kind="priority", slots=1, **options)
    store = FaultyStore(MemoryStore(r.world))
    async with r.consuming(seen, store=store):
        await asyncio.sleep(1.5)
        now = r.clock.now()
        await asyncio.sleep(int(now) + 1.1 - now)
        yield store
        await asyncio.sleep(rest_s)
    assert await r.slots() == (0, 0, 0)


async def publish(r: Rig, seen: Seen | None = None, payload: str = "x") -> None:
    """Publish, and wait for the first start where `seen` is given."""
    await r.producer.publish("t", payload, priority=30)
    if seen is not None:
        await until(lambda: len(seen) == 1)


def has_ack(requests: Any, _: Any) -> bool:
    return any(s.verdict is SlotVerdict.ACK for s in requests)


async def test_a_repeated_acknowledgement_does_not_hit_a_later_claim_of_the_same_second(r: Rig) -> None:
    async def second_fails(_: Message) -> None:
        if len(seen) == 2:
            await asyncio.sleep(2)
            raise ValueError("must be tried again")

    seen = Seen(second_fails)
    async with consumed(r, seen) as store:
        store.sorted.lose("settle", when=has_ack)
        await publish(r, seen)
        await asyncio.sleep(0.05)
        await publish(r)
        await until(lambda: len(seen) == 3)
    assert [d.attempt for d in seen.deliveries] == [1, 1, 2]


@pytest.mark.parametrize("later_s", [0.05, 1.05])
async def test_a_twin_whose_claim_is_lost_while_the_first_is_being_settled_is_delivered_soon(
    r: Rig, later_s: float
) -> None:
    seen = Seen()
    async with consumed(r, seen, ordering="none") as store:
        store.sorted.lose("settle", when=has_ack, times=2)
        await publish(r, seen)
        store.sorted.lose("claim", when=has_entries)
        await asyncio.sleep(later_s)
        await publish(r)
        await until(lambda: len(seen) == 2, 10)
    assert len(seen) == 2


async def test_a_running_member_is_not_recovered_when_its_twins_acknowledgement_was_slow(r: Rig) -> None:
    async def second_is_long(m: Message) -> None:
        if m.payload == b"x" and seen.payloads.count(b"x") >= 2:
            await asyncio.sleep(5)

    seen = Seen(second_is_long)
    async with consumed(r, seen, rest_s=20, ordering="none") as store:
        store.sorted.inject("settle", after_s=0.3)
        await publish(r, seen)
        await asyncio.sleep(0.05)
        await publish(r)
        await until(lambda: len(seen) == 2)
        await asyncio.sleep(0.5)
        store.sorted.lose("claim", when=has_entries)
        await publish(r, payload="y")
    assert sorted(seen.payloads) == [b"x", b"x", b"y"]


@pytest.mark.parametrize("claim", ["quick", "slow", "lost"])
async def test_a_repeated_acknowledgement_does_not_hit_a_claim_that_was_made_before_its_loss_was_known(
    r: Rig, claim: str
) -> None:
    async def second_fails(_: Message) -> None:
        if len(seen) == 2:
            await asyncio.sleep(3)
            raise ValueError("must be tried again")

    seen = Seen(second_fails)
    async with consumed(r, seen, ordering="none") as store:
        store.sorted.lose("settle", after_s=0.3)
        await publish(r, seen)
        if claim == "slow":
            store.sorted.inject("claim", after_s=2.0, when=has_entries, times=None)
        elif claim == "lost":
            store.sorted.lose("claim", when=has_entries)
        await asyncio.sleep(0.05)
        await publish(r)
        await until(lambda: len(seen) == 3, 20)
    assert [d.attempt for d in seen.deliveries[:2]] == [1, 1 + (claim == "lost")]
    assert len(seen) == 3


async def test_a_twin_whose_claim_is_lost_during_a_slow_acknowledgement_is_delivered_soon(r: Rig) -> None:
    seen = Seen()
    async with consumed(r, seen, rest_s=1, ordering="none") as store:
        store.sorted.inject("settle", after_s=3)
        await publish(r, seen)
        store.sorted.lose("claim", when=has_entries)
        await asyncio.sleep(0.05)
        await publish(r)
        await until(lambda: len(seen) == 2, 10)
