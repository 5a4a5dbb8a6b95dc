"""What a host claims of its slots: as much as can start now; what cannot start goes back; a sweep finds the rest."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Sequence
from types import FrameType, SimpleNamespace
from typing import Any, cast

import pytest

from emq.fetcher.slot_claimer import SlotClaimer
from emq.fetcher.slot_looks import room
from emq.fetcher.slot_returns import SlotReturns
from emq.fetcher.slot_sweep import SWEEP_S
from emq.groups.capacity import Gauge
from emq.groups.context import HostContext
from emq.groups.owned import OwnedGroup, OwnedSlot, OwnedTopic
from emq.groups.priority import STRICT
from emq.quota.counter import WindowCounter
from emq.runtime import errors
from emq.storage.message import Message
from emq.storage.slot_store import Recover, Slot, SlotState, SortedStore
from emq.topics.model import Kind, Topic
from support.virtual import LoopClock, virtual

pytestmark = virtual


async def ignore(m: Message) -> None:
    pass


def group_with(waits_for_its_key: Message, quota: float) -> OwnedGroup:
    """A group whose key `k` runs, and one more message of that key waits."""
    owner = OwnedTopic(Topic("t", 6.0, kind=Kind.FIXED_TIME, slots=1))
    owner.handler = ignore
    group = OwnedGroup(owner, 0, 1, WindowCounter(quota, 0.0), STRICT, Gauge())
    group.slot, group.buffers = OwnedSlot(group, owner.topic.slot(0)), [deque()]
    group.running["k"] = 0
    if waits_for_its_key.member is None:
        group.retries[0] = 1
    else:
        group.slot.buffered = 1
    group.push(0, [waits_for_its_key])
    assert group.take(0) is None
    assert group.held == 1
    return group


@pytest.mark.parametrize("member", [None, b"member"], ids=["of the lane", "of the slot"])
def test_a_message_that_waits_for_its_key_neither_takes_a_start_nor_gives_one(member: bytes | None) -> None:
    for quota, most in ((0.0, 0), (2.0, 2)):
        group = group_with(Message("m", b"m", key="k", member=member), quota)
        assert group.slot is not None
        assert room(group.slot, 1.0) == most


def test_the_slots_of_a_topic_claim_together_no_more_than_the_topic_may_start() -> None:
    owner = OwnedTopic(Topic("t", 10.0, kind=Kind.FIXED_TIME, slots=4, active_groups=4, groups=4))
    owner.handler = ignore
    slots = []
    for index in range(4):
        group = OwnedGroup(owner, index, 1, owner.counter.join(index, 0.0), STRICT, Gauge())
        group.slot, group.buffers = OwnedSlot(group, owner.topic.slot(index)), [deque()]
        group.capacity = 10
        slots.append(group.slot)
    wanted = []
    for slot in (*slots, *slots):
        wanted.append(room(slot, 1.0))
        owner.coming += wanted[-1]
    assert wanted == [2, 2, 2, 2, 2, 0, 0, 0]


def claimed(member: bytes) -> Message:
    return Message(member.decode(), member, member=member, token=1, score=1.0)


class FakeSlot(SimpleNamespace):
    """Equal to itself only, as real ones."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


class Settling:
    """Settles; meanwhile another message comes to wait for its return."""

    def __init__(self, slot: Any, fails: bool) -> None:
        self._slot = slot
        self._fails = fails
        self.settled: list[bytes] = []

    async def settle(self, settles: Sequence[Any]) -> list[Any]:
        self._slot.returning.append(claimed(b"later"))
        self.settled += [settle.member for settle in settles]
        return [errors.StoreUnavailable("away") if self._fails else True for _ in settles]


@pytest.mark.parametrize(("fails", "left"), [(False, [b"later"]), (True, [b"", b"a", b"later"])])
async def test_what_comes_meanwhile_goes_back_with_the_next_call(fails: bool, left: list[bytes]) -> None:
    gone: list[bytes] = []
    topic = Topic("orders", 10, kind=Kind.PRIORITY, slots=2)
    group = SimpleNamespace(epoch=1, name="orders/0", stopping=False, owner=SimpleNamespace(topic=topic))
    slot: Any = FakeSlot(slot="orders/0", address="orders/0/", group=group, let_go=gone.extend, retry_ms=0)
    slot.returning = [claimed(b""), claimed(b"a")]
    store: Any = Settling(slot, fails)
    returns = SlotReturns(store, HostContext(LoopClock()))
    await returns.give_back([slot])
    assert store.settled == [b"", b"a"], "an empty content, too"
    assert [m.member for m in slot.returning] == left
    assert gone == ([] if fails else [b"", b"a"])
    assert slot.next_ms == 0, "what went back may be claimed again"
    assert (returns.troubles.latest is not None, slot.retry_ms > 0) == (fails, fails)


