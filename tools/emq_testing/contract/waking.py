"""`emq.storage.store.Store.watch`, and what arms a queue or slot for it."""

from __future__ import annotations

import asyncio

import pytest

from emq.runtime import errors
from emq.runtime.environment import Environment
from emq.storage.lane_store import LaneAdd, LaneClaim, LaneClaimed, LaneSettle, LaneVerdict
from emq.storage.log_store import Batch, Put, Read
from emq.storage.slot_store import Keep, Slot, SlotAdd, SlotClaim, SlotClaimed, SlotKind
from emq.storage.store import Store
from emq_testing.contract.target import Can, Needs, Target, Watcher, optional, put_one, read_one, settle_down, watching

NOW = 1_700_000_000_000


async def exhaust(store: Store, *queues: str, epoch: int = 1) -> None:
    """Read until the queues are armed."""
    for queue in queues:
        batch = await read_one(store.log, queue, store.log.first_offset, epoch=epoch)
        while not batch.exhausted:
            batch = await read_one(store.log, queue, batch.next, epoch=epoch)


async def arm_slot(store: Store, slot: Slot, epoch: int = 1) -> None:
    (claimed,) = await store.sorted.claim([SlotClaim(slot, 1, epoch, NOW)], NOW)
    assert isinstance(claimed, SlotClaimed)


async def arm(store: Store, slot: str, epoch: int = 1, limit: int = 1) -> LaneClaimed:
    (claimed,) = await store.lanes.claim([LaneClaim(slot, limit, epoch)], NOW)
    assert isinstance(claimed, LaneClaimed)
    return claimed


async def test_a_put_to_an_exhausted_queue_wakes(store: Store, target: Target) -> None:
    async with watching(store, target.queue("high", 9)) as watcher:
        await exhaust(store, target.queue())
        await put_one(store.log, target.queue(), b"a")
        await watcher.wakes(target.queue())


async def test_a_read_and_a_put_that_race_leave_no_message_unseen(store: Store, other: Store, target: Target) -> None:
    async with watching(store, target.queue("high", 99)) as watcher:
        for group in range(20):
            queue = target.queue("mid", group)
            calls = [read_one(store.log, queue, store.log.first_offset), put_one(other.log, queue, b"a")]
            done = await asyncio.gather(*(calls if group % 2 else calls[::-1]))
            batch = next(answer for answer in done if isinstance(answer, Batch))
            if not batch.bodies:
                await watcher.wakes(queue)


async def test_one_call_arms_and_wakes_many_queues(store: Store, target: Target) -> None:
    queues = [target.queue("low", group) for group in range(500)]
    async with watching(store, target.queue("high", 999)) as watcher:
        await store.log.read([Read(queue, store.log.first_offset, 10, 1) for queue in queues])
        await store.log.put([Put(queue, [b"a"]) for queue in queues[:300]])
        await watcher.wakes(*queues[:300])
        await settle_down(store, watcher, target.queue("high", 999))
        assert sorted(watcher.woken) == sorted(queues[:300])


async def test_a_store_tells_which_queues_and_lanes_are_not_armed(store: Store, other: Store, target: Target) -> None:
    unarmed = optional(store, "unarmed")
    armed, woken, of_another, unread = (target.queue("low", group) for group in range(4))
    await exhaust(store, armed, woken)
    await exhaust(other, of_another)
    await put_one(store.log, woken, b"a")
    empty, later, due, elsewhere, unknown = (target.slot(group) for group in range(10, 15))
    await store.lanes.add([LaneAdd(later, "a", b"", NOW + 60_000), LaneAdd(due, "a", b"", NOW + 1_000)])
    for lane in (empty, later, due):
        await arm(store, lane)
    await arm(other, elsewhere)
    names = [armed, woken, of_another, unread, empty, later, due, elsewhere, unknown]
    found = await unarmed(names, NOW + 2_000)
    assert sorted(found) == sorted([woken, of_another, unread, due, elsewhere, unknown])
    assert await unarmed([armed, empty], NOW + 2_000) == []


async def test_a_queue_wakes_once_until_it_is_armed_again(store: Store, target: Target) -> None:
    canary = target.queue("high", 9)
    async with watching(store, canary) as watcher:
        await exhaust(store, target.queue())
        await put_one(store.log, target.queue(), b"a")
        await watcher.wakes(target.queue())
        for body in (b"b", b"c"):
            await put_one(store.log, target.queue(), body)
        await settle_down(store, watcher, canary)
        assert watcher.woken == [target.queue()]
        watcher.forget()
        await exhaust(store, target.queue())
        await put_one(store.log, target.queue(), b"d")
        await watcher.wakes(target.queue())


