"""Settling: batched, repeated until the store has it, and given up where a newer owner exists."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from emq.groups.capacity import Gauge
from emq.groups.owned import OwnedGroup, OwnedSlot, OwnedTopic
from emq.groups.priority import policy_for
from emq.observe import dead_letters, recall
from emq.quota.counter import WindowCounter
from emq.runtime import errors
from emq.storage import slot_store
from emq.storage.lane_store import LaneAdd, LaneClaim, LaneClaimed, LaneSettle, LaneState, LaneVerdict
from emq.storage.message import Message, decode, encode_retry
from emq.topics.model import Kind, Topic, TopicOptions, split
from emq.trail import events
from emq_stores.memory import MemoryStore, World
from support.counted_settler import CountedSettler
from support.doubles import FaultyStore
from support.recorded_events import RecordedEvents
from support.recorded_trail import RecordedTrail
from support.rig import Rig, Seen
from support.virtual import LoopClock, virtual
from support.waiting import until

pytestmark = virtual

EPOCH = 5


class Bench:
    def __init__(self) -> None:
        self.clock = LoopClock()
        self.world = World(self.clock)
        self.store = FaultyStore(MemoryStore(self.world))
        topic = Topic("t", 10, priorities=("p",), options=TopicOptions(max_attempts=2, backoff_s=(5.0,), jitter=0.0))
        self.group = OwnedGroup(OwnedTopic(topic), 0, EPOCH, WindowCounter(1, 0), policy_for(topic), Gauge())
        self.group.buffers = [deque()]
        self.events = events = RecordedEvents()
        self.settled, self.refused, self.due, self.lost = events.settles, events.refusals, events.waits, events.losses
        self.settler = CountedSettler(self.store, self.clock, events)

    @property
    def acknowledged(self) -> int:
        return self.events.successes

    @contextlib.asynccontextmanager
    async def settling(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.settler.settle())
        try:
            yield
        finally:
            task.cancel()

    async def claimed(self) -> list[Message]:
        """What is due within the next hour, claimed."""
        [found] = await self.store.real.lanes.claim(
            [LaneClaim("t/0", 100, EPOCH)], int(self.clock.now() * 1000) + 3_600_000
        )
        assert isinstance(found, LaneClaimed)
        return [decode(body) for _, body in found.entries]

    async def of_the_lane(self, id_: str) -> Message:
        """An entry of the lane, claimed for the first time."""
        await self.store.real.lanes.add([LaneAdd("t/0", id_, self.body(id_), 1)])
        [m] = await self.claimed()
        m.offset, m.attempt = -1, 1
        self.group.lane_out += 1
        return m

    def body(self, id_: str) -> bytes:
        return encode_retry(Message(id_, b"x"))

    def started(self, id_: str, offset: int = 1, attempt: int = 1) -> Message:
        return Message(id_, b"x", offset=offset, attempt=attempt, started_us=self.clock.now_us())


@pytest.fixture
async def b() -> AsyncIterator[Bench]:
    made = Bench()
    async with made.settling():
        yield made


async def test_a_failed_message_waits_in_the_slot_with_its_next_attempt_before_it_counts_as_settled(b: Bench) -> None:
    now_ms = int(b.clock.now() * 1000)
    b.settler.failed(b.group, b.started("a"), ValueError("no"))
    assert b.settled == []
    await b.settler.idle()
    assert b.settled == ["a"]
    assert b.due == [("t/0", now_ms + 5_000)]
    [m] = await b.claimed()
    assert (m.id, m.attempt, m.error, m.first_us) == ("a", 2, "ValueError: no", now_ms * 1000)
    b.settler.acknowledge(b.group, m)
    await b.settler.idle()
    assert await b.store.lanes.inspect(["t/0"]) == [LaneState(0, 0, 0, None)]
    assert (b.settler.retried, b.settler.dead, b.settler.refused) == (1, 0, 0)


async def test_the_last_failure_ends_in_the_dead_letters_from_the_log_and_from_the_slot(b: Bench) -> None:
    b.settler.failed(b.group, b.started("from the log"), errors.Reject("never"))
    b.settler.failed(b.group, b.started("from the slot"), ValueError("once"))
    await b.settler.idle()
    [m] = await b.claimed()
    m.offset = -1
    b.settler.failed(b.group, m, ValueError("twice"))
    await b.settler.idle()
    dead = {d.id: (d.reason, decode(d.body).attempt) for d in await b.store.lanes.dead("t/0")}
    assert dead == {"from the log": ("rejected: never", 1), "from the slot": ("ValueError: twice", 2)}


async def test_the_trail_is_told_why_a_message_died_with_attempts_left(b: Bench) -> None:
    trail = b.settler._trail = RecordedTrail()
    unfit = b.started("unfit")
    b.settler.failed(b.group, b.started("rejected"), errors.Reject("never"))
    b.settler.failed(b.group, b.started("used up", attempt=2), ValueError("twice"))
    b.settler.expired(b.group, b.started("expired"))
    b.settler.damaged(b.group, b.started("damaged"), "its stored record is damaged")
    unfit.headers = {"x": object()}  # type: ignore[dict-item]
    b.settler.failed(b.group, unfit, ValueError("once"))
    await b.settler.idle()
    reasons = {e.message.id: e.reason for e in trail.events if isinstance(e, events.Dead)}
    assert reasons.pop("unfit").startswith(f"{events.UNFIT}the handler set headers to a value that cannot be stored")
    assert reasons == {
        "rejected": f"{events.REJECTED}never",
        "used up": "ValueError: twice",
        "expired": events.EXPIRED,
        "damaged": f"{events.UNFIT}its stored record is damaged",
    }
    told = {e.message.id: e.reason for e in trail.events if isinstance(e, events.Dead)}
    assert {d.id: d.reason for d in await b.store.lanes.dead("t/0")} == told  # one spelling in the store and the trail


async def test_many_verdicts_take_few_calls(b: Bench) -> None:
    for i in range(1_000):
        b.settler.failed(b.group, b.started(str(i), i + 1), ValueError())
    await b.settler.idle()
    assert b.store.lanes.calls == {"add": 1}
    assert len(b.settled) == 1_000


async def test_what_the_store_does_not_take_is_offered_again_until_it_does(b: Bench) -> None:
    b.store.fail(errors.StoreFull("no room"))
    b.settler.failed(b.group, b.started("a"), ValueError())
    await asyncio.sleep(10)
    assert b.settled == []
    assert b.store.lanes.calls["add"] <= 12
    b.store.heal()
    await until(lambda: b.settled == ["a"])
    assert len(await b.claimed()) == 1


async def test_a_refusal_means_that_the_group_is_lost_and_nothing_was_retried(b: Bench) -> None:
    await b.store.lanes.claim([LaneClaim("t/0", 1, EPOCH + 1)], 1)
    b.settler.failed(b.group, b.started("a"), ValueError())
    b.settler.acknowledge(b.group, b.started("b", offset=-1, attempt=2))
    await b.settler.idle()
    assert (b.settled, b.refused, b.acknowledged) == ([], ["a"], 1)  # no longer in flight here, and not finished
    assert b.lost == [b.group] * 2
    assert (b.settler.refused, b.settler.retried, b.due) == (2, 0, [])
    assert await b.store.lanes.inspect(["t/0"]) == [LaneState(0, 0, 0, None)]


async def test_a_stale_owner_buries_nothing(b: Bench) -> None:
    await b.store.lanes.claim([LaneClaim("t/0", 1, EPOCH + 1)], 1)
    b.settler.failed(b.group, b.started("a"), errors.Reject("never"))
    b.settler.expired(b.group, b.started("b"))
    await b.settler.idle()
    assert (b.settled, b.refused, b.settler.dead) == ([], ["a", "b"], 0)
    assert await b.store.lanes.dead("t/0") == []


async def test_adds_that_find_no_room_do_not_keep_verdicts_from_making_room(b: Bench) -> None:
    m = await b.of_the_lane("of the lane")
    b.store.lanes.fail(errors.StoreFull("no room"), "add")
    b.settler.failed(b.group, b.started("of the log"), ValueError())
    await asyncio.sleep(3)
    b.settler.acknowledge(b.group, m)
    await until(lambda: b.acknowledged == 1, 2)
    assert b.settled == []
    b.store.lanes.heal()
    await b.settler.idle()
    assert b.settled == ["of the log"]


async def in_slot(b: Bench) -> tuple[slot_store.Slot, Message]:
    """A member of the group's slot, claimed and started."""
    slot = slot_store.Slot("t/0", slot_store.SlotKind.PRIORITY)
    b.group.slot = OwnedSlot(b.group, slot)
    await b.store.real.sorted.add([slot_store.SlotAdd(slot, b"x", 50, slot_store.Keep.LAST)])
    [claimed] = await b.store.real.sorted.claim([slot_store.SlotClaim(slot, 1, EPOCH, 0)], 1_000)
    assert isinstance(claimed, slot_store.SlotClaimed)
    m = b.started("0-x", offset=-1)
    m.member, m.token, m.score = b"x", claimed.entries[0].token, 50
    return slot, m


