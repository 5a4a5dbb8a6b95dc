"""Lanes and slots that are sealed refuse what producers add, and nothing else."""

from __future__ import annotations

from emq.runtime import errors
from emq.storage.lane_store import LaneAdd, LaneClaim, LaneClaimed, LaneSettle, LaneState, LaneVerdict
from emq.storage.slot_store import Keep, Slot, SlotAdd, SlotVerdict
from emq.storage.store import Store
from emq_testing.contract.slot_user import SlotUser, nth
from emq_testing.contract.target import Target

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


async def test_a_sealed_slot_refuses_new_members_and_merges_until_it_is_opened(user: SlotUser, other: Store) -> None:
    slot, neighbour = user.slot, user.beside()

    def add(to: Slot, member: bytes) -> SlotAdd:
        return SlotAdd(to, member, nth(to.kind, 0), Keep.LAST, member if to.apart else b"")

    await user.fill(b"waits")
    assert await user.settle(SlotVerdict.SEAL, b"")
    answers = await other.sorted.add([add(slot, b"new"), add(slot, b"waits"), add(neighbour.slot, b"new")])
    assert [isinstance(answer, errors.QueueSealed) for answer in answers] == [True, True, False]
    assert answers[2] is True
    assert [await each.sizes() for each in (user, neighbour)] == [(1, 0, 0)] * 2
    await user.claims(b"waits")  # it is drained
    opening = [user.verdict(SlotVerdict.OPEN, b"")]
    assert [await other.sorted.settle(opening), await user.sorted.settle(opening)] == [[True], [False]]
    await user.fill(b"new")


async def test_no_dead_member_is_replayed_into_a_sealed_slot(user: SlotUser) -> None:
    await user.buried(b"a")
    await user.settle(SlotVerdict.SEAL, b"")
    assert not await user.settle(SlotVerdict.REPLAY, b"a", score=nth(user.slot.kind, 0))
    await user.settle(SlotVerdict.OPEN, b"")
    assert await user.settle(SlotVerdict.REPLAY, b"a", score=nth(user.slot.kind, 0))
