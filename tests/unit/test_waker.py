"""Wake-ups may be lost: the sweep comes to every queue and lane, and a store in doubt has everything looked at."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import cast
from unittest import mock

import pytest

from emq.fetcher.readiness import AFTER_BUG_S, LOOKED_AT, SLICES, SWEEP_S, Readiness, Waker
from emq.groups.capacity import Gauge
from emq.groups.context import HostContext
from emq.groups.offset_tracker import OffsetTracker
from emq.groups.owned import OwnedGroup, OwnedQueue, OwnedSlot, OwnedTopic
from emq.groups.priority import STRICT
from emq.quota.counter import WindowCounter
from emq.runtime import errors
from emq.runtime.guard import Guard
from emq.storage.store import Store
from emq.topics.model import Kind, Topic
from support.manual_clock import ManualClock
from support.recorded_events import RecordedEvents
from support.virtual import virtual
from support.waiting import until

pytestmark = virtual


class Told:
    """A store whose wake-ups are what is put here.

    Attributes:
        unarmed_ones: names of queues and lanes that are not armed; None while the store does not answer.
    """

    def __init__(self, *told: Sequence[str] | None) -> None:
        self.told = told
        self.unarmed_ones: set[str] | None = None

    async def unarmed(self, names: Sequence[str], now_ms: int) -> Sequence[str]:
        if self.unarmed_ones is None:
            raise errors.StoreUnavailable("gone")
        return [name for name in names if name in self.unarmed_ones]

    async def watch(self) -> AsyncIterator[Sequence[str] | None]:
        for names in self.told:
            yield names
        await asyncio.Event().wait()


class Bench:
    """Attributes:
    woken: queues that the readiness was told of.
    lanes, slots, doubted, topics: names that were passed on.
    """

    def __init__(self, groups: int, *told: Sequence[str] | None) -> None:
        self.groups: dict[str, OwnedGroup] = {}
        self.queues: dict[str, OwnedQueue] = {}
        for i in range(groups):
            self.add(f"t{i}")
        self.woken: list[str] = []
        events = RecordedEvents()
        self.lanes, self.slots, self.doubted = events.lanes, events.slots, events.doubts
        self.topics: list[str] = []
        self.store, readiness = Told(*told), Readiness()
        readiness.woken = lambda queue: self.woken.append(queue.name)  # type: ignore[method-assign]
        self.waker = Waker(
            cast(Store, self.store),
            self.queues,
            self.groups,
            readiness,
            HostContext(ManualClock(), events),
            on_topic=self.topics.append,
        )

    def add(self, name: str, kind: Kind = Kind.LOG) -> OwnedGroup:
        topic = Topic(name, 10, priorities=("p",)) if kind is Kind.LOG else Topic(name, 10, kind=kind, slots=1)
        group = OwnedGroup(OwnedTopic(topic), 0, 1, WindowCounter(1, 0), STRICT, Gauge())
        group.buffers = [deque()]
        if topic.is_sorted:
            group.slot = OwnedSlot(group, topic.slot(0))
        else:
            group.queues = [OwnedQueue(group, 0, OffsetTracker(1), 1.0)]
            group.queues[0].more = False  # it is armed
            self.queues[group.queues[0].name] = group.queues[0]
        self.groups[group.name] = group
        return group

    async def swept(self) -> None:
        """Let the sweep go round once."""
        sweeping = asyncio.create_task(self.waker.sweep())
        await asyncio.sleep(SWEEP_S + 0.1)
        sweeping.cancel()


@pytest.mark.parametrize("groups", [3, SLICES + 7, SLICES * LOOKED_AT // 8])
async def test_the_sweep_comes_to_every_queue_and_lane_once(groups: int) -> None:
    bench = Bench(groups)
    await bench.swept()
    assert sorted(bench.woken) == sorted(bench.queues)
    assert sorted(bench.lanes) == sorted(bench.groups)


async def test_the_sweep_leaves_queues_and_lanes_alone_that_the_store_would_wake() -> None:
    bench = Bench(3)
    bench.store.unarmed_ones = {"t1/0/p", "t2/0"}
    await bench.swept()
    assert (bench.woken, bench.lanes) == (["t1/0/p"], ["t2/0"])


async def test_the_sweep_looks_at_everything_in_a_store_that_cannot_tell_what_is_armed() -> None:
    bench = Bench(3)
    bench.waker._store = cast(Store, object())
    await bench.swept()
    assert (sorted(bench.woken), sorted(bench.lanes)) == (sorted(bench.queues), sorted(bench.groups))


async def test_a_sweep_that_began_before_the_host_had_groups_comes_to_them_as_soon() -> None:
    bench = Bench(0)
    sweeping = asyncio.create_task(bench.waker.sweep())
    await asyncio.sleep(5)
    bench.add("t0")
    await asyncio.sleep(SWEEP_S)
    sweeping.cancel()
    assert bench.woken == [*bench.queues]


async def test_a_store_in_doubt_has_queues_lanes_and_slots_looked_at() -> None:
    bench = Bench(2, None)
    group = bench.add("s", Kind.PRIORITY)
    assert group.slot is not None
    bench.waker.open()
    listening = asyncio.create_task(bench.waker.listen())
    await asyncio.sleep(1)
    listening.cancel()
    assert bench.woken == [*bench.queues]
    assert bench.doubted == [*bench.groups]
    assert bench.slots == [group.slot.address]


async def test_a_look_at_everything_that_breaks_comes_again() -> None:
    bench, broken = Bench(2), 0
    bench.waker._broken = lambda: broken
    keeping = asyncio.create_task(Guard().keep("sweep", bench.waker.sweep))
    await asyncio.sleep(1)
    broken = 1
    with mock.patch("emq.fetcher.readiness.in_slices", side_effect=RuntimeError) as failing:
        await until(lambda: failing.called)
    await asyncio.sleep(2 * AFTER_BUG_S)
    keeping.cancel()
    assert bench.doubted == [*bench.groups]


async def test_each_name_goes_where_it_belongs() -> None:
    bench = Bench(2, ["t0/0/p", "t1/0", "s/0/", "new"])
    bench.waker.open()
    listening = asyncio.create_task(bench.waker.listen())
    await asyncio.sleep(1)
    listening.cancel()
    assert (bench.woken, bench.lanes, bench.slots, bench.topics) == (["t0/0/p"], ["t1/0"], ["s/0/"], ["new"])


async def test_a_read_that_was_under_way_when_the_store_came_to_doubt_is_made_once_more() -> None:
    """The store may have forgotten that the read armed the queue; the answer would say that nothing more is there."""
    bench = Bench(1, None)
    [queue] = bench.queues.values()
    queue.more = True
    queue.enlist()
    queue.begin_read()
    del bench.waker._readiness.woken  # type: ignore[method-assign]
    bench.waker.open()
    listening = asyncio.create_task(bench.waker.listen())
    await asyncio.sleep(1)
    listening.cancel()
    queue.delist()
    queue.advance(1, exhausted=True)
    assert queue.more