async def held(b: Bench) -> tuple[OwnedSlot, Message]:
    """The group's slot, and the claimed member in it that the host holds."""
    _, m = await in_slot(b)
    assert b.group.slot is not None
    b.group.slot.hold([b"x"])
    return b.group.slot, m


LATER = errors.Retry("later", after_s=5)


async def test_a_member_whose_slot_has_a_newer_owner_does_not_rest(b: Bench) -> None:
    slot, m = await in_slot(b)
    await b.store.real.sorted.claim([slot_store.SlotClaim(slot, 0, EPOCH + 1, 0)], 1)
    b.settler.failed(b.group, m, LATER)
    await b.settler.idle()
    assert b.lost == [b.group]
    [state] = await b.store.real.sorted.inspect([slot], 1_000)
    assert (state.waiting, state.prepared, state.resting) == (0, 1, 0)


async def test_a_member_rests_once_also_if_the_answer_was_lost(b: Bench) -> None:
    slot, m = await in_slot(b)
    b.store.sorted.lose("settle")
    b.settler.failed(b.group, m, LATER)
    await b.settler.idle()
    rest_ms = int(b.clock.now() * 1000) + 5_000
    assert [address for address, _ in b.due] == [slot.address]
    [state] = await b.store.real.sorted.inspect([slot], 1_000)
    assert (state.waiting, state.prepared, state.resting) == (0, 1, 1)
    await b.store.real.sorted.recover([slot_store.Recover(slot, EPOCH)], rest_ms)
    [claimed] = await b.store.real.sorted.claim([slot_store.SlotClaim(slot, 1, EPOCH, 0)], rest_ms)
    assert isinstance(claimed, slot_store.SlotClaimed)
    [entry] = claimed.entries
    assert (entry.left, entry.score, [why for _, why in entry.history]) == (15, 50, ["later"])


