"""Sorted topics at the edges, in virtual time: stops, crashes, pauses, expiry, strangers, lost wake-ups."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from emq.storage.message import Message
from emq.storage.slot_store import Keep, Slot, SlotAdd, SlotClaim, SlotKind
from emq.topics.model import State
from emq_stores.memory import MemoryStore
from support.doubles import FaultyStore
from support.rig import Rig, Seen, bound, running
from support.virtual import virtual
from support.waiting import until

pytestmark = virtual


async def into_second(r: Rig, at_s: float) -> None:
    """Wait until so far into the next second."""
    now = r.clock.now()
    await asyncio.sleep(int(now) + 1 + at_s - now)


async def test_what_is_given_back_is_folded_with_what_came_meanwhile(r: Rig) -> None:
    topic = await r.topic("t", 1, kind="priority", slots=1, merge="key", fold="sum")
    seen = Seen()
    async with r.consuming(seen):
        for _ in range(2):
            for i in range(6):
                await r.producer.publish("t", "1", merge_key=f"k{i}", priority=50)
            await asyncio.sleep(2)  # most of the first round is claimed and waits for the quota
        assert len(seen) < 6
    left = await r.store.sorted.waiting(topic.slot(0))
    assert sum(int(w.body) for w in left) + sum(map(int, seen.payloads)) == 12
    assert sum(w.merged for w in left) + len(seen) == 12


async def test_a_member_without_a_note_does_not_expire_before_it_was_there(r: Rig) -> None:
    topic = await r.topic("t", 50, kind="priority", slots=1, merge="key", ttl_s=60.0)
    seen = Seen()
    async with r.consuming(seen):
        await r.store.sorted.add([SlotAdd(topic.slot(0), b"k", 50, Keep.LAST, b"of a stranger")])
        await until(lambda: len(seen) == 1)
    assert await r.slots() == (0, 0, 0)


async def test_what_waited_for_its_key_goes_past_nothing_more_urgent_of_another_key(r: Rig) -> None:
    await r.topic("t", 2, kind="priority", slots=1, ordering="key", merge="key")
    seen = Seen(lambda m: asyncio.sleep(0.5 if m.payload == b"first" else 0))
    async with r.consuming(seen):
        await asyncio.sleep(1)
        await into_second(r, 0.05)
        for payload, key, priority in (("first", "k", 50), ("low", "k", 20), ("filler", "f", 19)):
            await r.producer.publish("t", payload, key=key, priority=priority)
            await asyncio.sleep(0.05)
        await r.producer.publish_many("t", ["a", "b", "c", "d"], keys=["a", "b", "c", "d"], priority=80)
        await until(lambda: len(seen) == 7)
    assert seen.payloads[:2] == [b"first", b"filler"]
    assert seen.payloads[-1] == b"low"


async def test_a_slot_is_with_one_claim_at_a_time(r: Rig) -> None:
    await r.topic("t", 50, kind="priority", slots=1)
    store, under_way, most = FaultyStore(MemoryStore(r.world)), Counter[str](), 0
    real = store.real.sorted.claim

    async def slow(claims: list[SlotClaim], now_ms: int, *bounds: int) -> object:
        nonlocal most
        under_way.update(c.slot.name for c in claims)
        most = max(most, *under_way.values())
        answer = await real(claims, now_ms, *bounds)
        await asyncio.sleep(0.05)
        under_way.subtract(c.slot.name for c in claims)
        return answer

    store.sorted.replace("claim", slow)
    seen = Seen()
    async with r.consuming(seen, store=store):
        for i in range(20):
            await r.producer.publish("t", str(i), priority=20 + i)
            await asyncio.sleep(0.02)
        await until(lambda: len(seen) == 20)
    assert most == 1


async def test_a_fixed_time_waits_for_its_second_also_when_its_slot_is_claimed_before(r: Rig) -> None:
    await r.topic("t", 50, kind="fixed_time", slots=1)
    seen = Seen()
    async with r.consuming(seen):
        await asyncio.sleep(1)
        await into_second(r, 0.1)
        second = int(r.clock.now())
        await r.producer.publish("t", "x", at=second + 0.4)
        await into_second(r, -0.4)
        await r.store.sorted.add([SlotAdd(Slot("t/0", SlotKind.FIXED_TIME), b"retried", 16, Keep.LAST)])  # is due now
        await until(lambda: len(seen) == 2)
    assert seen.payloads == [b"retried", b"x"]
    assert seen.deliveries[0].started_us < (second + 1) * 1_000_000 <= seen.deliveries[1].started_us


@pytest.mark.parametrize("batch_size", [1, 10])
async def test_nothing_starts_after_its_time_to_live_however_close(r: Rig, batch_size: int) -> None:
    started: list[Message] = []

    async def one(m: Message) -> None:
        started.append(m)

    async def many(batch: list[Message]) -> None:
        started.extend(batch)

    await r.topic("t", 100, kind="priority", slots=1, merge="key")
    handlers = bound({"*": many if batch_size > 1 else one}, batch_size=batch_size)
    host = r.host(handlers)
    async with running(host):
        await into_second(r, 0.5)
        await r.producer.publish_many("t", [b"%d" % i for i in range(100)], priority=20)  # all of the quota
        await until(lambda: len(started) == 100)
        ends = int(r.clock.now()) + 1
        for i in range(60):
            ttl_s = ends - r.clock.now() + (30 - i) / 1000 - 0.0005
            await r.producer.publish("t", f"brief{i}", priority=20, ttl_s=ttl_s)
        await asyncio.sleep(3)
        assert host.work.dispatcher.started + host.work.endings.expired == 160
    brief = started[100:]
    assert 20 < len(brief) < 60
    assert all(m.started_us < m.expires_us for m in brief)


@pytest.mark.parametrize("merge", ["content", "key"])
async def test_the_topics_own_time_to_live_counts_from_when_a_member_is_due(r: Rig, merge: str) -> None:
    await r.topic("t", 1, kind="range_merge", slots=1, time_range_ms=1000, ttl_s=3.0, merge=merge)
    seen = Seen()
    async with r.consuming(seen):
        begin = r.clock.now()
        await r.producer.publish_many("t", [b"%d" % i for i in range(10)])
        await asyncio.sleep(15)
    assert 3 <= len(seen) <= 4
    assert max(d.started_us / 1e6 - begin for d in seen.deliveries) < 4
    assert await r.slots() == (0, 0, 10 - len(seen))


async def test_a_resumed_topic_goes_on_at_once(r: Rig) -> None:
    await r.topic("t", 50, kind="priority", slots=1)
    seen = Seen()
    async with r.consuming(seen):
        await asyncio.sleep(2)
        await r.admin.update("t", state=State.PAUSED)
        await asyncio.sleep(0.2)
        await r.producer.publish("t", "x", priority=20)
        await asyncio.sleep(20.1)
        assert (len(seen), await r.slots()) == (0, (1, 0, 0))
        await r.admin.update("t", state=State.ACTIVE)
        await until(lambda: len(seen) == 1, 0.5)


async def test_when_wake_ups_may_be_lost_every_slot_is_looked_at(r: Rig) -> None:
    await r.topic("t", 50, kind="priority", slots=4)
    seen = Seen()
    store = FaultyStore(MemoryStore(r.world))
    again = store.deafen()
    async with r.consuming(seen, store=store):
        await asyncio.sleep(2)
        await r.producer.publish_many("t", ["a", "b", "c", "d"], priority=20)
        await asyncio.sleep(0.1)
        assert not seen
        again.set()
        await until(lambda: len(seen) == 4, 1)
        await asyncio.sleep(0)
