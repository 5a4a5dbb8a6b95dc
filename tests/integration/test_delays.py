"""Delays, schedules and times to live on whole hosts, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from emq.groups.capacity import MAX_BUFFER
from emq.observe import dead_letters, recall
from emq.runtime import errors
from emq.storage.message import Message
from emq.topics.model import State
from emq_stores.memory import MemoryStore
from support.doubles import FaultyStore, has_entries
from support.rig import Rig, Seen, inversions, starts_per_second
from support.virtual import virtual
from support.waiting import until

pytestmark = virtual


async def recalled(r: Rig, topic: str, *ids: str) -> set[str]:
    return await recall.recall(r.store, await r.catalog.get(topic), ids)


async def test_a_delayed_message_starts_at_its_time_and_not_before(r: Rig) -> None:
    await r.topic("t", 1000, delay_levels={"soon": 3.0})
    seen = Seen()
    async with r.consuming(seen):
        begin = r.clock.now()
        await r.producer.publish("t", "5", delay_ms=5000)
        await r.producer.publish("t", "3", delay="soon")
        await r.producer.publish("t", "0")
        await until(lambda: len(seen) == 3)
    late = {d.payload: d.started_us / 1e6 - begin for d in seen.deliveries}
    assert late[b"0"] < 1
    assert 3 <= late[b"3"] < 3.1
    assert 5 <= late[b"5"] < 5.1
    assert {d.attempt for d in seen.deliveries} == {1}


async def test_what_falls_due_together_keeps_the_cap_and_the_priorities(r: Rig) -> None:
    await r.topic("t", 20, group_qps=20)
    seen = Seen()
    async with r.consuming(seen):
        at = r.clock.now() + 3
        for i in range(40):
            await r.producer.publish("t", f"low{i}", priority="low", at=at)
        for i in range(10):
            await r.producer.publish("t", f"high{i}", priority="high", at=at)
        await until(lambda: len(seen) == 50)
    assert max(starts_per_second(seen.deliveries).values()) == 20
    assert inversions(seen.deliveries) == []


async def test_a_key_that_a_delayed_message_held_is_free_once_its_handler_is_done(r: Rig) -> None:
    async def handler(m: Message) -> None:
        await asyncio.sleep(0.1)

    await r.topic("t", 20, group_qps=20)
    seen = Seen(handler)
    store = FaultyStore(MemoryStore(r.world))
    async with r.consuming(seen, store=store) as host:
        await r.producer.publish("t", "delayed", key="k", delay_ms=1000)
        await until(lambda: len(seen) == 1)
        store.lanes.fail()  # the store hears of it only later
        await r.producer.publish("t", "next", key="k", priority="high")
        await asyncio.sleep(0.5)
        assert seen.payloads == [b"delayed", b"next"]
        assert host.work.dispatcher.flight.count == 1
        await r.producer.publish("t", "after", key="k")
        store.lanes.heal()
        await until(lambda: host.work.dispatcher.flight.count == 0 and len(seen) == 3)
    assert seen.most_running == 1


async def test_a_failed_dispatch_does_not_add_the_delay_again(r: Rig) -> None:
    async def once(m: Message) -> None:
        if m.attempt == 1:
            raise ValueError("no")

    await r.topic("t", 100, backoff_s=(1.0,), jitter=0.0)
    seen = Seen(once)
    async with r.consuming(seen):
        begin = r.clock.now()
        await r.producer.publish("t", "x", delay_ms=60_000)
        await until(lambda: len(seen) == 2, 90)
        assert 61 <= r.clock.now() - begin < 61.2


async def test_cron_fires_by_the_wall_clock_until_it_is_recalled(r: Rig) -> None:
    await r.topic("t", 100)
    seen = Seen()
    async with r.consuming(seen):
        id_ = await r.producer.schedule("t", "x", cron="* * * * *")
        await until(lambda: len(seen) == 3, 200)
        assert {d.started_us // 1_000_000 % 60 for d in seen.deliveries} == {0}
        assert await recalled(r, "t", id_, "unknown") == {id_}
        await asyncio.sleep(180)
    assert len(seen) == 3


async def test_schedules_and_delays_move_with_their_group(r: Rig) -> None:
    await r.topic("t", 100, group_qps=10)
    first, second = Seen(), Seen()
    async with r.consuming(first, "host-1"):
        ids = [await r.producer.schedule("t", str(i), every_s=10, repeat=5, key=str(i)) for i in range(10)]
        late = [await r.producer.publish("t", "late", delay_ms=35_000) for _ in range(10)]
        await asyncio.sleep(15)
        async with r.consuming(second, "host-2"):
            await asyncio.sleep(10)
        await asyncio.sleep(40)
    everything = Counts([*first.ids, *second.ids])
    assert second.ids, "nothing moved"
    assert everything == {f"{id_}.{n}": 1 for id_ in ids for n in range(1, 7)} | dict.fromkeys(late, 1)


@pytest.mark.parametrize("busy", [False, True])
async def test_what_a_lost_claim_had_taken_from_a_lane_is_delivered_once(r: Rig, busy: bool) -> None:
    await r.topic("t", 100)
    store = FaultyStore(MemoryStore(r.world))
    seen = Seen(lambda m: asyncio.sleep(5 if m.payload == b"long" else 0))
    async with r.consuming(seen, store=store):
        await asyncio.sleep(1)
        await r.producer.schedule("t", "z", every_s=10, repeat=0, delay_ms=10)
        await until(lambda: len(seen) == 1)
        if busy:
            await r.producer.publish("t", "long", delay_ms=10)
            await until(lambda: len(seen) == 2)
        lost = store.lanes.lose("claim", when=has_entries, times=2)
        await r.producer.publish("t", "x", delay_ms=1000)
        await r.producer.schedule("t", "y", every_s=10, repeat=1, delay_ms=1000)
        await until(lambda: len(seen) == 4 + busy)
        await asyncio.sleep(30)
    assert lost.happened == 2
    assert sorted(seen.payloads) == sorted([b"x", b"y", b"y", b"z"] + [b"long"] * busy)
    assert (await r.store.lanes.inspect(["t/0"]))[0][:3] == (0, 0, 0)


async def test_a_clean_stop_waits_for_schedules_that_are_being_fired(r: Rig) -> None:
    await r.topic("t", 100)
    store, first, second = FaultyStore(MemoryStore(r.world)), Seen(), Seen()
    async with r.consuming(first, store=store) as host:
        await asyncio.sleep(1.5)
        id_ = await r.producer.schedule("t", "x", every_s=10, repeat=1, delay_ms=100)
        store.lanes.inject("settle", before_s=2, when=lambda settles, _: any(s.id == id_ for s in settles), times=None)
        await until(lambda: host.work.firing.fired == 1)
        await asyncio.sleep(0.1)
    assert first.ids == [f"{id_}.1"]
    async with r.consuming(second, "host-2"):
        await asyncio.sleep(20)
    assert second.ids == [f"{id_}.2"]


class Counts(dict[str, int]):
    def __init__(self, ids: list[str]) -> None:
        super().__init__()
        for id_ in ids:
            self[id_] = self.get(id_, 0) + 1


async def test_time_to_live_counts_from_when_a_delayed_message_is_due_and_bounds_its_retries(r: Rig) -> None:
    async def fails(m: Message) -> None:
        raise ValueError("no")

    await r.topic("t", 100, backoff_s=(2.0,), jitter=0.0)
    seen = Seen(fails)
    async with r.consuming(seen):
        id_ = await r.producer.publish("t", "x", delay_ms=10_000, ttl_s=5.0)
        await asyncio.sleep(30)
    assert [d.attempt for d in seen.deliveries] == [1, 2, 3]
    [dead] = await r.store.lanes.dead("t/0")
    assert (dead.id, dead.reason) == (id_, "expired")


async def test_a_delayed_message_of_a_topic_by_priority_takes_its_place_when_it_is_due(r: Rig) -> None:
    await r.topic("t", 5, kind="priority", slots=1)
    seen = Seen()
    async with r.consuming(seen):
        await r.producer.publish_many("t", [b"%d" % i for i in range(40)], priority=20)
        await r.producer.publish("t", "urgent", priority=100, delay_ms=3000)
        begin = r.clock.now()
        await until(lambda: b"urgent" in seen.payloads)
        assert 3.0 <= r.clock.now() - begin < 4.3
        await until(lambda: len(seen) == 41)


@pytest.mark.parametrize("kind", ["range_merge", "priority"])
async def test_what_has_expired_lives_anew_when_it_is_replayed(r: Rig, kind: str) -> None:
    topic = await r.topic("t", 100, kind=kind, slots=1, merge="key", fold="sum", ttl_s=300.0)
    when: dict[str, Any] = {"priority": 50} if kind == "priority" else {"time_range_ms": 100}
    await r.producer.publish("t", "7", merge_key="k", headers={"a": "b"}, ttl_s=1.0, **when)
    await asyncio.sleep(5)
    got: list[tuple[bytes, object]] = []

    async def handler(m: Message) -> None:
        got.append((m.payload, m.headers))

    async with r.consuming(Seen(handler)):
        await asyncio.sleep(5)
        assert got == []
        assert await dead_letters.replay(r.store, topic, clock=r.clock) == 1
        await until(lambda: got == [(b"7", {"a": "b"})])
    [lag] = await r.admin.slot_lag([topic])
    assert (lag.ready, lag.delayed, lag.claimed, lag.dead) == (0, 0, 0, 0)


async def test_a_queue_is_read_on_when_all_that_was_buffered_of_it_has_expired(r: Rig) -> None:
    await r.topic("t", 1, group_qps=1)
    await r.producer.publish_many("t", [b"brief"] * 60, ttl_s=3.0)
    await r.producer.publish("t", "live")
    seen = Seen()
    async with r.consuming(seen):
        await until(lambda: b"live" in seen.payloads, 10)
        await asyncio.sleep(1)
    assert len(await r.store.lanes.dead("t/0", limit=100)) + len(seen) == 61


@pytest.mark.parametrize("paused", [False, True])
async def test_what_expires_behind_a_backlog_of_a_queue_is_dead_within_a_second(r: Rig, paused: bool) -> None:
    await r.topic("t", 2, ttl_s=3600.0)
    if paused:
        await r.admin.update("t", state=State.PAUSED)
    await r.producer.publish_many("t", [f"patient{i}" for i in range(40)])
    seen = Seen()
    async with r.consuming(seen):
        await asyncio.sleep(1)
        begin = r.clock.now()
        await r.producer.publish("t", "brief", ttl_s=1.0)
        await asyncio.sleep(2.0)
        topic = await r.catalog.get("t")
        [letter] = [x async for x in dead_letters.find(r.store, topic, dead_letters.EVERY)]
        assert (letter.payload, letter.reason) == (b"brief", "expired")
        assert letter.dead_ms / 1000 - begin < 2.0
        if paused:
            assert not seen.deliveries
            await r.admin.update("t", state=State.ACTIVE)
        await until(lambda: len(seen) == 40, 60)
    assert b"brief" not in seen.payloads
    assert max(starts_per_second(seen.deliveries).values()) == 2
    assert await r.lag("t") == 0


@pytest.mark.parametrize("paused", [False, True])
async def test_what_expires_stays_in_the_store_while_dead_letters_find_no_room(r: Rig, paused: bool) -> None:
    await r.topic("t", 2, ttl_s=1.0)
    await r.producer.publish_many("t", [b"brief"] * 5_000)
    await r.producer.publish_many("t", [b"brief"] * 20, delay_ms=100)
    if paused:
        await r.admin.update("t", state=State.PAUSED)
    await asyncio.sleep(2.0)
    store = FaultyStore(MemoryStore(r.world))
    store.lanes.fail(errors.StoreFull("there is no room in this test"), "add", "settle")
    seen = Seen()
    async with r.consuming(seen, store=store) as host:
        await asyncio.sleep(30.0)
        owner = host.ownership.owned["t"]
        # At most what was read before the first of them came into flight.
        assert owner.limit < owner.in_flight <= owner.limit + 2 * MAX_BUFFER
        store.heal()
        await until(lambda: len(r.world.lanes["t/0"].dead) == 5_020)
        if paused:
            await r.admin.update("t", state=State.ACTIVE)
        await r.producer.publish("t", "live")
        await until(lambda: seen.payloads == [b"live"])


async def test_a_retry_does_not_outlive_its_message(r: Rig) -> None:
    async def fails(_: Message) -> None:
        raise ValueError("no")

    await r.topic("t", 20, backoff_s=(60.0,), jitter=0.0)
    seen = Seen(fails)
    async with r.consuming(seen):
        begin = r.clock.now()
        await r.producer.publish("t", "brief", ttl_s=5.0)
        topic = await r.catalog.get("t")
        await asyncio.sleep(5.5)
        [letter] = [x async for x in dead_letters.find(r.store, topic, dead_letters.EVERY)]
        assert (letter.payload, letter.reason) == (b"brief", "expired")
        assert letter.dead_ms / 1000 - begin < 5.5
    assert len(seen) == 1
