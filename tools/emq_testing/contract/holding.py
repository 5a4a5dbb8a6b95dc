"""What a store tells of all that it holds, so that messages of unknown topics are found."""

from __future__ import annotations

from emq.runtime.environment import Environment
from emq.storage.lane_store import LaneAdd, LaneClaim, LaneSettle, LaneVerdict
from emq.storage.log_store import Put, Trim
from emq.storage.slot_store import Keep, Slot, SlotAdd, SlotClaim, SlotKind
from emq.storage.store import Holding, Store
from emq_testing.contract.target import Can, Needs, Target, optional


async def held(store: Store, topic: str) -> Holding:
    found: Holding = await optional(store, "holding")()
    return Holding(*([name for name in names if name.startswith(f"{topic}/")] for names in found))


async def test_a_store_names_what_holds_messages_and_nothing_that_is_empty(
    store: Store, opened: Target, needs: Needs
) -> None:
    needs(Can.DENSE)  # who has only PUT and GET cannot tell
    topic = opened.topic
    slot = Slot(f"{topic}/7", SlotKind.PRIORITY)
    await store.log.put([Put(f"{topic}/0/high", [b"a"]), Put(f"{topic}/1/low", [b"b"])])
    await store.lanes.add([LaneAdd(f"{topic}/2", "waits", b"c", 5), LaneAdd(f"{topic}/3", "dies", b"d", 5, "why")])
    await store.sorted.add([SlotAdd(slot, b"e", 100, Keep.LAST)])
    await store.sorted.claim([SlotClaim(slot, 0, 1, 100)], 10)  # as a host does that has the slot
    everything = Holding([f"{topic}/0/high", f"{topic}/1/low"], [f"{topic}/2", f"{topic}/3"], [f"{topic}/7"])
    assert await held(store, topic) == everything
    await store.lanes.claim([LaneClaim(f"{topic}/2", 10, 1)], 10)
    assert await held(store, topic) == everything, "what is claimed is there as well"
    sandbox = await opened.open(Environment.SANDBOX)
    assert await held(sandbox, topic) == Holding([], [], [])
    await store.log.trim([Trim(f"{topic}/0/high", 2, None)])
    await store.lanes.settle([LaneSettle(f"{topic}/2", "waits", LaneVerdict.ACK, 1)])
    assert await held(store, topic) == Holding([f"{topic}/1/low"], [f"{topic}/3"], [f"{topic}/7"])
