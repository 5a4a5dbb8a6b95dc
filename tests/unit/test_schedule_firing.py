"""Firing: occurrences first, the schedule after them, each once, whatever goes wrong between the two."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any
from unittest import mock

import pytest

from emq.groups.capacity import Gauge
from emq.groups.context import HostContext
from emq.groups.owned import OwnedGroup, OwnedTopic
from emq.groups.priority import policy_for
from emq.observe import recall
from emq.quota.counter import WindowCounter
from emq.runtime import errors
from emq.storage import message
from emq.storage.lane_store import LaneAdd, LaneClaim, LaneClaimed, LaneSettle, LaneState, LaneVerdict, WaitingEntry
from emq.storage.message import Message
from emq.timetable import firing
from emq.timetable import schedule as spec
from emq.timetable.firing import Firing
from emq.timetable.schedule import Schedule
from emq.topics.model import Topic, TopicOptions, split
from emq.trail.events import Published
from emq_stores.memory import MemoryStore, World
from support.doubles import FaultyStore
from support.manual_clock import ManualClock
from support.recorded_events import RecordedEvents
from support.recorded_trail import RecordedTrail

EPOCH = 5
LANE = "t/0"
START = 1_000_000_000_000
"""What `ManualClock` begins with, in milliseconds."""


class Losing(RecordedEvents):
    """A group with a newer owner is marked as lost, as a host does."""

    def lost(self, group: OwnedGroup) -> None:
        super().lost(group)
        group.lost = True


class Bench:
    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.world = World(self.clock)
        self.store = FaultyStore(MemoryStore(self.world))
        self.topic = Topic("t", 10, priorities=("high", "low"), options=TopicOptions(**options))
        self.groups: list[OwnedGroup] = []
        self.group = self.owned(EPOCH)
        self.trail = RecordedTrail()
        self.events = Losing()
        self.due, self.lost = self.events.waits, self.events.losses
        self.firing = self.new_firing()

    def new_firing(self) -> Firing:
        return Firing(self.store.lanes, self.store.sorted, HostContext(self.clock, self.events, self.trail))

    def owned(self, epoch: int) -> OwnedGroup:
        group = OwnedGroup(OwnedTopic(self.topic), 0, epoch, WindowCounter(1, 0), policy_for(self.topic), Gauge())
        group.buffers = [deque(), deque()]
        self.groups.append(group)
        return group

    @property
    def now_ms(self) -> int:
        return self.clock.now_us() // 1000

    async def plan(self, id_: str, schedule: Schedule, **fields: Any) -> None:
        m = Message(id_, **{"payload": b"x", "topic": "t", "schedule": schedule.encode(), **fields})
        added = await self.store.real.lanes.add([LaneAdd(LANE, id_, message.encode_retry(m), schedule.due_ms)])
        assert added == [True]

    async def claim(self, group: OwnedGroup | None = None) -> list[Message]:
        """What is due now, claimed."""
        owner = group or self.group
        [found] = await self.store.real.lanes.claim([LaneClaim(LANE, 100, owner.epoch)], self.now_ms)
        assert isinstance(found, LaneClaimed)
        messages = [message.decode(body) for _, body in found.entries]
        for m in messages:
            m.offset = -1
        return messages

    async def hand_on(self) -> None:
        """Claim what is due and hand schedules on, as a host does."""
        for m in await self.claim():
            assert m.schedule is not None
            self.firing.put(self.group, m)

    async def fire(self) -> None:
        await self.hand_on()
        await self.idle()

    async def idle(self) -> None:
        await until(lambda: not any(map(self.firing.unsettled, self.groups)))

    async def waiting(self) -> list[WaitingEntry]:
        found: list[WaitingEntry] = await self.store.real.lanes.waiting(LANE, limit=5000)
        return found

    async def ids(self) -> list[str]:
        return [entry.id for entry in await self.waiting()]

    async def state(self) -> LaneState:
        [found] = await self.store.real.lanes.inspect([LANE])
        return found

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.firing.run())
        try:
            yield
            assert not task.done()
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@pytest.fixture
async def b() -> AsyncIterator[Bench]:
    made = Bench()
    async with made.running():
        yield made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firing, "UNREACHABLE_S", 0.001)


def every(seconds: float, repeat: int | None = None, **more: Any) -> Schedule:
    return spec.create(start_ms=START, every_s=seconds, repeat=repeat, **more)


async def until(holds: Any) -> None:
    async with asyncio.timeout(5):
        while not holds():
            await asyncio.sleep(0)


async def test_an_occurrence_is_a_message_of_its_own_beside_the_schedule_that_waits_on(b: Bench) -> None:
    await b.plan("s", every(60), payload=b"hello", key="k", headers={"h": "1"}, priority=1, score=7.5)
    await b.fire()
    first, rest = await b.waiting()
    m = message.decode(first.body)
    assert (first.id, first.due_ms, first.priority) == ("s.1", START, 1)
    assert (m.id, m.payload, m.key, m.headers, m.priority, m.score) == ("s.1", b"hello", "k", {"h": "1"}, 1, 7.5)
    assert (m.schedule, m.attempt, m.published_us, m.topic, m.group, m.expires_us) == (None, 1, START * 1000, "t", 0, 0)
    assert (rest.id, rest.due_ms, rest.priority) == ("s", START + 60_000, 1)
    kept = message.decode(rest.body)
    assert (kept.payload, kept.key, kept.headers, kept.priority, kept.score) == (b"hello", "k", {"h": "1"}, 1, 7.5)
    assert spec.decode(kept.schedule or b"").fired == 1
    assert b.due == [(LANE, START), (LANE, START + 60_000)]
    assert b.trail.events == [Published(START * 1000, "t", 0, ["s.1"], 1, START * 1000, keys=["k"])]


async def test_a_schedule_runs_to_its_end_and_is_gone(b: Bench) -> None:
    await b.plan("s", every(60, repeat=2))
    found = []
    for _ in range(5):
        for m in await b.claim():
            if m.schedule is not None:
                b.firing.put(b.group, m)
            else:
                found.append((m.id, m.published_us))
                await b.store.lanes.settle([LaneSettle(LANE, m.id, LaneVerdict.ACK, EPOCH)])
        await b.idle()
        b.clock.advance(30)
        for m in await b.claim():
            found.append((m.id, m.published_us))
            await b.store.lanes.settle([LaneSettle(LANE, m.id, LaneVerdict.ACK, EPOCH)])
        b.clock.advance(30)
    assert found == [(f"s.{n}", (START + (n - 1) * 60_000) * 1000) for n in (1, 2, 3)]
    assert await b.state() == LaneState(0, 0, 0, None)
    assert b.firing.fired == 3


async def test_a_time_to_live_counts_from_the_occurrences_due_time_and_the_topics_may_be_shorter() -> None:
    for own_s, of_topic_s, expected_s in ((20, None, 20), (20, 30.0, 20), (20, 5.0, 5), (0, 5.0, 5), (0, None, None)):
        b = Bench(ttl_s=of_topic_s)
        await b.plan("s", every(60), expires_us=own_s * 1_000_000)
        async with b.running():
            await b.fire()
        occurrence, kept = [message.decode(entry.body) for entry in await b.waiting()]
        assert occurrence.expires_us == (0 if expected_s is None else START * 1000 + expected_s * 1_000_000)
        assert kept.expires_us == own_s * 1_000_000


async def test_a_crash_between_the_adds_and_the_settle_gives_each_occurrence_once() -> None:
    b = Bench()
    await b.plan("s", every(1, missed="all"))
    b.clock.advance(2.5)
    b.store.lanes.fail(None, "settle")
    async with b.running():
        await b.hand_on()
        await until(lambda: b.store.lanes.calls.get("settle", 0) >= 2)
    assert await b.ids() == ["s.1", "s.2", "s.3"]
    assert (await b.state()).prepared == 1

    b.store.heal()
    heir = b.group = b.owned(EPOCH + 1)
    assert await b.store.lanes.recover([(LANE, heir.epoch)]) == [1]
    b.clock.advance(1)
    done, again = await b.claim(heir), []
    b.firing = b.new_firing()
    async with b.running():
        for m in done:
            if m.schedule is not None:
                b.firing.put(heir, m)
            else:
                again.append(m.id)
        await b.idle()
    # Those that were there are claimed, and are not added a second time; the one that came due meanwhile is.
    assert again == ["s.1", "s.2", "s.3"]
    assert await b.ids() == ["s.4", "s"]
    assert b.lost == []


async def test_an_occurrence_that_was_claimed_beside_its_schedule_is_not_added_after_it_was_handled() -> None:
    """A former owner had added the occurrence. The schedule's turn could not know whether its own add came to pass."""
    b = Bench()
    await b.plan("s", every(60))
    b.store.lanes.fail(None, "settle")
    async with b.running():
        await b.hand_on()
        await until(lambda: b.store.lanes.calls.get("settle", 0) >= 2)
    b.store.heal()
    heir = b.group = b.owned(EPOCH + 1)
    await b.store.lanes.recover([(LANE, heir.epoch)])
    b.firing = b.new_firing()
    found = await b.claim(heir)
    for m in found:
        b.firing.claimed(heir, m.id)
        if m.schedule is not None:
            b.firing.put(heir, m)
    assert [m.id for m in found] == ["s", "s.1"]
    await b.store.lanes.settle([LaneSettle(LANE, "s.1", LaneVerdict.ACK, heir.epoch)])
    async with b.running():
        await b.idle()
    assert await b.ids() == ["s"]