async def test_a_failure_whose_entry_the_store_has_forgotten_is_put_into_the_lane_again(b: Bench) -> None:
    for id_, failure in (("retried", ValueError("once")), ("dead", errors.Reject("never"))):
        m = await b.of_the_lane(id_)
        await b.store.real.lanes.settle([LaneSettle("t/0", id_, LaneVerdict.ACK, EPOCH)])  # the store has lost it
        b.settler.failed(b.group, m, failure)
    await b.settler.idle()
    assert (b.group.lane_out, sorted(b.settled)) == (0, ["dead", "retried"])
    [state] = await b.store.lanes.inspect(["t/0"])
    assert (state.waiting, state.prepared, state.dead) == (1, 0, 1)


async def test_the_trail_tells_of_a_failure_before_the_next_start_though_the_answer_comes_after_it(b: Bench) -> None:
    trail = b.settler._trail = RecordedTrail()
    b.store.lanes.inject("add", after_s=1.0)
    b.settler.failed(b.group, b.started("a"), ValueError())
    await asyncio.sleep(0.1)
    assert trail.events == []
    [m] = await b.claimed()
    b.settler.claimed(b.group, m.id)
    assert [type(e) for e in trail.events] == [events.Retried]
    await b.settler.idle()
    assert (len(trail.events), b.settler.retried) == (1, 1)


