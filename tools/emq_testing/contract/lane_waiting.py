"""`emq.storage.store.LaneStore.waiting` and `Verdict.RECALL`, sentence by sentence."""

from __future__ import annotations

import asyncio

from emq.storage.lane_store import LaneAdd, LaneClaim, LaneClaimed, LaneSettle, LaneState, LaneVerdict, WaitingEntry
from emq.storage.store import Store
from emq_testing.contract.lanes import NOW, add, claim
from emq_testing.contract.target import Target


async def ids(store: Store, slot: str, skip: int = 0, limit: int = 100) -> list[str]:
    return [entry.id for entry in await store.lanes.waiting(slot, skip, limit)]


def recall(slot: str, id_: str) -> LaneSettle:
    return LaneSettle(slot, id_, LaneVerdict.RECALL)


async def test_waiting_entries_come_in_order_of_due_time_and_id(store: Store, target: Target) -> None:
    slot = target.slot()
    await add(store, slot, ("b", NOW), ("later", NOW + 10**10), ("é", NOW), ("B", NOW), ("a", NOW), ("z", 5))
    assert await store.lanes.waiting(slot) == [
        WaitingEntry(id_, id_.encode(), due)
        for id_, due in (("z", 5), ("B", NOW), ("a", NOW), ("b", NOW), ("é", NOW), ("later", NOW + 10**10))
    ]


async def test_waiting_entries_are_paged_completely(store: Store, target: Target) -> None:
    slot = target.slot()
    await add(store, slot, *((f"{n:03d}", NOW + n // 3) for n in range(0, 100, 2)))
    await add(store, slot, *((f"{n:03d}", NOW + n // 3) for n in range(1, 100, 2)))
    await add(store, target.slot(1), ("elsewhere", NOW))
    pages = [await ids(store, slot, skip, 30) for skip in (0, 30, 60, 90, 120)]
    assert [len(page) for page in pages] == [30, 30, 30, 10, 0]
    assert [id_ for page in pages for id_ in page] == [f"{n:03d}" for n in range(100)]
    assert await ids(store, slot, 7, 0) == []


async def test_only_what_waits_is_waiting(store: Store, target: Target) -> None:
    slot = target.slot()
    assert await store.lanes.waiting(slot) == []
    await add(store, slot, ("retried", NOW - 2), ("prepared", NOW - 1), ("waits", NOW + 9))
    await store.lanes.add([LaneAdd(slot, "dead", b"", NOW, "why")])
    await claim(store, slot)
    await store.lanes.settle([LaneSettle(slot, "retried", LaneVerdict.RETRY, 1, NOW + 5, b"second")])
    assert await store.lanes.waiting(slot) == [
        WaitingEntry("retried", b"second", NOW + 5),
        WaitingEntry("waits", b"waits", NOW + 9),
    ]


async def test_what_is_recalled_is_gone(store: Store, target: Target) -> None:
    slot = target.slot()
    await add(store, slot, *((id_, NOW) for id_ in "abcd"))
    assert await store.lanes.settle([recall(slot, "c"), recall(slot, "a"), recall(slot, "x")]) == [True, True, False]
    assert await ids(store, slot) == ["b", "d"]
    assert await store.lanes.inspect([slot]) == [LaneState(2, 0, 0, NOW)]
    assert await store.lanes.settle([recall(slot, "c")]) == [False]
    assert (await claim(store, slot)).entries == [("b", b"b"), ("d", b"d")]


async def test_the_next_due_time_follows_a_recall(store: Store, target: Target) -> None:
    slot = target.slot()
    await add(store, slot, ("first", NOW + 1), ("second", NOW + 5))
    await store.lanes.settle([recall(slot, "first")])
    assert (await claim(store, slot)).next_due_ms == NOW + 5
    await store.lanes.settle([recall(slot, "second")])
    assert (await claim(store, slot)).next_due_ms is None


async def test_what_stays_keeps_its_order_after_recalls(store: Store, target: Target) -> None:
    slot = target.slot()
    await add(store, slot, *((f"{n}", NOW - 100 + n * 37 % 31) for n in range(31)))
    await store.lanes.settle([recall(slot, f"{n}") for n in range(0, 31, 3)])
    left = sorted((n * 37 % 31, f"{n}") for n in range(31) if n % 3)
    for start in range(0, len(left), 4):
        (claimed,) = await store.lanes.claim([LaneClaim(slot, 4, 1)], NOW)
        assert isinstance(claimed, LaneClaimed)
        assert [id_ for id_, _ in claimed.entries] == [id_ for _, id_ in left[start : start + 4]]


async def test_one_call_may_retry_an_entry_and_take_it_back(store: Store, target: Target) -> None:
    slot = target.slot()
    await add(store, slot, ("x", NOW))
    await claim(store, slot)
    verdicts = [
        LaneSettle(slot, "x", LaneVerdict.RETRY, 1, NOW + 5, b"2"),
        recall(slot, "x"),
        LaneSettle(slot, "x", LaneVerdict.ACK, 1),
    ]
    assert await store.lanes.settle(verdicts) == [True, True, False]
    assert await store.lanes.inspect([slot]) == [LaneState(0, 0, 0, None)]


async def test_recalls_of_many_lanes_are_answered_in_the_order_asked(store: Store, target: Target) -> None:
    slots = [target.slot(group) for group in range(50)]
    await store.lanes.add([LaneAdd(slot, "x", b"", NOW) for slot in slots[::2]])
    answers = await store.lanes.settle([recall(slot, "x") for slot in slots])
    assert answers == [n % 2 == 0 for n in range(50)]


async def test_an_entry_is_either_recalled_or_claimed_never_both(store: Store, other: Store, target: Target) -> None:
    slot = target.slot()
    await add(store, slot, *((f"{n}", NOW) for n in range(40)))
    taken: set[str] = set()
    recalled: set[str] = set()

    async def take() -> None:
        (answer,) = await store.lanes.claim([LaneClaim(slot, 5, 1)], NOW)
        assert isinstance(answer, LaneClaimed)
        taken.update(id_ for id_, _ in answer.entries)

    async def take_back(id_: str) -> None:
        if (await other.lanes.settle([recall(slot, id_)]))[0] is True:
            recalled.add(id_)

    await asyncio.gather(
        *(one for n in range(10) for one in (take_back(f"{n * 4}"), take(), take_back(f"{n * 4 + 1}")))
    )
    assert taken
    assert taken.isdisjoint(recalled)
    assert taken | recalled | set(await ids(store, slot)) == {f"{n}" for n in range(40)}