async def lines_run_to_give_back(slots: int) -> int:
    """Return how many lines of `SlotReturns` run to give back ten members of each slot."""
    lines = 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.endswith("slot_returns.py"):
            return None
        lines += event == "line"
        return count

    async def settle(settles: Sequence[Any]) -> list[bool]:
        return [True] * len(settles)

    topic = Topic("orders", 10, kind=Kind.PRIORITY, slots=2)
    group = SimpleNamespace(epoch=1, name="orders/0", stopping=False, owner=SimpleNamespace(topic=topic))
    each: list[Any] = [FakeSlot(slot="orders/0", group=group, let_go=len) for _ in range(slots)]
    for slot in each:
        slot.returning = [claimed(b"%d" % n) for n in range(10)]
    returns = SlotReturns(SimpleNamespace(settle=settle), HostContext(LoopClock()))  # type: ignore[arg-type]
    before = sys.gettrace()
    sys.settrace(count)
    try:
        await returns.give_back(each)
    finally:
        sys.settrace(before)
    assert not any(slot.returning for slot in each)
    return lines


async def test_the_work_of_giving_back_grows_with_the_members_and_not_with_their_square() -> None:
    assert await lines_run_to_give_back(80) < 5 * await lines_run_to_give_back(20)


pytestmark = virtual


class Swept:
    """Attributes:
    inspected: names of slots, in order.
    recovered: slots of which members were rolled back, and up to when they had been claimed.
    """

    def __init__(self) -> None:
        self.inspected: list[str] = []
        self.recovered: list[tuple[str, int | None]] = []
        self.claimed_s: dict[str, float] = {}

    async def inspect(self, slots: Sequence[Slot], now_ms: int) -> list[SlotState]:
        self.inspected += [slot.name for slot in slots]
        oldest = [self.claimed_s.get(slot.name) for slot in slots]
        return [SlotState(0, 0, 0, 0, None, None if at is None else int(at * 1000)) for at in oldest]

    async def recover(self, recovers: Sequence[Recover], now_ms: int) -> list[int]:
        self.recovered += [(recover.slot.name, recover.older_than_ms) for recover in recovers]
        return [1] * len(recovers)


def claimer(store: Swept, slots: int) -> SlotClaimer:
    made = SlotClaimer(cast(SortedStore, store), HostContext(LoopClock()))
    owner = OwnedTopic(Topic("t", 10, kind=Kind.PRIORITY, priorities=(), slots=slots))
    owner.handler = ignore
    for i in range(slots):
        group = OwnedGroup(owner, i, 1, WindowCounter(10, 0), STRICT, Gauge())
        group.buffers = [deque()]
        group.slot = OwnedSlot(group, owner.topic.slot(i))
        made.acquire(group.slot)
    return made


@pytest.mark.parametrize("slots", [1, 8, 512, 2048])
async def test_each_slot_is_looked_at_once_in_each_round(slots: int) -> None:
    store = Swept()
    sweeping = asyncio.create_task(claimer(store, slots).sweep.run())
    await asyncio.sleep(SWEEP_S - 0.1)
    sweeping.cancel()
    assert {f"t/{i}" for i in range(slots)} == set(store.inspected)


async def test_what_was_claimed_for_longer_than_the_time_out_is_rolled_back() -> None:
    store, clock = Swept(), LoopClock()
    timeout_s = Topic("t", 10).options.prepare_timeout_s
    store.claimed_s = {"t/0": clock.now() - timeout_s - 10, "t/1": clock.now() - timeout_s + 60}
    sweeping = asyncio.create_task(claimer(store, 2).sweep.run())
    await asyncio.sleep(SWEEP_S - 0.1)
    sweeping.cancel()
    assert {name for name, _ in store.recovered} == {"t/0"}
    _, older_than_ms = store.recovered[0]
    assert older_than_ms is not None
    assert clock.now() - timeout_s - SWEEP_S < older_than_ms / 1000 <= clock.now() - timeout_s
