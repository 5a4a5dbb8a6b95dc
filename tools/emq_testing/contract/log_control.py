"""`emq.storage.store.LogStore`, sentence by sentence: fences, seals, and the length of a group."""

from __future__ import annotations

import asyncio

from emq.runtime import errors
from emq.storage.answers import served
from emq.storage.log_store import Batch, Put, Read, Trim
from emq.storage.store import Store
from emq_testing.contract.target import NEW, OLD, Can, Needs, Target, ends, put_one, read_all, read_one


async def test_a_higher_epoch_fences_off_reads_and_trims_of_lower_ones(store: Store, target: Target) -> None:
    queue = target.queue()
    offsets = await put_one(store.log, queue, b"a", b"b")
    await read_one(store.log, queue, offsets[0], epoch=NEW)
    (stale,) = await store.log.read([Read(queue, offsets[0], 10, OLD)])
    assert isinstance(stale, errors.NotOwner)
    (refused,) = await store.log.trim([Trim(queue, offsets[1], OLD)])
    assert isinstance(refused, errors.NotOwner)
    assert (await store.log.bounds([queue]))[0].head == store.log.first_offset
    assert list((await read_one(store.log, queue, offsets[0], epoch=NEW)).bodies) == [b"a", b"b"]
    assert await store.log.trim([Trim(queue, offsets[1], NEW)]) == [False]


async def test_a_fence_guards_all_priorities_of_its_group_and_no_other_group(store: Store, target: Target) -> None:
    await read_one(store.log, target.queue("high", 0), 1, epoch=5)
    low, elsewhere = await store.log.read(
        [Read(target.queue("low", 0), 1, 10, 4), Read(target.queue("high", 1), 1, 10, 4)]
    )
    assert isinstance(low, errors.NotOwner)
    assert isinstance(elsewhere, Batch)


async def test_a_stale_read_does_not_fail_its_neighbours_in_the_call(store: Store, target: Target) -> None:
    mine, lost, also_mine = (target.queue("high", group) for group in range(3))
    await put_one(store.log, mine, b"a")
    await put_one(store.log, also_mine, b"b")
    await read_one(store.log, lost, 1, epoch=9)
    answers = await store.log.read([Read(q, store.log.first_offset, 10, 3) for q in (mine, lost, also_mine)])
    assert [b.bodies[0] if isinstance(b, Batch) else type(b) for b in answers] == [b"a", errors.NotOwner, b"b"]
    trimmed = await store.log.trim([Trim(lost, 2, 3), Trim(mine, 2, 3)])
    assert isinstance(trimmed[0], errors.NotOwner)
    assert trimmed[1] is False


async def test_administration_trims_without_an_epoch(store: Store, target: Target) -> None:
    (offset,) = await put_one(store.log, target.queue(), b"a")
    await read_one(store.log, target.queue(), offset, epoch=9)
    assert await store.log.trim([Trim(target.queue(), offset + 1, None)]) == [False]
    assert await ends(store.log, [target.queue()]) == [(offset + 1, offset + 1)]


async def test_an_observer_reads_under_any_fence_and_fences_nobody_off(store: Store, target: Target) -> None:
    queue, owned, unused = target.queue(), target.queue("low"), target.queue("low", 1)
    offsets = await put_one(store.log, queue, b"a", b"b")
    await put_one(store.log, owned, b"c")
    await read_one(store.log, queue, offsets[0], epoch=5)
    first = store.log.first_offset
    batches = await store.log.read([Read(owned, first, 10, 5), Read(queue, first, 10, None), Read(owned, first, 9, 4)])
    assert [list(b.bodies) for b in batches if isinstance(b, Batch)] == [[b"c"], [b"a", b"b"]]
    assert isinstance(batches[2], errors.NotOwner)
    assert list((await read_one(store.log, queue, offsets[0], epoch=5)).bodies) == [b"a", b"b"]
    (empty,) = await store.log.read([Read(unused, 1, 10, None)])
    assert isinstance(empty, Batch)
    assert not empty.bodies
    assert (await read_one(store.log, unused, 1, epoch=0)).next == 1


async def test_a_fence_holds_for_all_instances(store: Store, other: Store, target: Target, needs: Needs) -> None:
    needs(Can.SHARE_CONTROL)
    (offset,) = await put_one(store.log, target.queue(), b"a")
    await read_one(store.log, target.queue(), offset, epoch=2)
    await read_one(other.log, target.queue(), offset, epoch=3)
    (stale,) = await store.log.read([Read(target.queue(), offset, 10, 2)])
    assert isinstance(stale, errors.NotOwner)
    (refused,) = await store.log.trim([Trim(target.queue(), offset + 1, 2)])
    assert isinstance(refused, errors.NotOwner)
    assert await other.log.get(target.queue(), offset) == b"a"


