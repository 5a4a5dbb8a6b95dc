"""What was claimed from a slot and cannot start goes back, also what comes to it while the call is under way."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from emq.fetcher.slot_returns import SlotReturns
from emq.groups.context import HostContext
from emq.runtime import errors
from emq.storage.message import Message
from emq.topics.model import Kind, Topic
from support.virtual import LoopClock


def claimed(member: bytes) -> Message:
    return Message(member.decode(), member, member=member, token=1, score=1.0)


class Slot(SimpleNamespace):
    """Equal to itself only, as real ones."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


class Store:
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
    slot: Any = Slot(slot="orders/0", address="orders/0/", group=group, let_go=gone.extend, retry_ms=0)
    slot.returning = [claimed(b""), claimed(b"a")]
    store: Any = Store(slot, fails)
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
    each: list[Any] = [Slot(slot="orders/0", group=group, let_go=len) for _ in range(slots)]
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
