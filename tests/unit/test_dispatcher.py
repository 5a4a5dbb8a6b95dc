"""The main loop while time passes inside its handlers: a grant is good for its second, a lease for its time."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections import Counter, deque

import pytest

from emq.dispatch import rotation
from emq.dispatch.dispatcher import VISIT, Dispatcher
from emq.dispatch.parking import GRID_S
from emq.groups.context import HostContext
from emq.groups.offset_tracker import OffsetTracker
from emq.groups.owned import OwnedGroup, OwnedQueue
from emq.quota.counter import Counter as GroupCounter
from emq.quota.counter import WindowCounter
from emq.quota.places import sharing
from emq.quota.smooth import SmoothCounter
from emq.quota.topic_counter import TopicCounter
from emq.runtime.lease import Lease
from emq.storage.message import Message
from emq.topics.model import Topic
from support.manual_clock import ManualClock
from support.owned_groups import owned_group
from support.recorded_trail import RecordedTrail
from support.waiting import turns

T = 1_000_000_000

SIZES = pytest.mark.parametrize(
    ("batch_size", "waits"), [(1, 0.0), (2, 0.0), (1, 1.0)], ids=["one-by-one", "in-batches", "in-volleys"]
)


class Outcomes:
    """`dead` is what has expired; `lost` is what has failed, if anything may fail."""

    def __init__(self) -> None:
        self.dead: list[str] = []
        self.lost: list[str] | None = None

    def acknowledge(self, group: OwnedGroup, message: Message) -> None:
        raise AssertionError("a message of a queue needs no acknowledgement")

    def failed(self, group: OwnedGroup, message: Message, failure: BaseException) -> None:
        if self.lost is None:
            raise failure
        self.lost.append(message.id)

    def expired(self, group: OwnedGroup, message: Message) -> None:
        self.dead.append(message.id)

    def damaged(self, group: OwnedGroup, message: Message, reason: str) -> None:
        raise AssertionError(reason)


class Bench:
    """A dispatcher whose handlers take time without waiting, as one does that computes, or whose process was stopped.

    Attributes:
        gate: the handlers wait for it, if there is one.
        takes_s: how long the next calls of the handler take; then none.
        waits: share of the latest messages that are said to have waited; above an eighth they start in volleys.
        starts, ids: when each message was started, in seconds since `T`, and which.
    """

    def __init__(
        self, batch_size: int = 1, lease: Lease | None = None, waits: float = 0.0, at: float = T + 0.1
    ) -> None:
        self.clock = ManualClock(at)
        self.takes_s: deque[float] = deque()
        self.starts: list[float] = []
        self.ids: list[str] = []
        self.gate: asyncio.Event | None = None
        self.batch_size = batch_size
        self.waits = waits
        self.outcomes = Outcomes()
        self.dispatcher = Dispatcher(self.outcomes, HostContext(self.clock, lease=lease or Lease()))

    def group(self, name: str, counter: GroupCounter | int, messages: int, qps: float = 1000.0) -> OwnedGroup:
        """Return a group with messages; its counter, or one of so many starts a second, was made a second ago."""
        counter = WindowCounter(counter, T - 1) if isinstance(counter, int) else counter
        group = owned_group(Topic(name, qps, priorities=("p", "q")), counter)
        owner = group.owner
        owner.handler, owner.batch_size = self._handle if self.batch_size == 1 else self._handle_many, self.batch_size
        owner.waits = self.waits
        group.push(0, [Message(f"{name}{i}", b"", offset=i, topic=name) for i in range(1, messages + 1)])
        return group

    async def _handle(self, message: Message) -> None:
        await self._handle_many([message])

    async def _handle_many(self, messages: list[Message]) -> None:
        self.ids += [m.id for m in messages]
        self.starts += [m.started_us / 1e6 - T for m in messages]
        self.clock.advance(self.takes_s.popleft() if self.takes_s else 0.0)
        if self.gate is not None:
            await self.gate.wait()

    async def run(self, *groups: OwnedGroup) -> None:
        """Start what may be started now."""
        for group in groups:
            self.dispatcher.ready(group)
        await turns(50)
        await self.dispatcher.stop()

    def per_second(self) -> Counter[int]:
        return Counter(int(at) for at in self.starts)


@SIZES
async def test_a_grant_is_used_in_its_second_only(batch_size: int, waits: float) -> None:
    """The rest of it would come on top of what the next second allows."""
    bench = Bench(batch_size, waits=waits)
    group = bench.group("t", 10, 40)
    bench.takes_s.append(0.95)
    await bench.run(group)
    assert bench.per_second() == {0: batch_size, 1: 10}


@SIZES
async def test_nothing_is_started_past_the_lease(batch_size: int, waits: float) -> None:
    bench = Bench(batch_size, Lease(T + 0.5), waits)
    group = bench.group("t", 100, 100)
    bench.takes_s.extend([0.3] * 100)
    await bench.run(group)
    assert len(bench.starts) == 2 * batch_size
    assert max(bench.starts) < 0.5


@SIZES
async def test_tokens_that_were_taken_before_a_long_call_are_not_used_after_it(batch_size: int, waits: float) -> None:
    """By then the bucket has filled again: both together would be more than the burst."""
    bench = Bench(batch_size, waits=waits)
    group = bench.group("t", SmoothCounter(10, T - 1, burst=6), 40)
    bench.takes_s.append(0.8)
    await bench.run(group)
    assert bench.per_second()[0] == batch_size + 6


@SIZES
async def test_what_has_outlived_its_time_is_a_dead_letter_and_uses_up_no_quota(batch_size: int, waits: float) -> None:
    bench = Bench(batch_size, waits=waits)
    group = bench.group("t", 5, 8)
    for i, message in enumerate(group.buffers[0]):
        message.expires_us = (T + 1) * 1_000_000 + (50_000 if i % 2 else 500_000)
    bench.clock.advance(1.0)
    await bench.run(group)
    assert bench.ids == ["t1", "t3", "t5", "t7"]
    assert bench.outcomes.dead == ["t2", "t4", "t6", "t8"]


async def test_a_group_with_a_backlog_gives_the_others_their_turn() -> None:
    bench = Bench()
    groups = [bench.group(name, 10_000, 3 * VISIT) for name in "abc"]
    await bench.run(*groups)
    assert len(bench.ids) == 9 * VISIT
    turns = [bench.ids[start][0] for start in range(0, len(bench.ids), VISIT)]
    assert turns == [*"abcabcabc"]


@SIZES
async def test_what_a_visit_reserved_and_left_is_started_by_the_next_ones(batch_size: int, waits: float) -> None:
    """A handler that waits ends its visit; the quota of that second is used to the full all the same."""
    bench = Bench(batch_size, waits=waits)
    bench.gate = asyncio.Event()
    group = bench.group("t", 10, 40)
    await bench.run(group)
    assert len(bench.starts) == 10
    assert group.in_flight == 10
    bench.gate.set()
    await turns(5)
    assert group.in_flight == 0


async def test_starts_that_a_group_leaves_go_to_a_parked_group_of_its_topic() -> None:
    """A group is granted starts for messages whose keys are busy, while another one finds the counter used up."""
    bench = Bench(waits=1.0)
    bench.gate = asyncio.Event()
    topic = TopicCounter(Topic("t", 12.0, group_qps=4.0))
    sizes = {"a": 7, "b": 7, "c": 1}
    groups = [bench.group(name, topic.join(i, T - 1), size) for i, (name, size) in enumerate(sizes.items())]
    keyed = groups[0]
    for group in groups:
        group.owner = keyed.owner
    keyed.owner.groups |= dict(enumerate(groups))
    for message in keyed.buffers[0]:
        message.key = str(message.offset % 4)
    await bench.run(*groups)
    assert Counter(name[0] for name in bench.ids) == {"a": 4, "b": 7, "c": 1}
    bench.gate.set()
    await turns(5)


async def test_reading_waits_a_while_while_many_groups_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Bench()
    looks: list[float] = []

    async def look(s: float) -> None:
        looks.append(s)
        if len(looks) == 3:
            del b.dispatcher._rotation[0]

    monkeypatch.setattr(rotation.asyncio, "sleep", look)
    b.dispatcher._rotation.extend([b.group("t", 1, 1)] * (rotation.MANY + 1))
    await b.dispatcher.has_few()
    assert looks == [rotation.LOOK_S] * 3
    b.dispatcher._rotation.append(b.dispatcher._rotation[0])
    looks[:] = [0.0] * 3
    await b.dispatcher.has_few()
    assert len(looks) == 3 + rotation.LOOKS


async def test_nothing_is_started_once_the_host_stops() -> None:
    bench = Bench()
    group = bench.group("t", 100, 10)
    await bench.dispatcher.stop()
    await bench.run(group)
    assert bench.starts == []
    assert group.buffered == 10


class Late(WindowCounter):
    """Names this very moment as the next one in which it grants something, as rounding may."""

    def reserve(self, n: int, now: float) -> int:
        return 0

    def next_at(self, now: float) -> float:
        return now


@pytest.mark.parametrize("ticks", [0, 1, 181])
async def test_a_group_that_was_granted_nothing_waits_until_later_whatever_its_counter_says(ticks: int) -> None:
    bench = Bench(at=T + ticks * GRID_S)
    group = bench.group("t", Late(10, T - 1), 1)
    await bench.run(group)
    assert group.parked_until == bench.clock.now() + GRID_S


async def test_messages_that_wait_start_together_and_not_one_in_each_turn_of_the_event_loop() -> None:
    bench = Bench()
    bench.gate = asyncio.Event()
    group = bench.group("t", 1000, 500)
    await bench.run(group)  # 50 turns
    assert len(bench.starts) == group.in_flight == bench.dispatcher.flight.count == 500
    bench.gate.set()
    await turns(3)
    assert bench.dispatcher.flight.count == group.owner.flying == 0
    assert bench.dispatcher.endings.succeeded == 500
    assert group.queues[0].tracker.watermark == 501


async def test_a_topic_whose_handlers_wait_no_more_starts_its_messages_without_tasks() -> None:
    bench = Bench(waits=1.0)
    group = bench.group("t", 10_000, 20 * VISIT, qps=10_000)
    bench.dispatcher.ready(group)
    await turns(50)
    assert len(bench.starts) == 20 * VISIT
    assert group.owner.waits == 0.0
    assert bench.dispatcher.flight.count == group.owner.pace.running == 0


async def test_a_topic_whose_handler_never_waits_becomes_known() -> None:
    bench = Bench()
    group = bench.group("t", 10_000, 10, qps=10_000)
    assert not group.owner.pace.known
    await bench.run(group)
    assert len(bench.starts) == 10
    assert group.owner.pace.known
    assert group.owner.pace.took_s < sharing.UNKNOWN_S


async def test_a_volley_takes_the_highest_priority_that_is_there_when_it_begins() -> None:
    bench = Bench(waits=1.0)
    group = bench.group("t", 3, 3)
    group.buffers.append(deque())
    bench.dispatcher.ready(group)
    await turns(1)  # the stint has made its tasks
    assert group.in_flight == 3
    group.buffers[0].appendleft(Message("late", b"", offset=4, topic="t"))
    group.buffered += 1
    await turns(3)
    assert bench.ids == ["late", "t1", "t2"]


@pytest.mark.parametrize("what", ["the host stops", "the group is released", "the handler is unbound"])
async def test_a_volley_that_may_not_begin_any_more_gives_its_starts_back(what: str) -> None:
    bench = Bench(waits=1.0)
    counter = WindowCounter(10, T - 1)
    group = bench.group("t", counter, 5)
    bench.dispatcher.ready(group)
    await turns(1)
    assert bench.dispatcher.unsettled(group) == 5
    if what == "the host stops":
        await bench.dispatcher.stop()
    elif what == "the group is released":
        group.stopping = True
    else:
        group.owner.handler = None
    await turns(5)
    assert bench.starts == []
    assert bench.dispatcher.unsettled(group) == bench.dispatcher.flight.count == 0
    assert group.buffered == 5
    assert counter.available(bench.clock.now()) == 10


async def test_messages_of_one_key_run_one_at_a_time_in_volleys_too() -> None:
    bench = Bench(waits=1.0)
    bench.gate = asyncio.Event()
    group = bench.group("t", 100, 6)
    for message in group.buffers[0]:
        message.key = "k"
    bench.dispatcher.ready(group)
    await turns(20)
    assert bench.ids == ["t1"]
    assert group.in_flight == 1
    bench.gate.set()
    await turns(50)
    assert bench.ids == [f"t{i}" for i in range(1, 7)]
    assert bench.dispatcher.flight.count == 0


async def test_in_a_volley_the_next_message_of_a_key_comes_before_those_of_lower_priority() -> None:
    b = Bench(waits=1.0)
    b.gate = asyncio.Event()
    group = b.group("t", 100, 0)
    group.buffers.append(deque())
    group.queues.append(OwnedQueue(group, 1, OffsetTracker(1), 1.0))
    group.push(0, [Message(name, b"", key="k", offset=offset) for offset, name in enumerate(("first", "next"), 1)])
    b.dispatcher.ready(group)
    await turns(20)
    assert b.ids == ["first"]
    group.push(1, [Message("lower", b"", offset=1, priority=1)])
    b.dispatcher.ready(group)  # the stint comes in the turn in which the first handler returns
    b.gate.set()
    await turns(20)
    assert b.ids == ["first", "next", "lower"]


async def test_messages_that_end_at_once_before_one_that_waits_count_as_ended() -> None:
    b = Bench()
    group = b.group("t", 100, 8)

    async def fourth_waits(message: Message) -> None:
        if int(message.id[1:]) % 4 == 0:
            await asyncio.Event().wait()

    group.owner.handler = fourth_waits
    await b.run(group)
    assert (group.owner.pace.heard, group.owner.pace.running, group.owner.pace.known) == (6, 2, True)
    await b.dispatcher.tasks.cancel()


@pytest.mark.parametrize("ending", ["fails", "waits"])
async def test_messages_of_a_visit_are_finished_up_to_one_that_does_not_succeed_at_once(ending: str) -> None:
    b = Bench()
    b.outcomes.lost = []
    group = b.group("t", 100, 5)
    tracker = group.queues[0].tracker

    async def third_does_not(message: Message) -> None:
        if message.offset == 3 and ending == "fails":
            raise ValueError(message.id)
        if message.offset == 3:
            await asyncio.Event().wait()

    group.owner.handler = third_does_not
    await b.run(group)
    assert [tracker.is_finished(offset) for offset in range(1, 7)] == [True, True, False, True, True, False]
    assert (b.dispatcher.endings.succeeded, group.in_flight) == (4, 1)
    await b.dispatcher.tasks.cancel()
    assert tracker.watermark == 3


async def test_a_message_that_cannot_be_taken_for_a_volley_keeps_no_place_and_no_start() -> None:
    b = Bench(waits=1.0)
    counter = WindowCounter(5, T - 1)
    group = b.group("t", counter, 3)
    b.dispatcher._trail = b.dispatcher._starts._trail = RecordedTrail()

    def started(message: Message, _: int) -> None:
        if message.id == "t2":
            raise ValueError("a bug")

    b.dispatcher._starts._trail.started = started  # type: ignore[method-assign]
    await b.run(group)
    assert sorted(b.ids) == ["t1", "t3"]
    assert (b.dispatcher.flight.count, group.in_flight, group.owner.in_flight) == (0, 0, 0)
    assert counter.available(b.clock.now()) == 3


@pytest.mark.parametrize(("batch_size", "waits"), [(3, 0.0), (1, 1.0)], ids=["in-batches", "in-volleys"])
async def test_a_message_whose_end_meets_a_bug_costs_those_that_end_with_it_nothing(
    batch_size: int, waits: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = Bench(batch_size, waits=waits)
    group = b.group("t", 5, 3)
    b.dispatcher.endings._trail = trail = RecordedTrail()
    told: list[OwnedGroup] = []
    monkeypatch.setattr(b.dispatcher.endings._events, "broken", lambda _, group, __: told.append(group))

    def settled(message: Message, _: int) -> None:
        if message.id == "t2":
            raise ValueError("a bug")

    trail.settled = settled  # type: ignore[method-assign]
    b.gate = asyncio.Event()
    b.dispatcher.ready(group)
    await turns(5)
    b.gate.set()
    await b.run(group)
    assert (b.dispatcher.flight.count, group.in_flight, group.owner.in_flight) == (0, 0, 0)
    assert [group.queues[0].tracker.is_finished(offset) for offset in (1, 2, 3)] == [True, False, True]
    assert told == [group]


async def test_a_message_that_fails_in_a_volley_stays_in_flight_until_it_is_settled() -> None:
    bench = Bench(waits=1.0)
    bench.outcomes.lost = []
    group = bench.group("t", 100, 4)
    messages = list(group.buffers[0])

    async def fail(message: Message) -> None:
        if message.offset % 2:
            await asyncio.sleep(0)
        raise ValueError(message.id)

    group.owner.handler = fail
    await bench.run(group)
    assert sorted(bench.outcomes.lost) == ["t1", "t2", "t3", "t4"]
    assert bench.dispatcher.endings.failed == bench.dispatcher.flight.count == 4
    assert group.owner.pace.running == 0
    for message in messages:
        bench.dispatcher.endings.settled(group, message)
    assert bench.dispatcher.flight.count == 0


async def test_cancelling_ends_the_handlers_of_volleys_and_leaves_their_messages_unfinished() -> None:
    bench = Bench(waits=1.0)
    bench.gate = asyncio.Event()
    group = bench.group("t", 100, 5)
    await bench.run(group)
    assert len(bench.starts) == 5
    await bench.dispatcher.tasks.cancel()
    assert bench.dispatcher.flight.count == 0
    assert bench.dispatcher.endings.failed == bench.dispatcher.endings.succeeded == 0
    assert group.queues[0].tracker.watermark == 1


@pytest.mark.parametrize("waits", [0.0, 1.0], ids=["one-by-one", "in-volleys"])
async def test_the_variables_of_a_waker_and_of_earlier_messages_are_not_those_of_a_message(waits: float) -> None:
    variable = contextvars.ContextVar("variable", default="")
    bench = Bench(waits=waits)
    seen = []

    async def note(message: Message) -> None:
        seen.append(variable.get())
        variable.set(message.id)
        await asyncio.sleep(0)

    group = bench.group("t", 100, 5)
    group.owner.handler = note
    variable.set("the waker's")
    await bench.run(group)
    assert seen == [""] * 5


async def test_tasks_that_end_at_once_are_not_kept() -> None:
    """As in a program that has chosen `asyncio.eager_task_factory`."""
    if sys.version_info < (3, 12):
        pytest.skip("Python 3.11 has no eager tasks")
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    bench = Bench(waits=1.0)
    group = bench.group("t", 100, 5)
    await bench.run(group)
    assert len(bench.ids) == 5
    assert not bench.dispatcher.tasks.running
