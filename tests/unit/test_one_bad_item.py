"""One bad item or answer fails itself: its neighbours in the same batch go on, and so does the loop around them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from emq.dispatch.settler import Settler
from emq.groups.capacity import Gauge
from emq.groups.context import HostContext
from emq.groups.owned import OwnedGroup, OwnedSlot, OwnedTopic
from emq.groups.priority import policy_for
from emq.groups.receiver import Receiver
from emq.producer.batcher import Batcher
from emq.quota.counter import WindowCounter
from emq.runtime import errors
from emq.storage import slot_store
from emq.storage.durability import Durability
from emq.storage.message import Message
from emq.topics.model import Kind, Topic, TopicOptions
from emq.trail import events
from emq_stores.memory import MemoryStore, World
from support.doubles import FaultyStore
from support.rig import Rig, Seen, running
from support.virtual import LoopClock, virtual
from support.waiting import until

pytestmark = virtual

EPOCH = 5


async def test_a_call_that_answers_too_few_items_fails_its_senders_and_none_waits_for_ever() -> None:
    lost = True

    async def call(items: Sequence[int], _: Durability) -> Sequence[int]:
        return items[1:] if lost else items

    batcher: Batcher[int, int] = Batcher(call)
    async with asyncio.timeout(5):
        told = await asyncio.gather(
            *(batcher.send(i, Durability.ACCEPTED, 0) for i in range(3)), return_exceptions=True
        )
        assert all(isinstance(outcome, errors.OutcomeUnknown) for outcome in told)
        lost = False
        assert await batcher.send(7, Durability.ACCEPTED, 0) == 7


@pytest.mark.parametrize("broken", [RuntimeError("nobody expected this"), asyncio.CancelledError()])
async def test_a_call_that_breaks_keeps_no_sender_waiting(broken: BaseException) -> None:
    async def call(items: Sequence[int], _: Durability) -> Sequence[int]:
        if 5 in items:
            raise broken
        return items

    batcher: Batcher[int, int] = Batcher(call)
    async with asyncio.timeout(5):
        sent = [batcher.send(i, Durability.FSYNCED if i == 7 else Durability.ACCEPTED, 0) for i in (5, 7)]
        told = await asyncio.gather(*sent, return_exceptions=True)
        assert told[1] == 7
        assert isinstance(told[0], RuntimeError | errors.OutcomeUnknown)
        assert await batcher.send(3, Durability.ACCEPTED, 0) == 3


async def test_publishers_never_see_an_error_of_a_driver(r: Rig) -> None:
    await r.topic("t", 50)

    r.store.log.fail(OverflowError("Python int too large to convert to SQLite INTEGER"), "put")
    with pytest.raises(errors.OutcomeUnknown, match="too large"):
        await r.producer.publish("t", b"x")


async def test_a_topic_deleted_during_a_delayed_publish_fails_no_publish_of_another_topic(r: Rig) -> None:
    for name in ("gone", "stays"):
        await r.topic(name, 50)

    async def delete() -> None:
        await r.admin.delete("gone", force=True)

    r.store.lanes.after["add"] = delete
    told = await asyncio.gather(
        *(r.producer.publish(name, b"x", delay_ms=1_000) for name in ("gone", "stays", "gone", "stays")),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in told] == [errors.UnknownTopic, str, errors.UnknownTopic, str]


async def test_a_member_whose_verdict_breaks_its_call_keeps_no_other_from_being_settled() -> None:
    clock = LoopClock()
    store = FaultyStore(MemoryStore(World(clock)))
    topic = Topic("t", 100, kind=Kind.PRIORITY, slots=2, options=TopicOptions())
    owner = OwnedTopic(topic)
    owned = []
    for index in range(2):
        group = OwnedGroup(owner, index, EPOCH, WindowCounter(1, 0), policy_for(topic), Gauge())
        group.slot = OwnedSlot(group, topic.slot(index))
        owned.append(group.slot)
    members = [b"a", b"bad", b"b", *(b"later %d" % i for i in range(20))]
    adds = [slot_store.SlotAdd(slot.slot, member, 20.0, slot_store.Keep.LAST) for slot in owned for member in members]
    await store.sorted.add(adds)
    claimed = await store.sorted.claim([slot_store.SlotClaim(slot.slot, 50, EPOCH, 1 << 50) for slot in owned], 5_000)
    breaks = ValueError("what the driver cannot send")
    bad = store.sorted.inject(
        "settle", before=breaks, when=lambda settles, _: any(s.member == b"bad" for s in settles), times=None
    )
    settler = Settler(store.lanes, store.sorted, HostContext(clock))
    handled: list[tuple[OwnedGroup, Message]] = []
    for slot, found in zip(owned, claimed, strict=True):
        assert isinstance(found, slot_store.SlotClaimed)
        slot.hold([entry.member for entry in found.entries])
        for entry in found.entries:
            handled.append((slot.group, Message("", b"", member=entry.member, token=entry.token)))
    handled.sort(key=lambda each: members.index(each[1].member or b""))
    for each in handled[:6]:
        settler.acknowledge(*each)
    loops = [asyncio.create_task(loop()) for loop in (settler.members.run, settler.settle)]
    for each in handled[6:]:  # those that succeed say nothing of those that broke
        await asyncio.sleep(0.25)
        settler.acknowledge(*each)
    await asyncio.sleep(0.1)
    assert [set(slot.held) for slot in owned] == [{b"bad"}] * 2
    assert [slot.unsure for slot in owned] == [1, 1], "the call may have been carried out"
    bad.times = 0
    await until(lambda: [(set(slot.held), slot.unsure) for slot in owned] == [(set(), 0)] * 2)
    for loop in loops:
        loop.cancel()


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
async def test_a_receiver_takes_no_time_that_is_none(seconds: float) -> None:
    with pytest.raises(errors.InvalidSettings, match="seconds"):
        Receiver(seconds)
    if seconds != float("inf"):
        with pytest.raises(errors.InvalidSettings, match="timeout_s"):
            await Receiver().receive(timeout_s=seconds)


async def test_a_receiver_that_cannot_be_told_of_a_wish_forgets_it() -> None:
    receiver = Receiver()

    def breaks(_: Receiver) -> None:
        raise ValueError("a bug of a host")

    receiver.on_wanted.append(breaks)
    with pytest.raises(ValueError, match="a bug"):
        await receiver.receive(max_messages=3, timeout_s=1)
    assert receiver.wanted == 0


STEPS = [("lanes", "claim"), ("log", "bounds"), ("lanes", "recover"), ("sorted", "recover")]


@pytest.mark.parametrize(("half", "call"), STEPS)
async def test_a_topic_deleted_while_a_host_acquires_it_keeps_no_other_from_being_consumed(
    r: Rig, half: str, call: str
) -> None:
    for name, kind in (("gone", Kind.LOG), ("gone-sorted", Kind.PRIORITY), ("stays", Kind.LOG)):
        await r.topic(name, 50, kind=kind)
        await r.producer.publish(name, b"x", **({"priority": 20} if kind is Kind.PRIORITY else {}))
    store, seen = FaultyStore(MemoryStore(r.world)), Seen()
    deleted = asyncio.Event()

    async def delete() -> None:
        for name in ("gone", "gone-sorted"):
            await r.admin.delete(name, force=True)
        await asyncio.sleep(0.5)  # the host reads the catalog meanwhile
        deleted.set()

    getattr(store, half).after[call] = delete
    host = r.host(seen, store=store)
    async with running(host):
        await asyncio.wait_for(deleted.wait(), 10)
        await until(lambda: {d.topic for d in seen.deliveries} >= {"stays"})
        await r.producer.publish("stays", b"y")
        await until(lambda: sum(d.topic == "stays" for d in seen.deliveries) == 2)
        assert all(name.startswith("stays") for name in host.ownership.groups)


def test_an_event_that_cannot_be_recorded_costs_the_trail_no_other(tmp_path: Path) -> None:
    from test_trail import message, open_trail, rows

    trail = open_trail(tmp_path, max_pending=1_000)
    for i in range(40):
        m = message(i)
        if i == 17:
            m.published_us = 1 << 70
        trail.started(m, EPOCH)
    trail.record(events.Published(2, "shop", 0, ["a", "\ud800", "c"], 1, 1, range(3)))
    assert trail.flush(10)
    trail.started(message(50), EPOCH)
    assert trail.close(10)
    found = rows(tmp_path)
    assert {row["id"] for row in found} == {*(f"m{i}" for i in range(40) if i != 17), "a", "c", "m50"}
    assert trail.statistics().dropped == 2


async def test_an_item_whose_sender_gave_up_before_its_call_is_not_sent_and_close_waits_for_calls() -> None:
    sent: list[int] = []
    release = asyncio.Event()

    async def call(items: Sequence[int], _: Durability) -> Sequence[int]:
        await release.wait()
        sent.extend(items)
        return items

    batcher: Batcher[int, int] = Batcher(call)
    first, second = (asyncio.ensure_future(batcher.send(i, Durability.ACCEPTED, 0)) for i in (1, 2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(batcher.close())
    await asyncio.sleep(0)
    assert not closing.done()
    release.set()
    await closing
    assert sent == [2]
    assert await second == 2


async def test_a_call_that_is_cancelled_before_its_first_step_leaves_nobody_waiting() -> None:
    async def call(items: Sequence[int], durability: Durability) -> Sequence[int]:
        return items

    batcher: Batcher[int, int] = Batcher(call)
    lost = [asyncio.ensure_future(batcher.send(i, Durability.ACCEPTED, 0)) for i in range(3)]
    closing = asyncio.ensure_future(batcher.close())
    while not batcher._tasks:
        await asyncio.sleep(0)
    [task] = batcher._tasks
    task.cancel()
    async with asyncio.timeout(5):
        assert all(
            isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(*lost, return_exceptions=True)
        )
        await closing
        assert await batcher.send(7, Durability.ACCEPTED, 0) == 7
        sending = asyncio.ensure_future(batcher.send(8, Durability.ACCEPTED, 0))
        await asyncio.sleep(0)
        await batcher.close()
        assert sending.done()