async def test_a_lost_group_publishes_nothing_and_settles_nothing(b: Bench) -> None:
    await b.plan("s", every(60))
    [m] = await b.claim()
    await b.claim(b.owned(EPOCH + 1))
    b.firing.put(b.group, m)
    await b.idle()
    assert b.lost == [b.group]
    assert b.trail.events == b.due == []
    calls = dict(b.store.lanes.calls)
    b.firing.put(b.group, m)
    await b.idle()
    assert b.store.lanes.calls == calls
    assert await b.state() == LaneState(0, 1, 0, None)


async def test_ownership_that_is_lost_between_the_two_steps_leaves_the_schedule_to_the_next_owner(b: Bench) -> None:
    await b.plan("s", every(60))

    async def taken_over() -> None:
        await b.claim(b.owned(EPOCH + 1))

    b.store.lanes.after["add"] = taken_over
    await b.fire()
    assert b.lost == [b.group]
    assert (await b.state()).prepared == 2
    assert await b.store.lanes.recover([(LANE, EPOCH + 1)]) == [1]


async def test_a_stopping_group_drops_what_has_not_begun(b: Bench) -> None:
    await b.plan("s", every(60))
    [m] = await b.claim()
    b.group.stopping = True
    b.firing.put(b.group, m)
    assert b.firing.unsettled(b.group) == 1
    await b.idle()
    assert b.firing.unsettled(b.group) == 0
    assert b.store.lanes.calls == {}
    assert await b.state() == LaneState(0, 1, 0, None)