async def test_the_trail_tells_of_a_members_failure_before_its_next_start(r: Rig) -> None:
    trail, told = RecordedTrail(), list[int]()

    async def fail_once(m: Message) -> None:
        told.append(sum(isinstance(event, events.Retried) for event in trail.events))
        if m.attempt == 1:
            raise ValueError("once")

    await r.topic("ranked", kind=Kind.PRIORITY, priorities=())
    late = r.store.sorted.inject("settle", after_s=2.0, when=lambda settles, _: settles[0].verdict != "ack")
    async with r.consuming(Seen(fail_once), store=r.store, trail=trail):
        await r.producer.publish("ranked", b"x", priority=20.0)
        await until(lambda: len(told) == 2)
        await asyncio.sleep(5)
    assert (told, late.happened) == ([0, 1], 1)
    assert sum(isinstance(event, events.Retried) for event in trail.events) == 1


async def test_a_move_whose_answer_was_lost_is_not_repeated_once_its_entry_was_claimed(b: Bench) -> None:
    b.store.lanes.lose("add")
    b.settler.failed(b.group, b.started("a"), ValueError())
    await asyncio.sleep(0.1)
    assert b.settled == []
    [m] = await b.claimed()
    b.settler.claimed(b.group, m.id)
    m.offset = -1
    await b.store.real.lanes.settle([LaneSettle("t/0", "a", LaneVerdict.ACK, EPOCH)])  # handled meanwhile
    await b.settler.idle()
    assert b.settled == ["a"]
    assert await b.store.lanes.inspect(["t/0"]) == [LaneState(0, 0, 0, None)], "it is not there a second time"


async def test_a_retry_whose_answer_was_lost_is_not_repeated_on_the_next_claim_of_its_entry(b: Bench) -> None:
    m = await b.of_the_lane("a")
    b.store.lanes.lose("settle")
    b.settler.failed(b.group, m, ValueError())
    await asyncio.sleep(0.1)
    [again] = await b.claimed()
    b.settler.claimed(b.group, again.id)
    await b.settler.idle()
    assert b.group.lane_out == 0
    [state] = await b.store.lanes.inspect(["t/0"])
    assert (state.waiting, state.prepared) == (0, 1), "the newer claim stays as it is"
    again.offset, b.group.lane_out = -1, 1
    b.settler.acknowledge(b.group, again)
    await b.settler.idle()
    assert await b.store.lanes.inspect(["t/0"]) == [LaneState(0, 0, 0, None)]


FAILURES = pytest.mark.parametrize("failure", [ValueError("once"), errors.Reject("never")])


@FAILURES
async def test_what_an_operator_took_after_an_answer_was_lost_is_not_added_again(b: Bench, failure: Exception) -> None:
    m = await b.of_the_lane("a")
    b.store.lanes.lose("settle")
    b.settler.failed(b.group, m, failure)
    await asyncio.sleep(0.1)
    assert b.settled == []
    topic, store = split(b.group.owner.topic), b.store.real
    taken = len(await recall.recall(store, topic, ["a"])) + await dead_letters.purge(store, topic)
    await b.settler.idle()
    assert (taken, b.settled, b.group.lane_out) == (1, ["a"], 0)
    assert await b.store.lanes.inspect(["t/0"]) == [LaneState(0, 0, 0, None)], "it does not stand again"


