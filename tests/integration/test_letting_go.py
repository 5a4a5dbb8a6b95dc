"""What a host lets go of: nothing more of it starts, nothing of it is saved, and what was not started goes back."""

from __future__ import annotations

import asyncio
import logging

import pytest

from emq.host.host import Host
from emq.host.losses import SAY_S
from emq.storage.message import Message
from emq.storage.slot_store import SlotVerdict
from emq_stores.memory import MemoryStore
from support.doubles import FaultyStore
from support.rig import Rig, Seen
from support.virtual import virtual
from support.waiting import until

pytestmark = virtual


async def test_what_is_held_of_a_deleted_topic_stops_as_soon_as_the_host_knows(r: Rig) -> None:
    """A new topic of that name counts on it."""
    await r.topic("orders", 5)
    await r.producer.publish_many("orders", [b"x"] * 100)
    seen = Seen()
    async with r.consuming(seen) as host:
        await until(lambda: len(seen) == 10)
        [group] = host.ownership.groups.values()
        assert group.buffered > 0
        await host.ownership.apply([], ["orders"])
        assert group.stopping
        started = len(seen)
        await asyncio.sleep(3)
        assert len(seen) == started


async def test_what_ends_in_a_group_that_was_let_go_of_is_not_saved_once_its_store_refuses_it(r: Rig) -> None:
    await r.topic("orders", 50)
    async with r.consuming(Seen()) as host:
        await until(lambda: "orders/0" in host.ownership.groups)
        group = host.ownership.groups["orders/0"]
        await host.letting_go.release(["orders/0"])
        assert not group.lost
        host.ownership.lost(group)
        assert group.lost
        assert host.ownership.losses.groups == 0, "it was not lost while it was held"


async def test_what_was_claimed_and_not_started_goes_back_when_its_group_is_let_go_of(r: Rig) -> None:
    """It need not wait for its time-out, and keeps its priority."""
    topic = await r.topic("urgent", 50, kind="priority", slots=1, ordering="key", merge="key")
    hanging = asyncio.Event()

    async def hang(m: Message) -> None:
        await hanging.wait()

    seen = Seen(hang)
    for i in range(2):
        await r.producer.publish("urgent", f"x{i}", key="k", merge_key=f"m{i}", priority=30)
    async with r.consuming(seen) as host:
        await until(lambda: len(host.ownership.groups) == 1)
        [group] = host.ownership.groups.values()
        await until(lambda: group.held == 1, 5)
        await host.letting_go.release([group.name], drain_s=0.1)
        [state] = await r.store.sorted.inspect([topic.slot(0)], int(r.clock.now() * 1000))
        assert (state.waiting, state.prepared, state.next_score) == (1, 1, 30)
        hanging.set()


async def test_a_group_is_let_go_of_once_a_claim_under_way_has_answered(r: Rig) -> None:
    """Else its next owner finds members claimed that nobody started, and counts an attempt for each."""
    topic = await r.topic("urgent", 4, kind="priority", slots=1)
    store, seen = FaultyStore(MemoryStore(r.world)), Seen()
    async with r.consuming(seen, store=store) as host:
        await asyncio.sleep(1.5)
        store.sorted.inject("claim", after_s=0.3)
        await r.producer.publish_many("urgent", ["a", "b"], scores=[40, 50])
        await asyncio.sleep(0.1)
        assert (await r.store.sorted.inspect([topic.slot(0)], 0))[0].prepared > 0
        await host.letting_go.release(["urgent/0"])
        [state] = await r.store.sorted.inspect([topic.slot(0)], 0)
        assert (state.waiting, state.prepared) == (2, 0)
    assert not seen.deliveries