async def test_a_group_that_begins_to_stop_between_the_two_steps_is_settled_so_that_nothing_is_repeated(
    b: Bench,
) -> None:
    await b.plan("s", every(60))
    seen = []

    async def stop() -> None:
        b.group.stopping = True
        seen.append(b.firing.unsettled(b.group))

    b.store.lanes.after["add"] = stop
    await b.fire()
    assert seen == [1]
    assert b.firing.unsettled(b.group) == 0
    assert await b.ids() == ["s.1", "s"]


async def test_a_group_that_begins_to_stop_after_an_add_without_an_answer_repeats_nothing(b: Bench) -> None:
    """The store had the occurrence, and it was handled, before the host let go of the group."""
    await b.plan("s", every(60))
    [m] = await b.claim()
    b.firing.put(b.group, m)
    add = b.store.real.lanes.add

    async def handled_and_stopped(adds: Sequence[LaneAdd], _: object) -> None:
        await add(adds)
        for m in await b.claim():
            b.firing.claimed(b.group, m.id)
            await b.store.lanes.settle([LaneSettle(LANE, m.id, LaneVerdict.ACK, EPOCH)])
        b.group.stopping = True
        raise errors.OutcomeUnknown("the answer was lost")

    b.store.lanes.replace("add", handled_and_stopped)
    await b.idle()
    assert await b.store.lanes.recover([(LANE, EPOCH + 1)]) == [0]
    assert await b.ids() == ["s"]