@FAILURES
@pytest.mark.parametrize("repeats", [1, 2])
async def test_what_an_operator_took_after_the_answer_of_its_move_was_lost_stays_away(
    b: Bench, failure: Exception, repeats: int
) -> None:
    trail = b.settler._trail = RecordedTrail()
    b.store.lanes.lose("add", times=repeats)
    b.settler.failed(b.group, b.started("a"), failure)
    await asyncio.sleep(0.1)
    topic, store = split(b.group.owner.topic), b.store.real
    taken = len(await recall.recall(store, topic, ["a"])) + await dead_letters.purge(store, topic)
    await b.settler.idle()
    assert (taken, b.settled, b.store.lanes.calls["add"]) == (1, ["a"], repeats + 1)
    assert await b.store.lanes.inspect(["t/0"]) == [LaneState(0, 0, 0, None)], "it does not stand again"
    assert (b.settler.retried, b.settler.dead, trail.events) == (0, 0, [])


@FAILURES
async def test_a_message_is_not_lost_to_the_recall_of_an_earlier_message_of_its_id(
    b: Bench, failure: Exception
) -> None:
    topic, store = split(b.group.owner.topic), b.store.real
    await store.lanes.add([LaneAdd("t/0", id_, b"old", 1) for id_ in ("delayed", "logged")])
    assert await recall.recall(store, topic, ["delayed", "logged"]) == {"delayed", "logged"}
    before = b.world.snapshot()
    await asyncio.sleep(0.1)
    await store.lanes.add([LaneAdd("t/0", "delayed", b.body("delayed"), 1)])
    [m] = await b.claimed()
    m.offset, m.ready_us, b.group.lane_out = -1, b.clock.now_us(), 1
    b.world.restore(before)  # the store has lost the new message, and remembers the recall
    b.store.lanes.fail(None, "add")
    b.settler.failed(b.group, m, failure)
    b.settler.failed(b.group, b.started("logged"), failure)
    await asyncio.sleep(0.1)
    b.store.lanes.heal()
    await b.settler.idle()
    [state] = await b.store.lanes.inspect(["t/0"])
    assert state.waiting + state.dead == b.settler.retried + b.settler.dead == 2


async def test_a_message_with_a_number_that_cannot_be_stored_keeps_no_other_from_being_settled() -> None:
    bench = Bench()
    async with bench.settling():
        bad = bench.started("bad")
        bad.score = 10**400
        bench.settler.failed(bench.group, bad, ValueError("no"))
        bench.settler.failed(bench.group, bench.started("good", offset=2), ValueError("no"))
        await asyncio.wait_for(bench.settler.idle(), 10)
    assert sorted(bench.settled) == ["bad", "good"]
    assert [m.id for m in await bench.claimed()] == ["good"]
    [letter] = await bench.store.real.lanes.dead("t/0")
    assert (letter.id, decode(letter.body).payload) == ("bad", b"x")
    assert "score" in letter.reason


@pytest.mark.parametrize("breaks", [errors.InvalidMessage("nobody expected this"), None])
async def test_a_call_that_breaks_or_is_cancelled_leaves_no_message_unsettled(breaks: errors.EMQError | None) -> None:
    b = Bench()

    async def add(*_: object) -> None:
        if breaks is None:
            await asyncio.Event().wait()
        raise breaks or AssertionError

    real, b.settler._lanes = b.settler._lanes, cast(Any, SimpleNamespace(add=add))
    for name in ("a", "b"):
        b.settler.failed(b.group, b.started(name), ValueError("no"))
    task = asyncio.create_task(b.settler.settle())
    await asyncio.sleep(3)
    task.cancel()
    with contextlib.suppress(errors.InvalidMessage, asyncio.CancelledError):
        await task
    b.settler._lanes = real
    async with b.settling():
        await until(lambda: len(b.settled) == 2)
    assert len(await b.claimed()) == 2


