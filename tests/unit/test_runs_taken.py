"""The messages of a visit are taken in runs; what does not start goes back to its place."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from unittest import mock

import pytest

from emq.dispatch.dispatcher import Dispatcher
from emq.dispatch.stint import Stint
from emq.groups.capacity import Gauge
from emq.groups.context import HostContext
from emq.groups.offset_tracker import OffsetTracker
from emq.groups.owned import OwnedGroup, OwnedQueue, OwnedTopic
from emq.groups.priority import policy_for
from emq.quota.counter import WindowCounter
from emq.runtime import errors
from emq.storage.message import Message
from emq.topics.model import Topic
from support.manual_clock import ManualClock

T = 1_000_000_000


class Settles:
    """Takes outcomes, and settles nothing."""

    def acknowledge(self, group: OwnedGroup, message: Message) -> None: ...

    def failed(self, group: OwnedGroup, message: Message, failure: BaseException) -> None: ...

    def expired(self, group: OwnedGroup, message: Message) -> None: ...

    def damaged(self, group: OwnedGroup, message: Message, reason: str) -> None: ...


class Rig:
    """A dispatcher and one group of two priorities with messages 1 to 9 in its first queue."""

    def __init__(self, handler: Callable[[Message], Awaitable[None]]) -> None:
        self.clock = ManualClock(T)
        self.dispatcher = Dispatcher(Settles(), HostContext(self.clock))
        owner = OwnedTopic(Topic("t", 1000, priorities=("high", "low")))
        owner.handler = handler
        self.gauge = Gauge()
        counter = WindowCounter(100, T - 1)
        self.group = group = OwnedGroup(owner, 0, 1, counter, policy_for(owner.topic), self.gauge)
        group.buffers = [deque(), deque()]
        group.queues = [OwnedQueue(group, priority, OffsetTracker(1), 1.0) for priority in (0, 1)]
        group.push(0, [_message(offset) for offset in range(1, 10)])

    async def run(self) -> None:
        self.dispatcher.ready(self.group)
        for _ in range(20):
            await asyncio.sleep(0)

    @property
    def waiting(self) -> list[int]:
        return [m.offset for m in self.group.buffers[0]]

    def assert_counted(self) -> None:
        waiting = [m for buffer in self.group.buffers for m in buffer]
        assert self.group.buffered == len(waiting) == self.gauge.messages
        assert self.gauge.bytes == sum(m.size for m in waiting)


def _message(offset: int, priority: int = 0) -> Message:
    m = Message(f"m{priority}-{offset}", b"x" * offset, offset=offset, topic="t")
    m.size, m.priority = offset, priority
    return m


async def test_what_did_not_start_goes_back_before_what_comes_later() -> None:
    started: list[int] = []

    async def waits_at_three(message: Message) -> None:
        started.append(message.offset)
        if message.offset == 3:
            rig.dispatcher.accepting = False  # no other stint goes on
            asyncio.get_running_loop().call_soon(rig.group.push, 0, [_message(10)])
            await asyncio.Event().wait()

    rig = Rig(waits_at_three)
    await rig.run()
    assert started == [1, 2, 3]
    assert rig.waiting == [4, 5, 6, 7, 8, 9, 10]
    rig.assert_counted()
    await rig.dispatcher.tasks.cancel()


async def test_a_message_of_a_higher_priority_that_comes_while_a_handler_waits_is_next() -> None:
    started: list[str] = []

    async def waits_at_two(message: Message) -> None:
        started.append(message.id)
        if message.id == "m1-2":
            rig.group.push(0, [_message(20)])
            await asyncio.Event().wait()

    rig = Rig(waits_at_two)
    rig.group.discard()
    rig.group.push(1, [_message(offset, 1) for offset in (1, 2, 3)])
    await rig.run()
    assert started == ["m1-1", "m1-2", "m0-20", "m1-3"]
    rig.assert_counted()
    await rig.dispatcher.tasks.cancel()


async def test_a_message_that_a_handler_gave_back_stays_before_those_behind_it() -> None:
    async def gives_back(message: Message) -> None:
        if message.offset == 3:
            rig.dispatcher.revoke(rig.group.owner)
            rig.dispatcher.accepting = False
            raise errors.GiveBack("later")

    rig = Rig(gives_back)
    rig.group.owner.groups[0] = rig.group
    await rig.run()
    assert rig.waiting == [3, 4, 5, 6, 7, 8, 9]
    rig.assert_counted()


@pytest.mark.parametrize("forgotten", ["while-it-waits", "before"])
async def test_a_group_that_is_let_go_of_meanwhile_counts_nothing(forgotten: str) -> None:
    async def lets_go(message: Message) -> None:
        if message.offset == 3:
            rig.group.stop(T)
            rig.group.discard()
            if forgotten == "while-it-waits":
                await asyncio.Event().wait()
            rig.dispatcher.revoke(rig.group.owner)

    rig = Rig(lets_go)
    await rig.run()
    assert (rig.gauge.messages, rig.gauge.bytes, rig.group.buffered) == (0, 0, 0)
    await rig.dispatcher.tasks.cancel()


@pytest.mark.parametrize("ending", ["fails", "revokes"])
async def test_a_bug_as_a_run_is_finished_keeps_no_message_and_no_place(ending: str) -> None:
    """What was taken would start in the visit to the next group, as if it were that group's."""

    async def ends(message: Message) -> None:
        if message.offset == 3 and ending == "fails":
            raise ValueError(message.id)
        if message.offset == 3:
            rig.dispatcher.revoke(rig.group.owner)

    rig, stints = Rig(ends), list[Stint]()
    begun = rig.dispatcher._stint

    async def noted(stint: Stint) -> None:
        stints.append(stint)
        await begun(stint)

    with (
        mock.patch.object(rig.dispatcher, "_stint", noted),
        mock.patch.object(rig.dispatcher.endings, "finish_run", side_effect=OSError("a bug")),
    ):
        await rig.run()
    assert stints
    assert all(not stint.taken for stint in stints)
    assert (rig.group.in_flight, rig.dispatcher.flight.count) == (0, 0)
    rig.assert_counted()


async def test_a_message_that_was_put_back_is_not_taken_in_a_run() -> None:
    started: list[int] = []

    async def second_waits(message: Message) -> None:
        started.append(message.offset)
        if message.offset == 2:
            rig.dispatcher.accepting = False
            await asyncio.Event().wait()

    rig = Rig(second_waits)
    for message in [m for m in (rig.group.take(T) for _ in range(4)) if m is not None]:
        message.started_us = T
        rig.group.put_back(message, T)
    await rig.run()
    assert started == [1, 2]
    assert rig.waiting == [3, 4, 5, 6, 7, 8, 9]
    rig.assert_counted()
    await rig.dispatcher.tasks.cancel()


async def test_a_run_ends_before_a_message_with_a_key_or_an_expiry_and_at_a_gap() -> None:
    rig = Rig(lambda _: asyncio.sleep(0))
    keyed, expiring = _message(4), _message(7)
    keyed.key, expiring.expires_us = "k", 1
    for buffer, run in (
        ([_message(1), _message(2), _message(3), keyed, _message(5)], [2, 3]),
        ([_message(5), _message(6), expiring, _message(8)], [6]),
        ([_message(1), _message(2), _message(9)], [2]),
    ):
        rig.group.discard()
        rig.group.push(0, buffer)
        first = rig.group.take(T)
        assert first is not None
        taken: list[Message] = []
        rig.group.take_run(first, 64, taken)
        assert [m.offset for m in reversed(taken)] == run
        rig.assert_counted()