@pytest.mark.parametrize(
    "fault", [errors.StoreUnavailable("gone"), errors.StoreFull("no room"), errors.OutcomeUnknown("broke off")]
)
@pytest.mark.parametrize("step", ["add", "settle"])
async def test_what_the_store_does_not_take_is_offered_again_until_it_does(
    b: Bench, fault: errors.EMQError, step: str
) -> None:
    await b.plan("s", every(60))
    b.store.lanes.fail(fault, step)
    await b.hand_on()
    await until(lambda: b.store.lanes.calls.get(step, 0) >= 3)
    b.store.heal()
    await b.idle()
    assert await b.ids() == ["s.1", "s"]
    assert [e.ids for e in b.trail.events if isinstance(e, Published)] == [["s.1"]]


async def test_a_reply_that_was_lost_is_recorded_all_the_same(b: Bench) -> None:
    await b.plan("s", every(60))

    b.store.lanes.lose("add")
    await b.fire()
    assert await b.ids() == ["s.1", "s"]
    assert [e.ids for e in b.trail.events if isinstance(e, Published)] == [["s.1"]]


async def test_an_error_between_two_turns_loses_no_schedule_and_no_occurrence() -> None:
    b = Bench()
    for name in ("s1", "s2", "s3"):
        await b.plan(name, every(60))
    await b.hand_on()
    sizes = [10, 10, 10, RuntimeError("nobody expected this"), *[10] * 20]
    with mock.patch.object(message, "size_of", side_effect=sizes), contextlib.suppress(RuntimeError):
        await b.firing.run()
    async with b.running():
        await b.idle()
    assert sorted(await b.ids()) == ["s1", "s1.1", "s2", "s2.1", "s3", "s3.1"]


async def test_an_error_after_a_schedule_was_settled_costs_no_report_of_its_due_time() -> None:
    b = Bench()
    await b.plan("s", every(60))
    reports = [None, RuntimeError("nobody expected this")]  # of the occurrence, and of the schedule
    with mock.patch.object(b.events, "due", side_effect=reports), contextlib.suppress(RuntimeError):
        await b.hand_on()
        await b.firing.run()
    async with b.running():
        await b.idle()
    assert b.due[-1] == (LANE, START + 60_000)
    assert await b.ids() == ["s.1", "s"]


async def test_many_schedules_take_few_calls(b: Bench) -> None:
    for i in range(90):
        await b.plan(f"s{i}", every(60))
    await b.fire()
    assert b.store.lanes.calls == {"add": 1, "settle": 1}
    assert await b.state() == LaneState(180, 0, 0, START)