async def test_a_trim_holds_for_all_instances(store: Store, other: Store, target: Target, needs: Needs) -> None:
    needs(Can.SHARE_CONTROL)
    offsets = await put_one(store.log, target.queue(), b"a", b"b")
    await store.log.trim([Trim(target.queue(), offsets[1], 1)])
    assert await ends(other.log, [target.queue()]) == [(offsets[1], offsets[1] + 1)]
    assert await other.log.get(target.queue(), offsets[0]) is None


async def test_an_empty_queue_is_sealed_and_refuses_puts(store: Store, target: Target) -> None:
    queue, neighbour = target.queue("high"), target.queue("low")
    (offset,) = await put_one(store.log, queue, b"a")
    assert await store.log.trim([Trim(queue, offset + 1, 1, seal=True)]) == [True]
    refused, taken = await store.log.put([Put(queue, [b"b"]), Put(neighbour, [b"c"])])
    assert isinstance(refused, errors.QueueSealed)
    assert not isinstance(taken, Exception)
    assert await ends(store.log, [queue]) == [(offset + 1, offset + 1)]
    assert [body for _, body in await read_all(store.log, neighbour, 1)] == [b"c"]


async def test_a_queue_with_messages_is_not_sealed(store: Store, target: Target) -> None:
    offsets = await put_one(store.log, target.queue(), b"a", b"b")
    assert await store.log.trim([Trim(target.queue(), offsets[1], 1, seal=True)]) == [False]
    await put_one(store.log, target.queue(), b"c")
    assert [body for _, body in await read_all(store.log, target.queue(), 2)] == [b"b", b"c"]


async def test_a_seal_stays_until_it_is_lifted(store: Store, target: Target) -> None:
    queue, first = target.queue(), store.log.first_offset
    seals = [True, True, None, False, None]
    answers = [(await store.log.trim([Trim(queue, first, 1, seal=seal)]))[0] for seal in seals]
    assert answers == [True, True, True, False, False]
    await put_one(store.log, queue, b"a")


async def test_a_stale_owner_neither_seals_nor_lifts_a_seal(store: Store, target: Target) -> None:
    queue, first = target.queue(), store.log.first_offset
    await read_one(store.log, queue, first, epoch=7)
    (refused,) = await store.log.trim([Trim(queue, first, 6, seal=True)])
    assert isinstance(refused, errors.NotOwner)
    await put_one(store.log, queue, b"a")
    assert await store.log.trim([Trim(queue, first + 10, 7, seal=True)]) == [True]
    (refused,) = await store.log.trim([Trim(queue, first, 6, seal=False)])
    assert isinstance(refused, errors.NotOwner)
    assert await store.log.trim([Trim(queue, first, None)]) == [True]


async def test_a_put_and_a_seal_that_race_never_both_succeed(
    store: Store, other: Store, target: Target, needs: Needs
) -> None:
    needs(Can.ATOMIC)
    for group in range(25):
        queue = target.queue("mid", group)
        calls = [
            store.log.put([Put(queue, [b"a"])]),
            other.log.trim([Trim(queue, store.log.first_offset, 1, seal=True)]),
        ]
        if group % 2:
            trimmed, put = await asyncio.gather(*reversed(calls))
        else:
            put, trimmed = await asyncio.gather(*calls)
        assert trimmed[0] is isinstance(put[0], errors.QueueSealed)
        (bounds,) = await store.log.bounds([queue])
        assert bounds.tail - bounds.head == (0 if trimmed[0] else 1)


async def test_a_seal_holds_for_all_instances(store: Store, other: Store, target: Target, needs: Needs) -> None:
    needs(Can.SHARE_CONTROL)
    assert await store.log.trim([Trim(target.queue(), store.log.first_offset, 1, seal=True)]) == [True]
    (refused,) = await other.log.put([Put(target.queue(), [b"a"])])
    assert isinstance(refused, errors.QueueSealed)


async def test_a_queue_refuses_keyed_puts_of_lower_layouts_than_it_was_raised_to(store: Store, target: Target) -> None:
    queue, neighbour, first = target.queue(), target.queue("mid", 1), store.log.first_offset
    await put_one(store.log, queue, b"before")
    assert await store.log.trim([Trim(queue, first, 1, layout=2)]) == [False]
    answers = await store.log.put(
        [
            Put(queue, [b"0"], layout=0),
            Put(queue, [b"1"], layout=1),
            Put(neighbour, [b"elsewhere"], layout=1),
            Put(queue, [b"2"], layout=2),
            Put(queue, [b"3"], layout=3),
            Put(queue, [b"no key"]),
        ]
    )
    assert [isinstance(answer, errors.QueueSealed) for answer in answers] == [True, True, False, False, False, False]
    assert [body for _, body in await read_all(store.log, queue, 1)] == [b"before", b"2", b"3", b"no key"]


async def test_a_layout_is_never_lowered_and_outlives_a_seal(store: Store, target: Target) -> None:
    queue, first = target.queue(), store.log.first_offset
    for trim in (
        Trim(queue, first, 5, layout=4),
        Trim(queue, first, 5, layout=3),
        Trim(queue, first, 5, seal=True),
        Trim(queue, first, 5, seal=False),
        Trim(queue, first, 5),
    ):
        await store.log.trim([trim])
    refused, taken = await store.log.put([Put(queue, [b"a"], layout=3), Put(queue, [b"b"], layout=4)])
    assert isinstance(refused, errors.QueueSealed)
    assert not isinstance(taken, Exception)