async def test_what_is_being_given_back_when_the_drain_ends_is_not_given_back_twice(r: Rig) -> None:
    """A late verdict may act on the next claim of its second, which has the same token: the message would run twice."""
    await r.topic("urgent", 10, kind="priority", slots=1, pacing="smooth")
    store, seen = FaultyStore(MemoryStore(r.world)), Seen(lambda m: asyncio.sleep(1))
    async with r.consuming(seen, store=store) as host:
        await asyncio.sleep(3 - r.clock.now() % 1)
        store.sorted.inject("claim", after_s=0.1)
        store.sorted.inject("settle", before_s=0.3)
        settles = store.sorted.noted("settle")
        await r.producer.publish("urgent", "a", priority=40)
        await asyncio.sleep(0.05)
        await host.letting_go.release(["urgent/0"], drain_s=0.1)
        host.assignments.created(["urgent/0"], [])  # the group comes back under the same epoch
        await until(lambda: len(seen) == 1)
        await asyncio.sleep(3)
        assert [entry.verdict for call in settles for entry in call] == [SlotVerdict.RETRY, SlotVerdict.ACK]
    assert [(d.payload, d.attempt) for d in seen.deliveries] == [(b"a", 1)]


async def test_what_was_claimed_from_a_lane_goes_back_if_its_group_comes_back_under_one_epoch(r: Rig) -> None:
    await r.topic("orders", 5)
    await r.producer.publish_many("orders", [f"x{i}" for i in range(15)], delay_ms=100)
    seen = Seen()
    async with r.consuming(seen) as host:
        await until(lambda: "orders/0" in host.ownership.groups)
        group = host.ownership.groups["orders/0"]
        await until(lambda: group.lane_out > 5)
        await host.letting_go.release([group.name], drain_s=0)
        await until(lambda: len(set(seen.payloads)) == 15, 20)
        assert host.ownership.groups["orders/0"].epoch == group.epoch


async def test_a_late_claim_of_a_lane_goes_back_if_its_group_comes_back_under_one_epoch(r: Rig) -> None:
    await r.topic("orders", 5)
    store, seen = FaultyStore(MemoryStore(r.world)), Seen()
    async with r.consuming(seen, store=store) as host:
        await until(lambda: "orders/0" in host.ownership.groups)
        await asyncio.sleep(1)
        await r.producer.publish("orders", "x", delay_ms=500)
        await asyncio.sleep(0.4)
        store.lanes.inject("claim", after_s=0.3)
        await until(lambda: bool(r.world.lanes["orders/0"].prepared))
        host.ownership.forget(host.ownership.groups["orders/0"])
        await until(lambda: bool(seen), 20)


async def _fail_later(_: Message) -> None:
    await asyncio.sleep(3)
    raise ValueError("a retry goes to the lane, which the deletion has taken over")


async def _deleted_while_in_flight(r: Rig, *names: str) -> Host:
    """Delete topics of two groups each with messages in flight, and wait until these have ended."""
    for name in names:
        await r.topic(name, 100)
        await r.producer.publish_many(name, [b"x"] * 20)
    seen = Seen(_fail_later)
    async with r.consuming(seen) as host:
        await until(lambda: len(seen) == 20 * len(names))
        for name in names:
            await r.admin.delete(name, force=True)
        await until(lambda: seen.running == 0)
        await asyncio.sleep(SAY_S + 1)
        assert not host.ownership.groups
    return host


async def test_the_log_says_once_that_a_topic_was_deleted_whose_messages_are_in_flight(
    r: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "emq.host")
    host = await _deleted_while_in_flight(r, "orders")
    assert [(line.levelname, line.message) for line in caplog.records if line.name == "emq.host.losses"] == [
        ("INFO", "topic orders was deleted while this host consumed it; messages in flight are not tried again")
    ]
    assert "newer owner" not in caplog.text
    assert host.ownership.losses.groups == 0, "the alert on lost groups would fire"


async def test_the_log_warns_of_groups_with_a_newer_owner_in_one_line(r: Rig, caplog: pytest.LogCaptureFixture) -> None:
    await r.topic("orders", 100)
    async with r.consuming(Seen()) as host:
        await until(lambda: len(host.ownership.groups) == 2)
        first, second = host.ownership.groups.values()
        host.ownership.lost(first)
        host.ownership.lost(second)
    assert host.ownership.losses.groups == 2
    text = f"group orders/0 has a newer owner than epoch {first.epoch}; let go of it (and 1 other)"
    assert [line.message for line in caplog.records if line.name == "emq.host.losses"] == [text]
