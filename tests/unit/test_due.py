"""Due times of many names: the earliest of each counts, and what comes earlier ends the wait."""

from __future__ import annotations

import asyncio

from emq.fetcher.due_times import DueTimes
from support.manual_clock import ManualClock
from support.virtual import LoopClock, virtual

pytestmark = virtual


def test_of_several_times_of_a_name_the_earliest_counts_once() -> None:
    due = DueTimes(ManualClock(0.0))
    for at_ms in (50, 20, 80):
        due.at("a", at_ms)
    due.at("b", 30)
    assert due.pop(19, 10) == []
    assert due.pop(20, 10) == ["a"]
    assert due.pop(100, 10) == ["b"]
    assert due.pop(1_000, 10) == []


def test_names_come_in_order_of_their_times_as_many_as_are_asked_for() -> None:
    due = DueTimes(ManualClock(0.0))
    for name, at_ms in (("c", 3), ("a", 1), ("b", 2)):
        due.at(name, at_ms)
    assert due.pop(3, 2) == ["a", "b"]
    due.at("a", 3)
    due.forget("c")
    assert due.pop(3, 2) == ["a"]


def test_due_times_do_not_pile_up_for_what_waits_long() -> None:
    due = DueTimes(ManualClock(0.0))
    for name in ("a", "b"):
        due.at(name, 1 << 50)
    for _ in range(1_000):
        due.at("a", 0)
        assert due.pop(1, 10) == ["a"]
        due.at("a", 1 << 50)
    assert due.entries < 200
    assert sorted(due.pop(1 << 50, 10)) == ["a", "b"]


def test_names_that_are_due_at_the_same_time_take_turns() -> None:
    due = DueTimes(ManualClock(0.0))
    for name in ("b", "c", "a"):
        due.at(name, 1)
    for expected in ("b", "c", "a", "b"):
        assert due.pop(1, 1) == [expected]
        due.at(expected, 1)


async def test_what_comes_earlier_ends_the_wait_for_what_was_first() -> None:
    clock = LoopClock()
    due = DueTimes(clock)
    due.at("late", int((clock.now() + 60) * 1000))
    began = clock.now()
    waiting = asyncio.create_task(due.wait())
    await asyncio.sleep(0.2)
    assert not waiting.done()
    due.at("early", int((clock.now() + 5) * 1000))
    await waiting
    assert clock.now() - began < 0.21
    while not (names := due.pop(int(clock.now() * 1000), 10)):
        await due.wait()  # it may return sooner, since clocks are corrected
    assert names == ["early"]
    assert 5.1 <= clock.now() - began < 5.3


async def test_where_nothing_is_due_the_wait_ends_with_what_comes() -> None:
    due = DueTimes(LoopClock())
    waiting = asyncio.create_task(due.wait())
    await asyncio.sleep(1_000)
    assert not waiting.done()
    due.at("a", 0)
    await waiting
