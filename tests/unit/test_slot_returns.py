"""What was claimed from a slot and cannot start goes back, also what comes to it while the call is under way."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from emq import errors
from emq.fetcher.slot_returns import SlotReturns
from emq.groups.context import HostContext
from emq.message import Message
from emq.topics.model import Kind, Topic
from support.virtual import LoopClock


def claimed(member: bytes) -> Message:
    return Message(member.decode(), member, member=member, token=1, score=1.0)


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
    slot: Any = SimpleNamespace(slot="orders/0", address="orders/0/", group=group, let_go=gone.extend, retry_ms=0)
    slot.returning = [claimed(b""), claimed(b"a")]
    store: Any = Store(slot, fails)
    returns = SlotReturns(store, HostContext(LoopClock()))
    await returns.give_back([slot])
    assert store.settled == [b"", b"a"], "an empty content, too"
    assert [m.member for m in slot.returning] == left
    assert gone == ([] if fails else [b"", b"a"])
    assert slot.next_ms == 0, "what went back may be claimed again"
    assert (returns.troubles.latest is not None, slot.retry_ms > 0) == (fails, fails)
