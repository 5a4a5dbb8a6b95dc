"""The counts of deliveries by handler: as many, of the same sizes, as if each message had been counted by itself."""

from __future__ import annotations

import asyncio
import random
from collections import deque

import pytest

from emq.dispatch.dispatcher import Dispatcher
from emq.groups.capacity import in_flight_limit
from emq.groups.context import HostContext
from emq.groups.deliveries import NO_HANDLER, OTHERS, QUICK_BITS, RECEIVERS, SIZES, Deliveries, HandlerDeliveries
from emq.groups.owned import OwnedGroup
from emq.quota.counter import WindowCounter
from emq.storage.message import Message
from emq.topics.model import Topic
from support.manual_clock import ManualClock
from support.owned_groups import owned_group
from support.waiting import turns

T = 1_000_000_000


class Failed:
    """Counts nothing; a failed message leaves flight as if the store had taken it."""

    def __init__(self) -> None:
        self.dispatcher: Dispatcher | None = None

    def failed(self, group: OwnedGroup, message: Message, failure: BaseException | None = None) -> None:
        assert self.dispatcher is not None
        self.dispatcher.endings.settled(group, message)

    expired = failed


class Course:
    """A group whose handlers take times drawn from a seed, computing or waiting, and what each delivery truly took."""

    def __init__(self, seed: int, batch_size: int) -> None:
        self.random = random.Random(seed)
        self.waiting = (0.02, 0.3)[seed % 2]  # share of the handlers that wait; a larger one makes volleys of starts
        self.clock = ManualClock(T - 1)
        outcomes = Failed()
        self.dispatcher = outcomes.dispatcher = Dispatcher(outcomes, HostContext(self.clock))  # type: ignore[arg-type]
        self.waits: list[int] = []
        self.runs: list[int] = []
        self.failures = 0
        self.counts = Deliveries("t*")
        self.batch_size = batch_size
        self.sleeping: deque[asyncio.Event] = deque()
        counter = WindowCounter(1e6, self.clock.now())
        self.group = owned_group(Topic("t", 1e6, group_qps=1e6, priorities=("p",)), counter)
        owner = self.group.owner
        owner.limit = in_flight_limit(owner.topic)
        owner.handler, owner.batch_size = (self.one if batch_size == 1 else self.many), batch_size
        owner.deliveries = self.counts
        self.clock.advance(1.1)  # a counter grants nothing in its first second

    def take(self, us: int) -> None:
        self.clock.advance(us / 1e6)

    async def one(self, message: Message) -> None:
        await self.many([message])

    async def many(self, messages: list[Message]) -> None:
        began_us = messages[0].started_us
        self.waits += [began_us - m.ready_us for m in messages]
        how = self.random.random()
        if how < 0.6:
            self.take(self.random.randrange(8))
        elif how < 0.75:
            self.take(self.random.choice([31, 32, 33, 1_000, 70_000]))
        elif how < 0.75 + self.waiting:
            woken = asyncio.Event()
            self.sleeping.append(woken)
            await woken.wait()
        self.runs += [self.clock.now_us() - began_us] * len(messages)
        if self.random.random() < 0.2:
            self.failures += len(messages)
            raise ValueError("no")

    async def run(self, messages: int) -> None:
        pushed = 0
        while pushed < messages or self.group.buffered or self.sleeping:
            self.take(self.random.choice([5, 900, 40_000]))
            if pushed < messages:
                size = min(self.random.choice([1, 3, 90]), messages - pushed)
                ready_us = self.clock.now_us() - self.random.choice([0, 0, 700, 2_000_000])
                numbers = range(pushed + 1, pushed + size + 1)
                read = [Message(f"t{n}", b"", offset=n, topic="t", ready_us=ready_us) for n in numbers]
                if self.random.random() < 0.2:
                    read[-1].expires_us = 1
                self.group.push(0, read)
                pushed += size
            self.dispatcher.ready(self.group)
            await turns(self.random.randrange(1, 6))
            if self.sleeping and self.random.random() < 0.7:
                self.sleeping.popleft().set()
                await asyncio.sleep(0)
        await turns(10)


def sizes(times_us: list[int], least: int = 0) -> list[int]:
    counts = [0] * SIZES
    for time_us in times_us:
        counts[max(least, time_us.bit_length())] += 1
    return counts


@pytest.mark.parametrize("batch_size", [1, 4], ids=["one-by-one", "in-batches"])
@pytest.mark.parametrize("seed", range(4))
async def test_counts_are_those_of_every_single_delivery(seed: int, batch_size: int) -> None:
    course = Course(seed, batch_size)
    await course.run(400)
    counts = course.counts
    assert sum(counts.waits) == len(course.waits) == course.dispatcher.started > 350
    assert counts.waits == sizes(course.waits)
    exposed = [sum(counts.runs[: QUICK_BITS + 1]), *counts.runs[QUICK_BITS + 1 :]]
    truly = sizes(course.runs, least=QUICK_BITS)
    assert exposed == [sum(truly[: QUICK_BITS + 1]), *truly[QUICK_BITS + 1 :]]
    assert counts.ran_us == sum(course.runs)
    assert abs(counts.waited_us - sum(course.waits)) <= 16 * len(course.waits)  # the times of this test are even
    assert counts.failed == course.failures > 0
    await course.dispatcher.stop()


async def test_what_runs_for_long_counts_as_started_at_once() -> None:
    course = Course(0, 1)
    course.random.random = lambda: 0.8  # type: ignore[method-assign]
    course.waiting = 1.0
    course.group.push(0, [Message(f"t{n}", b"", offset=n, topic="t", ready_us=1) for n in range(1, 4)])
    course.dispatcher.ready(course.group)
    await turns(10)
    assert sum(course.counts.waits) == 3
    assert sum(course.counts.runs) == 0
    for woken in course.sleeping:
        woken.set()
    await turns(5)
    assert sum(course.counts.runs) == 3
    await course.dispatcher.stop()


def test_the_set_of_handlers_is_bounded() -> None:
    handlers = HandlerDeliveries(most=5)
    for n in range(10_000):
        handlers.of(f"topic-{n}.*").failed += 1
    handlers.of(RECEIVERS).failed += 1
    handlers.of(NO_HANDLER).failed += 1
    counted = {counts.pattern: counts.failed for counts in handlers}
    assert counted == {**{f"topic-{n}.*": 1 for n in range(5)}, OTHERS: 9_995, RECEIVERS: 1, NO_HANDLER: 1}
    assert handlers.of("topic-3.*") is handlers.of("topic-3.*")
