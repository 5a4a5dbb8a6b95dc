"""The priorities of waiting entries: which a claim takes first, and the room that it has for each."""

from __future__ import annotations

from emq.storage.lane_store import LaneAdd, LaneClaim, LaneClaimed, LaneSettle, LaneState, LaneVerdict
from emq.storage.store import Store
from emq_testing.contract.lanes import NOW, ids, settle, state
from emq_testing.contract.target import Target


async def put_ranked(store: Store, slot: str, *ranked: tuple[str, int, int]) -> None:
    """Add waiting entries: id, priority, due time."""
    adds = [LaneAdd(slot, id_, id_.encode(), due_ms, priority=priority) for id_, priority, due_ms in ranked]
    assert await store.lanes.add(adds) == [True] * len(adds)


async def claim_ranked(
    store: Store, slot: str, limit: int, *rooms: int, now_ms: int = NOW, epoch: int = 1
) -> list[str]:
    (answer,) = await store.lanes.claim([LaneClaim(slot, limit, epoch, rooms)], now_ms)
    assert isinstance(answer, LaneClaimed)
    return ids(answer)


async def test_higher_priorities_come_first_whenever_they_were_due(store: Store, target: Target) -> None:
    slot = target.slot()
    await put_ranked(store, slot, ("low", 15, NOW - 9), ("mid2", 7, NOW - 1), ("mid1", 7, NOW - 2), ("high", 0, NOW))
    await put_ranked(store, slot, ("later", 0, NOW + 1))
    assert await claim_ranked(store, slot, 3) == ["high", "mid1", "mid2"]
    assert await claim_ranked(store, slot, 3) == ["low"]
    assert (await state(store, slot)) == LaneState(1, 4, 0, NOW + 1)
    assert await claim_ranked(store, slot, 3, now_ms=NOW + 1) == ["later"]


async def test_each_priority_has_room_of_its_own(store: Store, target: Target) -> None:
    slot = target.slot()
    await put_ranked(store, slot, *((f"low{n}", 2, NOW - 100 + n) for n in range(5)))
    await put_ranked(store, slot, ("high", 0, NOW), *((f"mid{n}", 1, NOW - 9 + n) for n in range(3)))
    assert await claim_ranked(store, slot, 9, 4, 2, 0) == ["high", "mid0", "mid1"]
    assert await claim_ranked(store, slot, 9, 4, 0, 3) == ["low0", "low1", "low2"]
    assert await claim_ranked(store, slot, 2, 4, 4, 4) == ["mid2", "low3"]
    (answer,) = await store.lanes.claim([LaneClaim(slot, 9, 1, (4, 4, 0))], NOW)
    assert answer == LaneClaimed([], NOW - 96, is_empty=False)


async def test_priorities_below_the_last_share_its_room(store: Store, target: Target) -> None:
    slot = target.slot()
    await put_ranked(store, slot, *((f"{priority:02}", priority, NOW - priority) for priority in range(16)))
    assert await claim_ranked(store, slot, 99, 1, 4) == ["00", "01", "02", "03", "04"]
    assert await claim_ranked(store, slot, 99, 3) == ["05", "06", "07"]


async def test_an_entry_keeps_its_priority_until_it_is_given_another(store: Store, target: Target) -> None:
    slot = target.slot()
    await put_ranked(store, slot, ("a", 3, NOW - 5), ("b", 1, NOW - 5))
    waiting = [(e.id, e.priority) for e in await store.lanes.waiting(slot)]
    assert sorted(waiting) == [("a", 3), ("b", 1)]
    assert await claim_ranked(store, slot, 9) == ["b", "a"]
    assert await store.lanes.recover([(slot, 2)]) == [2]
    assert await claim_ranked(store, slot, 9, epoch=2) == ["b", "a"]
    again = LaneSettle(slot, "a", LaneVerdict.RETRY, 2, NOW - 1, b"", priority=0)
    dead = LaneSettle(slot, "b", LaneVerdict.DEAD, 2, 0, b"", "why")
    assert await settle(store, again, dead) == [True, True]
    await put_ranked(store, slot, ("c", 2, NOW - 9))
    assert await settle(store, LaneSettle(slot, "b", LaneVerdict.REPLAY, None, NOW, b"", priority=1)) == [True]
    assert await claim_ranked(store, slot, 9, epoch=2) == ["a", "b", "c"]


async def test_times_far_ahead_do_not_change_the_priority(store: Store, target: Target) -> None:
    slot = target.slot()
    await put_ranked(store, slot, ("far", 1, 1 << 51), ("farther", 2, 1 << 52), ("high", 0, 1 << 50))
    assert await claim_ranked(store, slot, 9) == []
    assert await claim_ranked(store, slot, 9, 1, 1, 1, now_ms=1 << 52) == ["high", "far", "farther"]
