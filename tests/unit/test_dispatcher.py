"""The main loop while time passes inside its handlers: a grant is good for its second, a lease for its time."""

from __future__ import annotations

import asyncio
from collections import Counter, deque

import pytest

from emq.clock import ManualClock
from emq.dispatch.dispatcher import VISIT, Dispatcher
from emq.dispatch.parking import GRID_S
from emq.groups.context import HostContext
from emq.groups.gauge import Gauge
from emq.groups.offset_tracker import OffsetTracker
from emq.groups.owned import OwnedGroup, OwnedQueue, OwnedTopic
from emq.groups.priority import policy_for
from emq.loops.lease import Lease
from emq.message import Message
from emq.quota.counter import Counter as GroupCounter
from emq.quota.counter import WindowCounter
from emq.quota.smooth import SmoothCounter
from emq.topics.model import Topic

T = 1_000_000_000

SIZES = pytest.mark.parametrize("batch_size", [1, 2], ids=["one-by-one", "in-batches"])


class Outcomes:
    """Nothing fails here; `dead` is what has expired."""

    def __init__(self) -> None:
        self.dead: list[str] = []

    def acknowledge(self, group: OwnedGroup, message: Message) -> None:
        raise AssertionError("a message of a queue needs no acknowledgement")

    def acknowledge_member(self, group: OwnedGroup, message: Message) -> None:
        raise AssertionError("there is no slot")

    def failed(self, group: OwnedGroup, message: Message, failure: BaseException) -> None:
        raise failure

    def expired(self, group: OwnedGroup, message: Message) -> None:
        self.dead.append(message.id)

    def damaged(self, group: OwnedGroup, message: Message, reason: str) -> None:
        raise AssertionError(reason)


class Bench:
    """A dispatcher whose handlers take time without waiting, as one does that computes, or whose process was stopped.

    Attributes:
        gate: the handlers wait for it, if there is one.
        takes_s: how long the next calls of the handler take; then none.
        starts, ids: when each message was started, in seconds since `T`, and which.
    """

    def __init__(self, batch_size: int = 1, lease: Lease | None = None) -> None:
        self.clock = ManualClock(T - 1)
        self.takes_s: deque[float] = deque()
        self.starts: list[float] = []
        self.ids: list[str] = []
        self.gate: asyncio.Event | None = None
        self.batch_size = batch_size
        self.outcomes = Outcomes()
        self.dispatcher = Dispatcher(self.outcomes, HostContext(self.clock, lease=lease or Lease()))

    def group(self, name: str, counter: GroupCounter, messages: int, qps: float = 1000.0) -> OwnedGroup:
        owner = OwnedTopic(Topic(name, qps, priorities=("p",)))
        owner.handler, owner.batch_size = self._handle if self.batch_size == 1 else self._handle_many, self.batch_size
        group = OwnedGroup(owner, 0, 1, counter, policy_for(owner.topic), Gauge())
        group.buffers = [deque()]
        group.queues = [OwnedQueue(group, 0, OffsetTracker(1), 1.0)]
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
        for _ in range(50):
            await asyncio.sleep(0)
        await self.dispatcher.stop()

    def per_second(self) -> Counter[int]:
        return Counter(int(at) for at in self.starts)


@SIZES
async def test_a_grant_is_used_in_its_second_only(batch_size: int) -> None:
    """The rest of it would come on top of what the next second allows."""
    bench = Bench(batch_size)
    group = bench.group("t", WindowCounter(10, bench.clock.now()), 40)
    bench.clock.advance(1.1)
    bench.takes_s.append(0.95)
    await bench.run(group)
    assert bench.per_second() == {0: batch_size, 1: 10}


@SIZES
async def test_nothing_is_started_past_the_lease(batch_size: int) -> None:
    bench = Bench(batch_size, Lease(T + 0.5))
    group = bench.group("t", WindowCounter(100, bench.clock.now()), 100)
    bench.clock.advance(1.1)
    bench.takes_s.extend([0.3] * 100)
    await bench.run(group)
    assert len(bench.starts) == 2 * batch_size
    assert max(bench.starts) < 0.5


@SIZES
async def test_tokens_that_were_taken_before_a_long_call_are_not_used_after_it(batch_size: int) -> None:
    """By then the bucket has filled again: both together would be more than the burst."""
    bench = Bench(batch_size)
    group = bench.group("t", SmoothCounter(10, bench.clock.now(), burst=6), 40)
    bench.clock.advance(1.0)
    bench.takes_s.append(0.9)
    await bench.run(group)
    assert bench.per_second()[0] == batch_size + 6


@SIZES
async def test_what_has_outlived_its_time_is_a_dead_letter_and_uses_up_no_quota(batch_size: int) -> None:
    bench = Bench(batch_size)
    group = bench.group("t", WindowCounter(5, bench.clock.now()), 8)
    for i, message in enumerate(group.buffers[0]):
        message.expires_us = (T + 1) * 1_000_000 + (50_000 if i % 2 else 500_000)
    bench.clock.advance(2.1)
    bench.takes_s.append(0.0)
    await bench.run(group)
    assert bench.ids == ["t1", "t3", "t5", "t7"]
    assert bench.outcomes.dead == ["t2", "t4", "t6", "t8"]


async def test_a_group_with_a_backlog_gives_the_others_their_turn() -> None:
    bench = Bench()
    groups = [bench.group(name, WindowCounter(10_000, bench.clock.now()), 3 * VISIT) for name in "abc"]
    bench.clock.advance(1.1)
    await bench.run(*groups)
    assert len(bench.ids) == 9 * VISIT
    turns = [bench.ids[start][0] for start in range(0, len(bench.ids), VISIT)]
    assert turns == [*"abcabcabc"]


@SIZES
async def test_what_a_visit_reserved_and_did_not_start_is_started_by_the_next_ones(batch_size: int) -> None:
    """A handler that waits ends its visit; the quota of that second is used to the full all the same."""
    bench = Bench(batch_size)
    bench.gate = asyncio.Event()
    group = bench.group("t", WindowCounter(10, bench.clock.now()), 40)
    bench.clock.advance(1.1)
    await bench.run(group)
    assert len(bench.starts) == 10
    assert group.in_flight == 10
    bench.gate.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert group.in_flight == 0


async def test_nothing_is_started_once_the_host_stops() -> None:
    bench = Bench()
    group = bench.group("t", WindowCounter(100, bench.clock.now()), 10)
    bench.clock.advance(1.1)
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
    bench = Bench()
    group = bench.group("t", Late(10, bench.clock.now()), 1)
    bench.clock.advance(1.0 + ticks * GRID_S)
    await bench.run(group)
    assert group.parked_until == bench.clock.now() + GRID_S