async def test_a_call_that_breaks_late_settles_no_message_twice(b: Bench) -> None:
    found = [await b.of_the_lane(id_) for id_ in ("fails", "vanished")]
    real = b.settler._lanes

    async def settle(settles: list[LaneSettle]) -> list[Any]:
        return [errors.StoreUnavailable("away") if s.id == "fails" else False for s in settles]

    async def add(*_: object) -> None:
        await asyncio.sleep(3)  # longer than a message rests
        raise errors.InvalidMessage("nobody expected this")

    b.settler._lanes = cast(Any, SimpleNamespace(settle=settle, add=add))
    for m in found:
        b.settler.failed(b.group, m, ValueError("no"))
    with pytest.raises(errors.InvalidMessage):
        await b.settler.settle()
    b.settler._lanes = real
    await b.settler.idle()
    await asyncio.sleep(5)
    assert (sorted(b.settled), b.group.lane_out) == (["fails", "vanished"], 0)


@contextlib.contextmanager
def calls_that_break(b: Bench) -> Iterator[None]:
    """The store carries out each verdict on members, and then the call breaks."""
    real = b.settler.members._store

    async def settle(settles: Any) -> None:
        await real.settle(settles)
        raise errors.InvalidMessage("nobody expected this")

    b.settler.members._store = cast(Any, SimpleNamespace(settle=settle))
    yield
    b.settler.members._store = real


async def test_a_verdict_in_doubt_waits_for_a_recovery_that_still_counts_its_member_as_held(b: Bench) -> None:
    owned, m = await held(b)
    owned.suspect.add(m.token // 1000)
    owned.claiming = True  # the recovery is under way
    b.store.sorted.fail(errors.OutcomeUnknown("the answer was lost"), "settle")
    b.settler.failed(b.group, m, LATER)
    await asyncio.sleep(3)
    assert owned.unsure == 1
    owned.suspect.clear()
    owned.claiming = False
    b.store.sorted.heal()
    await b.settler.idle()
    [state] = await b.store.real.sorted.inspect([owned.slot], 1_000)
    assert (state.prepared, state.resting) == (1, 1)
    assert (b.settler.retried, owned.unsure, owned.held) == (1, 0, {})


async def test_a_verdict_that_needs_no_repeat_is_told_of_once_and_forgotten(b: Bench) -> None:
    owned, m = await held(b)
    b.store.sorted.lose("settle")
    b.settler.failed(b.group, m, LATER)
    await asyncio.sleep(0.5)
    owned.suspect.add(m.token // 1000)  # the answer of a claim was lost as well
    await b.settler.idle()
    b.settler.claimed(b.group, m.uid)  # later, by a claim of the member's next publish
    assert b.settler.retried == 1


async def test_a_verdict_whose_call_broke_is_in_doubt() -> None:
    b = Bench()
    owned, m = await held(b)
    b.settler.failed(b.group, m, LATER)
    with calls_that_break(b), pytest.raises(errors.InvalidMessage):
        await b.settler.settle()
    assert owned.unsure == 1, "nothing may be claimed before the repeat"
    async with b.settling():
        await b.settler.idle()
    assert owned.unsure == 0


async def test_an_acknowledgement_whose_call_broke_is_in_doubt_until_it_is_repeated() -> None:
    b = Bench()
    owned, m = await held(b)
    b.settler.acknowledge(b.group, m)
    with calls_that_break(b), pytest.raises(errors.InvalidMessage):
        await b.settler.members.run()
    assert (owned.unsure, owned.done) == (1, []), "nothing may be claimed before the repeat"
    async with b.settling():
        await b.settler.idle()
    assert (owned.unsure, owned.held, b.acknowledged) == (0, {}, 1)
    [state] = await b.store.real.sorted.inspect([owned.slot], 1_000)
    assert (state.waiting, state.prepared) == (0, 0)