async def test_what_was_not_armed_does_not_wake(store: Store, target: Target) -> None:
    canary = target.queue("high", 9)
    unread, looked_at, partly_read = (target.queue(priority) for priority in ("high", "mid", "low"))
    async with watching(store, canary) as watcher:
        await store.log.get(looked_at, store.log.first_offset)
        await store.log.bounds([looked_at])
        offsets = await put_one(store.log, partly_read, b"a", b"b", b"c")
        assert not (await read_one(store.log, partly_read, offsets[0], limit=1)).exhausted
        for queue in (unread, looked_at, partly_read):
            await put_one(store.log, queue, b"x")
        await settle_down(store, watcher, canary)
        assert watcher.woken == []


async def test_an_observer_neither_arms_nor_takes_the_wake_up_of_the_owner(
    store: Store, other: Store, target: Target
) -> None:
    armed, unarmed, canary = target.queue("high"), target.queue("low"), target.queue("high", 9)
    async with watching(store, canary) as watcher:
        await exhaust(store, armed)
        await other.log.read([Read(queue, store.log.first_offset, 10, None) for queue in (armed, unarmed)])
        await store.log.read([Read(unarmed, store.log.first_offset, 10, None)])
        await put_one(other.log, unarmed, b"a")
        await put_one(other.log, armed, b"b")
        await watcher.wakes(armed)
        await settle_down(store, watcher, canary)
        assert unarmed not in watcher.woken


async def test_a_read_cut_short_by_the_byte_limit_does_not_arm(store: Store, target: Target) -> None:
    canary = target.queue("high", 9)
    first, second = target.queue("high"), target.queue("low")
    await store.log.put([Put(queue, [b"x" * 100, b"y" * 100]) for queue in (first, second)])
    async with watching(store, canary) as watcher:
        start = store.log.first_offset
        batches = await store.log.read([Read(queue, start, 10, 1) for queue in (first, second)], max_bytes=100)
        assert [batch.exhausted for batch in batches if isinstance(batch, Batch)] == [False, False]
        await store.log.put([Put(queue, [b"z"]) for queue in (first, second)])
        await settle_down(store, watcher, canary)
        assert watcher.woken == []


async def test_what_woke_while_nobody_watched_is_told_to_the_next_watcher(store: Store, target: Target) -> None:
    slot = target.sorted_slot(SlotKind.PRIORITY)
    await exhaust(store, target.queue())
    await arm(store, target.slot(1))
    await arm_slot(store, slot)
    await put_one(store.log, target.queue(), b"a")
    await store.lanes.add([LaneAdd(target.slot(1), "x", b"", NOW)])
    await store.sorted.add([SlotAdd(slot, b"x", 100, Keep.LAST)])
    watcher = Watcher(store)
    task = asyncio.create_task(watcher.run())
    try:
        told = {target.queue(), target.slot(1), slot.address}
        await watcher.until(lambda: watcher.sweeps > 0 or told <= set(watcher.woken), "a sweep or the names")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_watcher_may_be_cancelled_and_followed_by_another(store: Store, target: Target) -> None:
    for _ in range(3):
        async with watching(store, target.queue("high", 9)) as watcher:
            await exhaust(store, target.queue())
            await put_one(store.log, target.queue(), b"a")
            await watcher.wakes(target.queue())


