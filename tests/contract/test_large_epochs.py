"""Epochs count microseconds since 1970, more than 32 bits or 14 digits hold: stores tell two in a row apart."""

from __future__ import annotations

from slot_user import SlotUser
from target import Target, put_one, read_one

from emq.runtime import errors
from emq.storage.lane_store import LaneAdd, LaneClaim, LaneClaimed, LaneSettle, LaneVerdict
from emq.storage.log_store import Read, Trim
from emq.storage.slot_store import Recover, SlotClaim, SlotSettle, SlotVerdict
from emq.storage.store import Store

OLD = 4_102_444_799_999_998
"""A microsecond at the end of the year 2099."""

NEW = OLD + 1
NOW = 1_700_000_000_000


async def test_a_queue_refuses_the_owner_of_the_microsecond_before(store: Store, target: Target) -> None:
    queue = target.queue()
    offsets = await put_one(store.log, queue, b"a", b"b")
    await read_one(store.log, queue, offsets[0], epoch=OLD)
    await read_one(store.log, queue, offsets[0], epoch=NEW)
    assert isinstance((await store.log.read([Read(queue, offsets[0], 10, OLD)]))[0], errors.NotOwner)
    assert isinstance((await store.log.trim([Trim(queue, offsets[1], OLD)]))[0], errors.NotOwner)
    assert await store.log.trim([Trim(queue, offsets[1], NEW)]) == [False]


async def test_a_lane_refuses_the_owner_of_the_microsecond_before(store: Store, target: Target) -> None:
    lane = target.slot()
    await store.lanes.add([LaneAdd(lane, "x", b"x", NOW)])
    [claimed] = await store.lanes.claim([LaneClaim(lane, 1, OLD)], NOW)
    assert isinstance(claimed, LaneClaimed)
    assert [id_ for id_, _ in claimed.entries] == ["x"]
    assert await store.lanes.recover([(lane, OLD)]) == [0]
    await store.lanes.claim([LaneClaim(lane, 0, NEW)], NOW)
    assert isinstance((await store.lanes.claim([LaneClaim(lane, 1, OLD)], NOW))[0], errors.NotOwner)
    assert isinstance((await store.lanes.settle([LaneSettle(lane, "x", LaneVerdict.ACK, OLD)]))[0], errors.NotOwner)
    assert await store.lanes.recover([(lane, NEW)]) == [1]


async def test_a_slot_refuses_the_owner_of_the_microsecond_before(user: SlotUser) -> None:
    user.epoch = OLD
    await user.fill(b"x")
    (entry,) = (await user.claim(limit=1)).entries
    assert await user.sorted.recover([Recover(user.slot, OLD)], NOW) == [0]
    assert await user.sorted.recover([Recover(user.slot, NEW)], NOW) == [1]
    assert isinstance((await user.sorted.claim([SlotClaim(user.slot, 1, OLD, NOW)], NOW))[0], errors.NotOwner)
    settle = SlotSettle(user.slot, b"x", SlotVerdict.ACK, entry.token, OLD)
    assert isinstance((await user.sorted.settle([settle]))[0], errors.NotOwner)
    assert isinstance((await user.sorted.recover([Recover(user.slot, OLD)], NOW))[0], errors.NotOwner)
    user.epoch = NEW
    assert [entry.member for entry in (await user.claim()).entries] == [b"x"]