async def test_what_is_published_at_once_is_bounded_in_number_and_bytes(b: Bench) -> None:
    await b.plan("many", every(0.001, missed="all"))
    await b.plan("large", every(1, missed="all"), payload=b"x" * (firing.BATCH_BYTES // 3))
    b.clock.advance(4)
    await b.fire()
    found = await b.ids()
    assert sum(id_.startswith("many.") for id_ in found) == firing.BATCH
    assert sum(id_.startswith("large.") for id_ in found) == 2
    # Both are due again at once for the rest.
    assert all(due_ms <= b.now_ms for _, due_ms in b.due)


async def test_a_schedule_that_cannot_be_fired_is_a_dead_letter_and_keeps_no_other_from_it(b: Bench) -> None:
    await b.store.lanes.add(
        [LaneAdd(LANE, "odd", message.encode_retry(Message("odd", b"x", topic="t", schedule=b"\xc1")), START)]
    )
    zone = spec.create(start_ms=START - 60_000, cron="* * * * *")
    await b.plan("zone", Schedule(cron=zone.cron, tz="Mars/Base", repeat=0, firing_ms=START))
    await b.plan("good", every(60))
    await b.fire()
    dead = {letter.id: letter.reason for letter in await b.store.lanes.dead(LANE)}
    assert dead.keys() == {"odd", "zone"}
    assert "schedule cannot be read" in dead["odd"]
    assert "tz 'Mars/Base' is not a time zone" in dead["zone"]
    assert await b.ids() == ["good.1", "good"]


async def test_what_was_missed_while_no_host_was_there_comes_as_the_schedule_says(b: Bench) -> None:
    for missed in ("skip", "once", "all"):
        await b.plan(missed, every(60, missed=missed))
    b.clock.advance(150)
    await b.fire()
    assert await b.ids() == ["all.1", "all.2", "all.3", "once.3", "all", "once", "skip"]


async def test_a_failed_occurrence_is_retried_by_itself_and_the_schedule_goes_on_as_before(b: Bench) -> None:
    await b.plan("s", every(60))
    await b.fire()
    [m] = await b.claim()
    m.attempt = 2
    await b.store.lanes.settle(
        [LaneSettle(LANE, "s.1", LaneVerdict.RETRY, EPOCH, START + 90_000, message.encode_retry(m))]
    )
    b.clock.advance(60)
    await b.fire()
    assert [(entry.id, entry.due_ms - START) for entry in await b.waiting()] == [
        ("s.2", 60_000),
        ("s.1", 90_000),
        ("s", 120_000),
    ]


async def test_a_schedule_whose_entry_the_store_has_forgotten_goes_on(b: Bench) -> None:
    await b.plan("s", every(60))
    [m] = await b.claim()
    await b.store.real.lanes.settle([LaneSettle(LANE, "s", LaneVerdict.ACK, EPOCH)])  # it comes back without it
    b.firing.put(b.group, m)
    await b.idle()
    assert await b.ids() == ["s.1", "s"]


@pytest.mark.parametrize(("taken", "call", "left"), [("s.1", "add", "s"), ("s", "settle", "s.1")])
async def test_what_was_taken_back_after_an_answer_was_lost_does_not_stand_again(
    b: Bench, taken: str, call: str, left: str
) -> None:
    """An occurrence, and the schedule itself."""
    await b.plan("s", every(60))

    async def take_back() -> None:
        assert await recall.recall(b.store.real, split(b.topic), [taken]) == {taken}
        raise errors.OutcomeUnknown("the connection broke")

    b.store.lanes.after[call] = take_back
    await b.fire()
    assert b.store.lanes.calls[call] == 2
    assert await b.ids() == [left]


async def test_an_occurrence_is_not_lost_to_the_recall_of_an_earlier_one_of_its_id(b: Bench) -> None:
    await b.store.real.lanes.add([LaneAdd(LANE, "s.1", b"old", 1)])
    assert await recall.recall(b.store.real, split(b.topic), ["s.1"]) == {"s.1"}
    b.clock.advance(0.001)
    await b.plan("s", every(60))
    b.store.lanes.inject("add", before=errors.OutcomeUnknown("it never arrived"), times=1)
    await b.fire()
    assert b.store.lanes.calls["add"] == 2
    assert await b.ids() == ["s.1", "s"]


async def test_a_schedule_is_not_lost_to_the_recall_of_an_earlier_one_of_its_id(b: Bench) -> None:
    await b.plan("s", every(60))
    assert await recall.recall(b.store.real, split(b.topic), ["s"]) == {"s"}
    before = b.world.snapshot()
    b.clock.advance(1)
    await b.plan("s", every(60))
    [m] = await b.claim()
    m.ready_us = b.clock.now_us()
    b.world.restore(before)  # the store comes back without its last writes
    b.firing.put(b.group, m)
    await b.idle()
    assert await b.ids() == ["s.1", "s"]
