"""Lanes and slots that are sealed refuse what producers add, and nothing else."""

from __future__ import annotations

from slot_user import SlotUser
from target import Target

from emq.runtime import errors
from emq.storage import slot_store
from emq.storage.lane_store import LaneAdd, LaneClaim, LaneClaimed, LaneSettle, LaneState, LaneVerdict
from emq.storage.slot_store import Keep, SlotKind
from emq.storage.store import Store

NOW_MS = 1_700_000_000_000


async def seal(store: Store, lane: str, verdict: LaneVerdict = LaneVerdict.SEAL) -> None:
    assert await store.lanes.settle([LaneSettle(lane, "", verdict)]) == [True]


async def test_a_sealed_lane_refuses_producers_until_it_is_opened(store: Store, other: Store, target: Target) -> None:
    lane, neighbour = target.slot(), target.slot(1)
    await seal(store, lane)
    await seal(store, lane)
    refused, added = await other.lanes.add([LaneAdd(lane, "a", b"a", NOW_MS), LaneAdd(neighbour, "a", b"a", NOW_MS)])
    assert isinstance(refused, errors.QueueSealed)
    assert added is True
    assert [(s.waiting, s.sealed) for s in await store.lanes.inspect([lane, neighbour])] == [(0, True), (1, False)]
    await seal(other, lane, LaneVerdict.OPEN)
    assert await store.lanes.settle([LaneSettle(lane, "", LaneVerdict.OPEN)]) == [False], "it was open"
    assert await store.lanes.add([LaneAdd(lane, "a", b"a", NOW_MS)]) == [True]
    assert await store.lanes.inspect([lane]) == [LaneState(1, 0, 0, NOW_MS)]


async def test_a_sealed_lane_takes_what_its_owner_moves_there_and_is_drained(store: Store, target: Target) -> None:
    lane = target.slot()
    await store.lanes.add([LaneAdd(lane, "before", b"x", NOW_MS)])
    await seal(store, lane)
    assert await store.lanes.add([LaneAdd(lane, "moved", b"x", NOW_MS, epoch=5)]) == [True]
    [claimed] = await store.lanes.claim([LaneClaim(lane, 10, 5)], NOW_MS)
    assert isinstance(claimed, LaneClaimed)
    assert {id_ for id_, _ in claimed.entries} == {"before", "moved"}
    assert await store.lanes.settle([LaneSettle(lane, id_, LaneVerdict.ACK, 5) for id_, _ in claimed.entries]) == [
        True,
        True,
    ]
    assert isinstance((await store.lanes.add([LaneAdd(lane, "c", b"c", NOW_MS)]))[0], errors.QueueSealed)


async def test_no_dead_letter_is_replayed_into_a_sealed_lane(store: Store, target: Target) -> None:
    lane = target.slot()
    await store.lanes.add([LaneAdd(lane, "a", b"a", NOW_MS, reason="no")])
    await seal(store, lane)
    assert await store.lanes.settle([LaneSettle(lane, "a", LaneVerdict.REPLAY, None, NOW_MS, b"a")]) == [False]
    assert (await store.lanes.inspect([lane]))[0].dead == 1
    assert await store.lanes.settle([LaneSettle(lane, "a", LaneVerdict.PURGE)]) == [True]


async def test_a_sealed_slot_refuses_new_members_and_merges_until_it_is_opened(
    store: Store, other: Store, target: Target, variant: tuple[SlotKind, bool]
) -> None:
    slot, neighbour = target.sorted_slot(*variant), target.sorted_slot(*variant, group=1)
    score = 50 if slot.kind is SlotKind.PRIORITY else NOW_MS

    def add(to: slot_store.Slot, member: bytes) -> slot_store.SlotAdd:
        return slot_store.SlotAdd(to, member, score, Keep.LAST, member if to.apart else b"")

    assert await store.sorted.add([add(slot, b"waits")]) == [True]
    assert await store.sorted.settle([slot_store.SlotSettle(slot, b"", slot_store.SlotVerdict.SEAL)]) == [True]
    answers = await other.sorted.add([add(slot, b"new"), add(slot, b"waits"), add(neighbour, b"new")])
    assert [isinstance(answer, errors.QueueSealed) for answer in answers] == [True, True, False]
    assert answers[2] is True
    assert [s.waiting for s in await store.sorted.inspect([slot, neighbour], NOW_MS)] == [1, 1]
    [claimed] = await store.sorted.claim([slot_store.SlotClaim(slot, 10, 3, NOW_MS)], NOW_MS)
    assert isinstance(claimed, slot_store.SlotClaimed)
    assert [entry.member for entry in claimed.entries] == [b"waits"], "it is drained"
    opening = [slot_store.SlotSettle(slot, b"", slot_store.SlotVerdict.OPEN)]
    assert [await other.sorted.settle(opening), await store.sorted.settle(opening)] == [[True], [False]]
    assert await store.sorted.add([add(slot, b"new")]) == [True]


async def test_no_dead_member_is_replayed_into_a_sealed_slot(store: Store, user: SlotUser) -> None:
    slot = user.slot
    score = 50 if slot.kind is SlotKind.PRIORITY else NOW_MS
    await store.sorted.add([slot_store.SlotAdd(slot, b"a", score, Keep.LAST, b"a" if slot.apart else b"")])
    [claimed] = await store.sorted.claim([slot_store.SlotClaim(slot, 1, 3, NOW_MS)], NOW_MS)
    assert isinstance(claimed, slot_store.SlotClaimed)
    dead = slot_store.SlotSettle(slot, b"a", slot_store.SlotVerdict.DEAD, claimed.entries[0].token, 3, reason="no")
    assert await store.sorted.settle([dead]) == [True]
    await store.sorted.settle([slot_store.SlotSettle(slot, b"", slot_store.SlotVerdict.SEAL)])
    replay = slot_store.SlotSettle(slot, b"a", slot_store.SlotVerdict.REPLAY, score=score)
    assert await store.sorted.settle([replay]) == [False]
    await store.sorted.settle([slot_store.SlotSettle(slot, b"", slot_store.SlotVerdict.OPEN)])
    assert await store.sorted.settle([replay]) == [True]
