"""The sweep of a host's slots comes to each of them, and finds what woke nobody."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import cast

import pytest

from emq.fetcher.slot_claimer import SlotClaimer
from emq.fetcher.slot_sweep import SWEEP_S
from emq.groups.capacity import Gauge
from emq.groups.context import HostContext
from emq.groups.owned import OwnedGroup, OwnedSlot, OwnedTopic
from emq.groups.priority import STRICT
from emq.quota.counter import WindowCounter
from emq.storage.message import Message
from emq.storage.slot_store import Recover, Slot, SlotState, SortedStore
from emq.topics.model import Kind, Topic
from support.virtual import LoopClock, virtual

pytestmark = virtual


class Store:
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


def claimer(store: Store, slots: int) -> SlotClaimer:
    async def handle(m: Message) -> None:
        """A handler."""

    made = SlotClaimer(cast(SortedStore, store), HostContext(LoopClock()))
    owner = OwnedTopic(Topic("t", 10, kind=Kind.PRIORITY, priorities=(), slots=slots))
    owner.handler = handle
    for i in range(slots):
        group = OwnedGroup(owner, i, 1, WindowCounter(10, 0), STRICT, Gauge())
        group.buffers = [deque()]
        group.slot = OwnedSlot(group, owner.topic.slot(i))
        made.acquire(group.slot)
    return made


@pytest.mark.parametrize("slots", [1, 8, 512, 2048])
async def test_each_slot_is_looked_at_once_in_each_round(slots: int) -> None:
    store = Store()
    sweeping = asyncio.create_task(claimer(store, slots).sweep.run())
    await asyncio.sleep(SWEEP_S - 0.1)
    sweeping.cancel()
    assert {f"t/{i}" for i in range(slots)} == set(store.inspected)


async def test_what_was_claimed_for_longer_than_the_time_out_is_rolled_back() -> None:
    store, clock = Store(), LoopClock()
    timeout_s = Topic("t", 10).options.prepare_timeout_s
    store.claimed_s = {"t/0": clock.now() - timeout_s - 10, "t/1": clock.now() - timeout_s + 60}
    sweeping = asyncio.create_task(claimer(store, 2).sweep.run())
    await asyncio.sleep(SWEEP_S - 0.1)
    sweeping.cancel()
    assert {name for name, _ in store.recovered} == {"t/0"}
    _, older_than_ms = store.recovered[0]
    assert older_than_ms is not None
    assert clock.now() - timeout_s - SWEEP_S < older_than_ms / 1000 <= clock.now() - timeout_s