async def test_a_refusal_tells_the_layout_to_which_the_queue_was_raised(store: Store, target: Target) -> None:
    raised, sealed, plain = [target.queue(priority) for priority in ("high", "mid", "low")]
    await store.log.trim([Trim(raised, 0, None, layout=3_000_000_000), Trim(sealed, 0, None, seal=True, layout=4)])
    await store.log.trim([Trim(plain, 0, None, seal=True)])
    puts = [Put(raised, [b"a"], layout=3), Put(sealed, [b"b"]), Put(plain, [b"c"], layout=9)]
    answers = await store.log.put(puts)
    assert [answer.layout for answer in answers if isinstance(answer, errors.QueueSealed)] == [3_000_000_000, 4, 0]


async def test_a_stale_owner_raises_no_layout(store: Store, target: Target) -> None:
    queue, first = target.queue(), store.log.first_offset
    await read_one(store.log, queue, first, epoch=7)
    (refused,) = await store.log.trim([Trim(queue, first, 6, layout=1)])
    assert isinstance(refused, errors.NotOwner)
    (taken,) = await store.log.put([Put(queue, [b"a"], layout=0)])
    assert not isinstance(taken, Exception)


async def test_a_layout_holds_for_all_instances(store: Store, other: Store, target: Target, needs: Needs) -> None:
    needs(Can.SHARE_CONTROL)
    await store.log.trim([Trim(target.queue(), store.log.first_offset, None, layout=1)])
    (refused,) = await other.log.put([Put(target.queue(), [b"a"], layout=0)])
    assert isinstance(refused, errors.QueueSealed)


async def test_max_length_counts_all_priorities_of_the_group(store: Store, target: Target, needs: Needs) -> None:
    needs(Can.MAX_LENGTH)
    high, low = siblings = [target.queue("high"), target.queue("low")]
    answers = await store.log.put(
        [
            Put(high, [b"1", b"2", b"3"], 5, False, siblings),
            Put(low, [b"4", b"5", b"6"], 5, False, siblings),
            Put(low, [b"7", b"8"], 5, False, siblings),
            Put(high, [b"9"], 5, False, siblings),
            Put(target.queue("high", 1), [b"0"], 5, False, [target.queue("high", 1), target.queue("low", 1)]),
        ]
    )
    assert [isinstance(answer, errors.TopicFull) for answer in answers] == [False, True, False, True, False]
    assert [body for _, body in await read_all(store.log, high, 3)] == [b"1", b"2", b"3"]
    assert [body for _, body in await read_all(store.log, low, 2)] == [b"7", b"8"]


async def test_a_trim_makes_room_under_max_length(store: Store, target: Target, needs: Needs) -> None:
    needs(Can.MAX_LENGTH)
    queue = target.queue()
    first = await put_one(store.log, queue, b"1", b"2")
    full = Put(queue, [b"3"], 2, False, [queue])
    assert isinstance((await store.log.put([full]))[0], errors.TopicFull)
    await store.log.trim([Trim(queue, first[1], 1)])
    assert not isinstance((await store.log.put([full]))[0], Exception)
    assert [body for _, body in await read_all(store.log, queue, 2)] == [b"2", b"3"]


async def test_drop_oldest_drops_of_its_own_queue_only(store: Store, target: Target, needs: Needs) -> None:
    needs(Can.MAX_LENGTH)
    high, low = siblings = [target.queue("high"), target.queue("low")]
    await put_one(store.log, high, b"h1", b"h2")
    old = await put_one(store.log, low, b"l1", b"l2", b"l3")
    (answer,) = await store.log.put([Put(low, [b"l4", b"l5"], 5, True, siblings)])
    assert not isinstance(answer, Exception)
    assert list(answer) == [old[2] + 1, old[2] + 2]
    assert [body for _, body in await read_all(store.log, high, 2)] == [b"h1", b"h2"]
    assert await read_all(store.log, low, 3) == [(old[2], b"l3"), (answer[0], b"l4"), (answer[1], b"l5")]
    assert await store.log.get(low, old[1]) is None


async def test_max_length_holds_when_instances_put_at_once(
    store: Store, other: Store, target: Target, needs: Needs
) -> None:
    needs(Can.MAX_LENGTH)
    siblings = [target.queue("high"), target.queue("low")]
    calls = [
        instance.log.put([Put(queue, [b"x", b"y"], 11, False, siblings)])
        for _ in range(4)
        for instance in (store, other)
        for queue in siblings
    ]
    answers = [answer for (answer,) in await asyncio.gather(*calls)]
    assert sum(not isinstance(answer, Exception) for answer in answers) == 5
    assert sum(bound.tail - bound.head for bound in served(await store.log.bounds(siblings))) == 10
