"""Fetching: what is read when, holes, lost ownership, and a store that does not answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import msgspec
import pytest

from emq.fetcher.lane_claimer import LaneClaimer
from emq.fetcher.puller import Puller
from emq.fetcher.readiness import Readiness, wanted
from emq.fetcher.slot_looks import room
from emq.groups import reading_ahead
from emq.groups.capacity import Gauge, buffer_capacity
from emq.groups.context import HostContext
from emq.groups.offset_tracker import OffsetTracker
from emq.groups.owned import OwnedGroup, OwnedQueue, OwnedSlot
from emq.groups.reading_ahead import is_held
from emq.quota.counter import WindowCounter
from emq.runtime import errors
from emq.runtime.lease import Lease
from emq.storage import message
from emq.storage.lane_store import LaneAdd, LaneClaim
from emq.storage.log_store import Put, Read
from emq.storage.message import Message
from emq.topics.model import Kind, Topic, TopicOptions
from emq_stores.memory import MemoryStore, World
from support.doubles import FaultyStore
from support.owned_groups import owned_group
from support.recorded_events import RecordedEvents
from support.virtual import LoopClock, virtual
from support.waiting import until

pytestmark = virtual

NOW = 1.5
"""A time at which the counters of new slots grant starts."""


async def has_few() -> None:
    """No group waits to start messages."""


async def ignore(m: Message) -> None:
    """A handler."""


@contextlib.asynccontextmanager
async def running(loop: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(loop)
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class Bench:
    """A puller and a retry claimer for one group of one priority, on a memory store."""

    def __init__(
        self, qps: float = 20.0, gauge: Gauge | None = None, bodies: int = 0, lease: Lease | None = None
    ) -> None:
        self.gauge = gauge or Gauge()
        self.held: list[None] = []
        self.readiness = Readiness(lambda: self.held.append(None))
        self.clock = LoopClock()
        self.world = World(self.clock)
        self.store = FaultyStore(MemoryStore(self.world))
        events = RecordedEvents()
        context = HostContext(self.clock, events, lease=lease or Lease(), gauge=self.gauge)
        self.buffered, self.dirty = events.buffered, events.changes
        self.schedules, self.moved, self.damaged = events.schedules, events.moves, events.damages
        self.lost, self.shrunk = events.losses, events.shrinks
        self.group = self.new_group(qps)
        self.queue = self.group.queues[0]
        self.puller = Puller(self.store.log, self.readiness, context, has_few)
        self.lanes = LaneClaimer(self.store.lanes, context)

    def new_group(self, qps: float, name: str = "t") -> OwnedGroup:
        group = owned_group(Topic(name, qps, priorities=("p",)), WindowCounter(qps, 0), 5, self.gauge, quota=qps)
        group.owner.handler = ignore
        group.capacity = buffer_capacity(qps, 1.0)
        return group

    async def put(self, count: int, name: str = "t", body: bytes | None = None) -> None:
        bodies = [message.encode(str(i), b"%d" % i, None, 1, None) if body is None else body for i in range(count)]
        await self.store.log.put([Put(f"{name}/0/p", bodies)])

    def hold(self, count: int, priority: int = 0) -> None:
        """Let so many messages of one key wait for one of theirs that runs."""
        waiting = [Message(str(i), b"", "busy", priority=priority, offset=i) for i in range(count + 1)]
        self.group.push(priority, waiting)
        while self.group.take(0) is not None:
            pass

    @contextlib.asynccontextmanager
    async def pulling(self, count: int = 0) -> AsyncIterator[None]:
        """Pull; with a count, the block begins when so many messages of the queue are buffered."""
        async with running(self.puller.pull()):
            if count:
                self.readiness.add(self.queue)
                await until(lambda: self.group.buffered == count)
            yield

    @contextlib.asynccontextmanager
    async def claiming(self) -> AsyncIterator[asyncio.Task[None]]:
        """Claim from the lane of the group."""
        async with running(self.lanes.claim()) as task:
            self.lanes.acquire(self.group)
            yield task

    async def add(self, *messages: Message, due_ms: int = 1) -> None:
        """Let these wait in the lane of the group."""
        adds = [LaneAdd("t/0", m.id, message.encode_retry(m), due_ms, priority=m.priority) for m in messages]
        await self.store.lanes.add(adds)

    async def pull(self, count: int) -> None:
        """Pull until so many messages of the queue are buffered."""
        async with self.pulling(count):
            pass


def with_a_lower_queue(b: Bench) -> OwnedQueue:
    """A queue of the group below those that it has."""
    b.group.buffers.append(deque())
    [low] = b.new_group(20).queues
    low.group, low.priority = b.group, len(b.group.queues)
    b.group.queues.append(low)
    return low


def buffer(queue: OwnedQueue, count: int, first: int = 1) -> None:
    messages = [Message(str(i), b"", priority=queue.priority, offset=i) for i in range(first, first + count)]
    queue.group.push(queue.priority, messages)


@pytest.fixture
async def b() -> Bench:
    return Bench()


async def test_a_ready_queue_is_read_up_to_its_capacity_and_again_when_half_is_taken(b: Bench) -> None:
    await b.put(100)
    async with b.pulling(20):
        await asyncio.sleep(10)
        assert b.group.buffered == 20
        for _ in range(9):
            b.group.take(0)
        b.readiness.drained(b.group)
        await asyncio.sleep(0.01)
        assert b.group.buffered == 11
        b.group.take(0)
        b.readiness.drained(b.group)
        await until(lambda: b.group.buffered == 20)
    assert b.queue.more
    assert [m.offset for m in b.group.buffers[0]] == list(range(11, 31))


async def test_an_exhausted_queue_costs_nothing_until_it_is_woken(b: Bench) -> None:
    await b.put(3)
    async with b.pulling(3):
        assert not b.queue.more
        calls = b.store.log.calls["read"]
        b.readiness.drained(b.group)
        await asyncio.sleep(600)
        assert b.store.log.calls["read"] == calls
        await b.put(1)
        b.readiness.woken(b.queue)
        await until(lambda: b.group.buffered == 4)


async def test_many_queues_are_read_in_one_round_trip(b: Bench) -> None:
    groups = [b.new_group(5, f"t{i}") for i in range(250)]
    for i in range(250):
        await b.put(2, f"t{i}")
    for group in groups:
        b.readiness.add(group.queues[0])
        b.readiness.add(group.queues[0])
    assert len(b.readiness) == 250
    async with b.pulling():
        await until(lambda: all(g.buffered == 2 for g in groups))
    assert b.store.log.calls["read"] == 1


async def test_holes_count_as_finished_each_once(b: Bench) -> None:
    await b.put(10)
    for offset in (1, 2, 5, 10):
        b.store.real.lose("t/0/p", offset)
    await b.pull(6)
    assert b.puller.holes == 4
    assert b.dirty == [b.queue]
    assert (b.queue.tracker.watermark, b.queue.tracker.finished()) == (3, [(5, 6), (10, 11)])


async def test_what_a_checkpoint_says_is_finished_is_not_buffered_again(b: Bench) -> None:
    await b.put(10)
    b.queue.tracker = OffsetTracker(1, [(3, 5), (8, 9)])
    async with b.pulling():
        b.readiness.add(b.queue)
        await until(lambda: b.queue.position == 11)
    assert [m.offset for m in b.group.buffers[0]] == [1, 2, 5, 6, 7, 9, 10]


async def test_what_a_checkpoint_says_is_finished_is_not_buffered_when_the_watermark_got_there_first(b: Bench) -> None:
    b.queue.tracker = OffsetTracker(1, ((21, 24),))
    await b.put(25)
    async with b.pulling(20):
        while (m := b.group.take(0)) is not None:
            b.queue.tracker.finish(m.offset, m.offset + 1)
        assert (b.queue.tracker.watermark, b.queue.tracker.finished()) == (24, [])
        b.readiness.drained(b.group)
        await until(lambda: b.group.buffered > 0)
    assert [m.offset for m in b.group.buffers[0]] == [24, 25]


WHOLE = message.encode("an-id", b"payload", "key", 1, {"a": "b"})


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(WHOLE[:-3], id="cut"),
        pytest.param(WHOLE + b"x", id="longer"),
        pytest.param(b"\x92\xa1\xff\xc4\x00", id="an id that is no text"),
        pytest.param(message.encode_retry(Message("an-id", b"payload"))[:-1], id="a cut retry"),
    ],
)
async def test_a_damaged_record_is_put_aside_with_its_bytes_and_its_neighbours_go_on(b: Bench, body: bytes) -> None:
    await b.put(1)
    await b.put(1, body=body)
    await b.put(1)
    await b.pull(2)
    [(group, m, reason)] = b.damaged
    assert (group, m.id, m.payload, m.offset) == (b.group, "t/0/p@2", body, 2)
    assert "damaged" in reason
    assert b.puller.damaged == 1


async def test_a_damaged_entry_of_a_lane_is_put_aside_with_its_bytes(b: Bench) -> None:
    await b.store.lanes.add([LaneAdd("t/0", "x", b"\xc1junk", 1)])
    async with b.claiming():
        await until(lambda: bool(b.damaged))
        [(group, m, _)] = b.damaged
        assert (group, m.id, m.payload, m.offset) == (b.group, "x", b"\xc1junk", -1)
        assert b.group.buffered == 0


@pytest.mark.parametrize("body", [b"", b"\xc1junk", b"{}", b"text", b"\x95\x01\x02"])
async def test_a_strangers_body_is_passed_on_as_it_is(b: Bench, body: bytes) -> None:
    await b.put(1, body=body)
    await b.pull(1)
    m = b.group.take(0)
    assert m is not None
    assert (m.id, m.payload, m.offset) == ("t/0/p@1", body, 1)


async def test_a_newer_owner_ends_the_reading(b: Bench) -> None:
    await b.put(1)
    await b.store.log.read([Read("t/0/p", 1, 1, 6)])
    async with b.pulling():
        b.readiness.add(b.queue)
        await until(lambda: b.lost == [b.group])
    assert b.group.buffered == 0


async def test_an_unreachable_store_is_asked_ever_more_rarely_and_read_on_when_it_is_back(b: Bench) -> None:
    await b.put(5)
    b.store.fail()
    async with b.pulling():
        b.readiness.add(b.queue)
        await asyncio.sleep(60)
        assert 5 <= b.store.log.calls["read"] <= 20
        assert "out of reach" in (b.puller.unreachable or "")
        b.store.heal()
        await until(lambda: b.group.buffered == 5, 6)
        assert b.puller.unreachable is None


async def test_a_group_that_stops_or_has_no_handler_or_holds_too_much_is_not_read(b: Bench) -> None:
    assert wanted(b.queue) == 20
    b.hold(4 * 20)
    assert wanted(b.queue) == 0
    b.group.discard()
    b.group.owner.in_flight = b.group.owner.limit + 1
    assert wanted(b.queue) == 0
    b.group.owner.in_flight -= 1
    assert wanted(b.queue) == 20
    b.group.owner.handler = None
    assert wanted(b.queue) == 0
    b.group.owner.handler = ignore
    b.group.stopping = True
    assert wanted(b.queue) == 0
    b.readiness.add(b.queue)
    assert len(b.readiness) == 0


async def test_what_waits_for_a_busy_key_keeps_no_other_priority_from_being_read(b: Bench) -> None:
    low = with_a_lower_queue(b)
    b.hold(4 * 20, priority=1)
    assert (wanted(b.queue), wanted(low)) == (20, 0)


async def test_a_low_backlog_leaves_a_high_priority_its_part_of_what_may_be_unsaved(b: Bench) -> None:
    """While nothing can be saved, what the low one takes of the bound is missing to a high message that comes later."""
    low = with_a_lower_queue(b)
    b.group.allowance = 50
    low.tracker.finish(1, 21)  # and nothing of it is saved
    b.group.ahead = 40
    buffer(low, 5, first=21)
    assert wanted(low) == 5
    assert wanted(b.queue) == 20  # the low ones in the buffer start after these, or not before the next save


async def test_nothing_starts_below_a_queue_that_waits_for_a_save(b: Bench) -> None:
    low = with_a_lower_queue(b)
    buffer(low, 15)
    b.queue.tracker.finish(1, 51)  # and nothing of it is saved
    b.group.ahead, b.group.allowance = 65, 70
    b.queue.more = False
    assert reading_ahead.startable(b.group, b.clock.now()) == 15
    b.group.allowance = 60
    assert reading_ahead.startable(b.group, b.clock.now()) == 10  # as many as may be unsaved
    b.queue.more, b.group.allowance = True, 50
    assert is_held(b.queue)
    assert reading_ahead.startable(b.group, b.clock.now()) == 0
    assert reading_ahead.wait_s(b.group) == reading_ahead.HELD_S
    b.group.push(0, [Message("high", b"", offset=51)])
    b.group.allowance = 51
    assert reading_ahead.startable(b.group, b.clock.now()) == 1


async def test_nothing_starts_below_a_queue_that_leaves_what_may_be_unsaved_to_a_higher_one(b: Bench) -> None:
    """More may start; but not of the lowest queue, since the one above it must not be read now."""
    middle, low = with_a_lower_queue(b), with_a_lower_queue(b)
    buffer(low, 5)
    b.queue.tracker.finish(1, 51)  # and nothing of it is saved
    b.group.ahead, b.group.allowance = 55, 50 + b.group.capacity
    b.queue.more, middle.more, middle.listed = False, True, False
    assert is_held(middle)
    assert reading_ahead.startable(b.group, b.clock.now()) == 0
    middle.more = False
    assert reading_ahead.startable(b.group, b.clock.now()) == 5


async def test_a_group_may_be_unsaved_by_what_the_topics_other_groups_are_not(b: Bench) -> None:
    """It starts what they leave, so its own bound would hold it to its share between two checkpoints."""
    other = Bench().group
    b.group.allowance = other.allowance = 50
    b.queue.tracker.finish(1, 51)  # and nothing of it is saved
    b.group.ahead = 50
    assert wanted(b.queue) == 0
    b.group.owner.groups[1] = other
    other.ahead = 45
    assert wanted(b.queue) == 5
    third = Bench().group
    third.allowance, third.ahead = 50, 54  # it uses most of what the second one leaves
    b.group.owner.groups[2] = third
    assert wanted(b.queue) == 1


async def test_what_a_low_priority_holds_of_a_former_quota_keeps_no_higher_one_in_the_store(b: Bench) -> None:
    low = with_a_lower_queue(b)
    buffer(low, 200)
    b.group.ahead = 200
    b.group.allowance = 100  # since the quota is 20, and was 100 before
    assert wanted(b.queue) == b.queue.capacity == 20
    assert wanted(low) <= 0


async def test_of_a_messages_own_time_to_live_and_its_topics_the_shorter_counts(b: Bench) -> None:
    owner = b.group.owner
    owner.topic = msgspec.structs.replace(owner.topic, options=TopicOptions(ttl_s=3.0))
    now_us = b.clock.now_us()
    own_s = {"shorter": 2, "longer": 100, "none": None}
    bodies = [
        message.encode_retry(Message(id_, b"", published_us=now_us, expires_us=now_us + s * 1_000_000 if s else 0))
        for id_, s in own_s.items()
    ]
    await b.store.log.put([Put("t/0/p", bodies)])
    await b.pull(3)
    lives_s = {m.id: (m.expires_us - now_us) / 1e6 for m in b.group.buffers[0]}
    assert lives_s == {"shorter": 2.0, "longer": 3.0, "none": 3.0}
    assert b.group.expires_us == now_us + 2_000_000


async def test_at_the_hosts_bound_only_queues_without_a_message_read_and_only_one() -> None:
    b = Bench(gauge=Gauge(max_messages=10))
    other = b.new_group(5, "other")
    await b.put(100)
    await b.put(100, "other")
    async with b.pulling(20):
        b.readiness.add(other.queues[0])
        await until(lambda: other.buffered == 1)
        b.group.owner.pace.passed(20)  # an unknown topic shares half of the bound
        for _ in range(18):
            b.group.take(0)
        b.readiness.drained(b.group)
        await until(lambda: b.group.buffered > 5)


async def test_a_due_retry_is_claimed_when_it_is_due(b: Bench) -> None:
    now_ms = int(b.clock.now() * 1000)
    for wait_ms in (5_000, 2_000):
        await b.add(Message(f"after {wait_ms}", b"x", attempt=2), due_ms=now_ms + wait_ms)
    async with b.claiming():
        await asyncio.sleep(1.9)
        assert b.group.buffered == 0
        await asyncio.sleep(0.2)
        assert b.group.buffered == 1
        await asyncio.sleep(3)
        assert [m.id for m in b.group.buffers[0]] == ["after 2000", "after 5000"]
        assert {m.offset for m in b.group.buffers[0]} == {-1}
        assert b.group.retries.get(0, 0) == 2
        assert b.store.lanes.calls["claim"] <= 4
        await asyncio.sleep(1_000)
        assert b.store.lanes.calls["claim"] <= 4


async def test_more_due_retries_than_there_is_room_for_wait_in_the_store() -> None:
    b = Bench(qps=10)
    await b.add(*(Message(str(i), b"x") for i in range(50)))
    async with b.claiming():
        await asyncio.sleep(5)
        assert b.group.retries.get(0, 0) == 10
        taken = 0
        for _ in range(100):
            while b.group.take(0) is not None:
                taken += 1
            await asyncio.sleep(0.3)
        assert taken == 50


async def test_low_retries_that_fill_their_room_do_not_keep_a_high_one_in_the_lane() -> None:
    b = Bench(qps=10)
    b.group.buffers = [deque(), deque()]
    await b.add(*(Message(str(i), b"x", priority=1) for i in range(50)))
    async with b.claiming():
        await asyncio.sleep(5)
        assert b.group.retries == {1: 10}
        await b.add(Message("high", b"x", priority=0), due_ms=int(b.clock.now() * 1000))
        await asyncio.sleep(0.3)
        first = b.group.take(0)
        assert first is not None
        assert first.id == "high"


async def test_at_the_hosts_bound_a_lane_brings_one_retry_if_the_group_has_none() -> None:
    b = Bench(gauge=Gauge(max_messages=10))
    await b.put(10)
    await b.add(*(Message(str(i), b"x") for i in range(5)))
    await b.pull(10)
    async with b.claiming():
        await asyncio.sleep(2)
        assert b.group.retries.get(0, 0) == 1
        while b.group.take(0) is not None:
            pass
        await until(lambda: b.group.retries.get(0, 0) == 4, 1)


async def test_retries_of_an_unreachable_store_are_claimed_when_it_is_back(b: Bench) -> None:
    await b.add(Message("x", b""))
    b.store.fail()
    async with b.claiming():
        await asyncio.sleep(30)
        assert b.store.lanes.calls["claim"] < 40
        b.store.heal()
        await until(lambda: b.group.buffered == 1)


async def test_a_slot_with_a_newer_owner_is_let_go(b: Bench) -> None:
    await b.store.lanes.claim([LaneClaim("t/0", 1, 6)], 1)
    async with b.claiming() as task:
        await until(lambda: b.lost == [b.group])
        b.lanes.release(b.group)
        b.lanes.at("t/0", 0)
        await asyncio.sleep(1)
        assert not task.done()


@pytest.mark.parametrize("priority", [0, 1, 7])
async def test_a_retry_of_a_priority_that_is_no_more_goes_to_the_lowest(b: Bench, priority: int) -> None:
    await b.add(Message("x", b"", priority=priority))
    async with b.claiming():
        await asyncio.sleep(0.01)
        assert b.group.buffers[0][0].priority == 0


async def test_what_a_newer_owner_has_claimed_is_not_put_back_for_a_lost_claim(b: Bench) -> None:
    await b.store.real.lanes.add([LaneAdd("t/0", "a", b"x", 1)])
    b.store.lanes.fail(errors.StoreUnavailable("gone"), "claim")
    async with b.claiming():
        await asyncio.sleep(0.1)
        await b.store.real.lanes.claim([LaneClaim("t/0", 1, b.group.epoch + 1)], int(b.clock.now() * 1000))
        b.store.lanes.heal()
        await until(lambda: b.lost == [b.group])
    assert (await b.store.real.lanes.inspect(["t/0"]))[0].prepared == 1


def test_at_the_hosts_bound_a_slot_claims_one_message_if_it_has_none() -> None:
    gauge = Gauge(max_messages=10)
    slot = new_slot(gauge)
    assert room(slot, NOW) == slot.group.capacity
    gauge.messages = 10
    assert room(slot, NOW) == 1
    slot.buffered = 1
    assert room(slot, NOW) == 0


def test_claims_under_way_from_other_slots_take_their_topics_room() -> None:
    slot = new_slot(Gauge())
    owner = slot.group.owner
    owner.limit = 8
    assert room(slot, NOW) == 8
    owner.coming = 5
    assert room(slot, NOW) == 3
    owner.in_flight = 3
    assert room(slot, NOW) == 0


def test_where_messages_run_one_by_one_no_more_are_claimed_than_have_run_without_waiting() -> None:
    """What waits in the store merges with what is sent again; what is on the host does not."""
    slot = new_slot(Gauge())
    slot.group.serial = True
    assert room(slot, NOW) == 1
    slot.run = 4
    assert room(slot, NOW) == 4
    slot.buffered = 3
    assert room(slot, NOW) == 1
    slot.group.busy = True
    assert room(slot, NOW) == 0


def new_slot(gauge: Gauge) -> OwnedSlot:
    topic = Topic("t", 10, kind=Kind.PRIORITY, priorities=(), slots=1)
    group = owned_group(topic, WindowCounter(10, 0), gauge=gauge)
    group.owner.handler = ignore
    group.slot = OwnedSlot(group, topic.slot(0))
    group.counter.reserve(0, NOW)
    return group.slot


async def test_nothing_is_read_or_claimed_past_the_lease_and_all_of_it_once_that_is_renewed() -> None:
    lease = Lease(0.0)
    b = Bench(lease=lease)
    await b.put(5)
    await b.add(Message("r", b""))
    claiming = asyncio.create_task(b.lanes.claim())
    async with b.pulling():
        b.readiness.add(b.queue)
        b.lanes.acquire(b.group)
        await asyncio.sleep(10)
        assert (b.store.log.calls.get("read"), b.store.lanes.calls.get("claim")) == (None, None)
        lease.renew(b.clock.now() + 1)
        await until(lambda: b.group.buffered == 6, 0.5)
    claiming.cancel()


async def test_a_lane_that_is_woken_while_it_is_being_claimed_from_is_claimed_from_again(b: Bench) -> None:
    """The claim under way may have looked before what woke it came."""

    async def comes_late() -> None:
        await b.add(Message("r", b""))
        await asyncio.sleep(5)
        b.lanes.at("t/0", 0)
        await asyncio.sleep(5)

    b.store.lanes.after["claim"] = comes_late
    async with b.claiming():
        await until(lambda: b.group.buffered == 1, 15)


async def test_a_doubt_that_comes_while_a_lane_is_recovered_recovers_it_again(b: Bench) -> None:

    async def doubted() -> None:
        b.lanes.doubted(b.group)

    b.store.lanes.after["recover"] = doubted
    async with b.claiming():
        b.lanes.doubted(b.group)
        await until(lambda: b.store.lanes.calls.get("recover") == 2, 15)
        await until(lambda: not b.group.lane_lost_ms, 15)


@pytest.mark.parametrize("lost", [False, True])
async def test_what_a_claim_of_a_former_hold_took_is_recovered_by_the_hold_of_now(b: Bench, lost: bool) -> None:
    """The host let go of the group and acquired it again, under the same epoch, while the claim was under way."""
    again = b.new_group(20.0)
    await b.add(Message("r", b""))

    async def acquired_again() -> None:
        b.group.stopping = True
        b.lanes.release(b.group)
        b.lanes.acquire(again)
        if lost:
            raise errors.OutcomeUnknown("the answer was lost")

    b.store.lanes.after["claim"] = acquired_again
    async with b.claiming():
        await until(lambda: again.buffered == 1, 15)


@pytest.mark.parametrize("may_expire", [False, True])
async def test_a_save_is_asked_for_where_only_that_holds_up_what_may_expire(b: Bench, may_expire: bool) -> None:
    options = TopicOptions(ttl_s=60.0) if may_expire else TopicOptions()
    b.group.owner.topic = Topic("t", 20.0, priorities=("p",), options=options)
    b.group.allowance = 30
    b.queue.tracker.finish(1, 31)  # and nothing of it is saved
    b.group.ahead = 30
    b.readiness.add(b.queue)
    assert len(b.readiness) == 0
    assert bool(b.held) is may_expire
    b.queue.cover(30)
    b.readiness.checkpointed()
    assert len(b.readiness) == 1