async def test_the_wake_up_goes_to_the_instance_that_armed_last(
    store: Store, other: Store, target: Target, needs: Needs
) -> None:
    needs(Can.DIRECT_WAKEUPS)
    one, two = target.queue("high", 8), target.queue("high", 9)
    slot = target.sorted_slot(SlotKind.PRIORITY)
    async with watching(store, one) as left, watching(other, two) as right:
        await exhaust(store, target.queue(), epoch=1)
        await arm(store, target.slot(1), epoch=1)
        await arm_slot(store, slot, epoch=1)
        await exhaust(other, target.queue(), epoch=2)
        await arm(other, target.slot(1), epoch=2)
        await arm_slot(other, slot, epoch=2)
        # What a stale owner asks is refused, and takes the wake-up from nobody.
        (stale,) = await store.log.read([Read(target.queue(), store.log.first_offset, 10, 1)])
        assert isinstance(stale, errors.NotOwner)
        (refused,) = await store.lanes.claim([LaneClaim(target.slot(1), 1, 1)], NOW)
        assert isinstance(refused, errors.NotOwner)
        (stale_claim,) = await store.sorted.claim([SlotClaim(slot, 1, 1, NOW)], NOW)
        assert isinstance(stale_claim, errors.NotOwner)
        await put_one(store.log, target.queue(), b"a")
        await store.lanes.add([LaneAdd(target.slot(1), "x", b"", NOW)])
        await store.sorted.add([SlotAdd(slot, b"x", 100, Keep.LAST)])
        await right.wakes(target.queue(), target.slot(1), slot.address)
        await settle_down(store, left, one)
        assert left.woken == []


async def test_the_environments_do_not_wake_each_other(store: Store, opened: Target, needs: Needs) -> None:
    needs(Can.MANY_INSTANCES)
    sandbox = await opened.open(Environment.SANDBOX)
    canary, slot = opened.queue("high", 9), opened.sorted_slot(SlotKind.PRIORITY)
    async with watching(store, canary) as watcher:
        await exhaust(store, opened.queue())
        await arm(store, opened.slot(1))
        await arm_slot(store, slot)
        await put_one(sandbox.log, opened.queue(), b"a")
        await sandbox.lanes.add([LaneAdd(opened.slot(1), "x", b"", NOW)])
        await sandbox.sorted.add([SlotAdd(slot, b"x", 100, Keep.LAST)])
        await settle_down(store, watcher, canary)
        assert watcher.woken == []


async def test_closing_ends_the_watcher(store: Store, target: Target) -> None:
    async with watching(store, target.queue("high", 9)) as watcher:
        await store.close()
        await watcher.until(lambda: watcher.ended, "the watcher's end")


async def test_a_slot_wakes_for_an_earlier_due_time_only(store: Store, target: Target) -> None:
    canary = target.queue("high", 9)
    async with watching(store, canary) as watcher:
        await store.lanes.add([LaneAdd(target.slot(1), "first", b"", NOW + 5000)])
        assert (await arm(store, target.slot(1))).next_due_ms == NOW + 5000
        await store.lanes.add([LaneAdd(target.slot(1), "later", b"", NOW + 6000)])
        await store.lanes.add([LaneAdd(target.slot(1), "dead", b"", NOW, "at once")])
        await settle_down(store, watcher, canary)
        assert watcher.woken == []
        await store.lanes.add([LaneAdd(target.slot(1), "earlier", b"", NOW + 4999)])
        await watcher.wakes(target.slot(1))


async def test_an_empty_slot_wakes_for_whatever_comes(store: Store, target: Target) -> None:
    async with watching(store, target.queue("high", 9)) as watcher:
        assert await arm(store, target.slot(1)) == LaneClaimed([], None, is_empty=True)
        await store.lanes.add([LaneAdd(target.slot(1), "x", b"", NOW + 10**9)])
        await watcher.wakes(target.slot(1))


@pytest.mark.parametrize("verdict", [LaneVerdict.RETRY, LaneVerdict.REPLAY])
async def test_an_entry_that_returns_wakes_its_slot(store: Store, target: Target, verdict: LaneVerdict) -> None:
    slot = target.slot(1)
    async with watching(store, target.queue("high", 9)) as watcher:
        await store.lanes.add([LaneAdd(slot, "x", b"", NOW, "dead" if verdict is LaneVerdict.REPLAY else None)])
        await arm(store, slot)
        epoch = None if verdict is LaneVerdict.REPLAY else 1
        assert await store.lanes.settle([LaneSettle(slot, "x", verdict, epoch, NOW + 1000, b"")]) == [True]
        await watcher.wakes(slot)


async def test_a_slot_that_is_not_armed_does_not_wake(store: Store, target: Target) -> None:
    canary = target.queue("high", 9)
    async with watching(store, canary) as watcher:
        await store.lanes.add([LaneAdd(target.slot(1), "x", b"", NOW)])
        await store.lanes.inspect([target.slot(1)])
        await store.lanes.dead(target.slot(1))
        await store.lanes.add([LaneAdd(target.slot(1), "y", b"", NOW - 1)])
        await settle_down(store, watcher, canary)
        assert watcher.woken == []
