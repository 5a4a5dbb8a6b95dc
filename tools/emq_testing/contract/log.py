"""`emq.storage.store.LogStore`, sentence by sentence: appending, reading, bounds, trimming."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from emq.runtime import errors
from emq.runtime.environment import Environment
from emq.storage.durability import Durability
from emq.storage.lane_store import LaneAdd
from emq.storage.log_store import Batch, Put, Read, Trim
from emq.storage.slot_store import Keep, SlotAdd, SlotKind
from emq.storage.store import Store
from emq_testing.contract.target import Can, Needs, Target, ends, put_one, read_all, read_one

MANY = 2000


async def test_offsets_ascend_over_puts_and_within_one(store: Store, target: Target) -> None:
    offsets = [*await put_one(store.log, target.queue(), b"a", b"b"), *await put_one(store.log, target.queue(), b"c")]
    assert len(offsets) == 3
    assert offsets == sorted(set(offsets))
    if Can.DENSE in target.can:
        assert offsets == list(range(offsets[0], offsets[0] + 3))


async def test_answers_come_in_the_order_asked_also_with_a_queue_named_twice(store: Store, target: Target) -> None:
    one, two = target.queue("high"), target.queue("low")
    answers = await store.log.put([Put(two, [b"1"]), Put(one, [b"2", b"3"]), Put(two, [b"4"])])
    assert [len(answer) for answer in answers if not isinstance(answer, Exception)] == [1, 2, 1]
    assert [body for _, body in await read_all(store.log, two, 2)] == [b"1", b"4"]
    for queue, answer, bodies in (
        (two, answers[0], [b"1"]),
        (one, answers[1], [b"2", b"3"]),
        (two, answers[2], [b"4"]),
    ):
        assert not isinstance(answer, Exception)
        assert [await store.log.get(queue, offset) for offset in answer] == bodies


async def test_any_bytes_come_back_as_they_went_in(store: Store, target: Target) -> None:
    every = bytes(range(256))
    bodies = [b"", every, every[::-1], b"\0", b"'; --", "ü€😀".encode(), b"x" * (1 << 20), b""]
    offsets = await put_one(store.log, target.queue(), *bodies)
    assert await read_all(store.log, target.queue(), len(bodies)) == list(zip(offsets, bodies, strict=True))
    assert [await store.log.get(target.queue(), offset) for offset in offsets] == bodies


async def test_a_put_may_hold_thousands_of_bodies(store: Store, target: Target) -> None:
    bodies = [b"%d" % i for i in range(MANY)]
    await put_one(store.log, target.queue(), *bodies)
    assert [body for _, body in await read_all(store.log, target.queue(), MANY, limit=MANY)] == bodies


async def test_one_call_may_name_thousands_of_queues(store: Store, target: Target) -> None:
    queues = [target.queue("mid", group) for group in range(MANY)]
    answers = await store.log.put([Put(queue, [queue.encode()]) for queue in queues])
    starts = [answer[0] for answer in answers if not isinstance(answer, Exception)]
    assert len(starts) == MANY
    batches = await store.log.read([Read(q, s, 10, 1) for q, s in zip(queues, starts, strict=True)], 64 << 20)
    assert [tuple(b.bodies) for b in batches if isinstance(b, Batch)] == [(queue.encode(),) for queue in queues]
    bounds = await store.log.bounds(queues)
    assert [bound.tail for bound in bounds] == [start + 1 for start in starts]
    assert await store.log.trim([Trim(q, b.tail, 1) for q, b in zip(queues, bounds, strict=True)]) == [False] * MANY
    assert all(bound.head == bound.tail for bound in await store.log.bounds(queues))


@pytest.mark.parametrize("durability", Durability)
async def test_every_durability_is_taken_in_every_part(
    store: Store, target: Target, durability: Durability, needs: Needs
) -> None:
    if durability is Durability.REPLICATED:
        needs(Can.REPLICATE)
    (answer,) = await store.log.put([Put(target.queue(), [b"a"])], durability)
    assert not isinstance(answer, Exception)
    assert await store.log.get(target.queue(), answer[0]) == b"a"
    assert await store.lanes.add([LaneAdd(target.slot(), "a", b"", 0)], durability) == [True]
    member = SlotAdd(target.sorted_slot(SlotKind.PRIORITY), b"x", 17, Keep.LAST)
    assert await store.sorted.add([member], durability) == [True]


async def test_empty_calls_answer_nothing_in_every_part(store: Store) -> None:
    log, lanes, slots = store.log, store.lanes, store.sorted
    assert [*await log.put([]), *await log.read([]), *await log.bounds([]), *await log.trim([])] == []
    assert [*await lanes.add([]), *await lanes.claim([], 1), *await lanes.settle([])] == []
    assert [*await lanes.recover([]), *await lanes.inspect([])] == []
    assert [*await slots.add([]), *await slots.claim([], 1), *await slots.settle([])] == []
    assert [*await slots.recover([], 1), *await slots.inspect([], 1)] == []


async def test_get_finds_nothing_where_nothing_is(store: Store, target: Target) -> None:
    assert await store.log.get(target.queue(), store.log.first_offset) is None
    first, second = await put_one(store.log, target.queue(), b"a", b"b")
    assert await store.log.get(target.queue(), second + 1) is None
    await store.log.trim([Trim(target.queue(), second, 1)])
    assert await store.log.get(target.queue(), first) is None
    assert await store.log.get(target.queue(), second) == b"b"


async def test_a_read_keeps_to_its_start_and_limit(store: Store, target: Target) -> None:
    offsets = await put_one(store.log, target.queue(), *(b"%d" % i for i in range(6)))
    batch = await read_one(store.log, target.queue(), offsets[2], limit=3)
    assert list(batch.offsets) == list(offsets[2:5])
    assert list(batch.bodies) == [b"2", b"3", b"4"]
    assert batch.next == offsets[4] + 1
    assert not batch.exhausted


async def test_a_read_that_reaches_the_tail_says_so(store: Store, target: Target) -> None:
    empty = await read_one(store.log, target.queue(), store.log.first_offset)
    assert (list(empty.offsets), list(empty.bodies), empty.next, empty.exhausted) == (
        [],
        [],
        store.log.first_offset,
        True,
    )
    offsets = await put_one(store.log, target.queue(), b"a", b"b")
    batch = await read_one(store.log, target.queue(), offsets[0], limit=3)
    assert (list(batch.bodies), batch.next, batch.exhausted) == ([b"a", b"b"], offsets[1] + 1, True)
    again = await read_one(store.log, target.queue(), batch.next)
    assert (list(again.bodies), again.next, again.exhausted) == ([], batch.next, True)


async def test_offsets_without_holes_are_a_range(store: Store, target: Target, needs: Needs) -> None:
    needs(Can.DENSE)
    await put_one(store.log, target.queue(), b"a", b"b")
    batch = await read_one(store.log, target.queue(), store.log.first_offset)
    assert isinstance(batch.offsets, range)


async def test_a_read_from_below_the_head_begins_at_the_head(store: Store, target: Target) -> None:
    offsets = await put_one(store.log, target.queue(), b"a", b"b", b"c")
    await store.log.trim([Trim(target.queue(), offsets[1], 1)])
    batch = await read_one(store.log, target.queue(), offsets[0])
    assert (list(batch.offsets), list(batch.bodies)) == (list(offsets[1:]), [b"b", b"c"])


async def test_reads_stop_at_the_byte_limit_and_lose_nothing(store: Store, target: Target) -> None:
    queues = [target.queue("high"), target.queue("mid"), target.queue("low")]
    for queue in queues:
        await put_one(store.log, queue, *(bytes([i]) * 100 for i in range(5)))
    starts = dict.fromkeys(queues, store.log.first_offset)
    found: dict[str, list[bytes]] = {queue: [] for queue in queues}
    for _ in range(400):
        batches = await store.log.read([Read(q, starts[q], 100, 1) for q in queues], max_bytes=250)
        gathered = 0
        for queue, batch in zip(queues, batches, strict=True):
            assert isinstance(batch, Batch)
            found[queue] += batch.bodies
            starts[queue] = batch.next
            gathered += sum(map(len, batch.bodies))
            assert not (batch.exhausted and Can.DENSE in target.can) or len(found[queue]) == 5
        assert gathered <= 350
        if all(len(bodies) == 5 for bodies in found.values()):
            break
        await asyncio.sleep(0 if gathered else 0.002)
    assert found == {queue: [bytes([i]) * 100 for i in range(5)] for queue in queues}


async def test_one_message_above_the_byte_limit_still_comes(store: Store, target: Target) -> None:
    offsets = await put_one(store.log, target.queue(), b"x" * 1000, b"y" * 1000)
    (batch,) = await store.log.read([Read(target.queue(), offsets[0], 10, 1)], max_bytes=1)
    assert isinstance(batch, Batch)
    assert (list(batch.offsets), batch.next, batch.exhausted) == ([offsets[0]], offsets[0] + 1, False)


async def test_a_trim_never_moves_the_head_back_and_may_be_repeated(store: Store, target: Target) -> None:
    offsets = await put_one(store.log, target.queue(), b"a", b"b", b"c")
    for upto in (offsets[2], offsets[2], offsets[1], store.log.first_offset):
        assert await store.log.trim([Trim(target.queue(), upto, 1)]) == [False]
        assert await ends(store.log, [target.queue()]) == [(offsets[2], offsets[2] + 1)]


async def test_offsets_go_on_after_everything_was_trimmed(store: Store, target: Target) -> None:
    offsets = await put_one(store.log, target.queue(), b"a", b"b")
    await store.log.trim([Trim(target.queue(), offsets[1] + 1, 1)])
    assert await ends(store.log, [target.queue()]) == [(offsets[1] + 1, offsets[1] + 1)]
    (third,) = await put_one(store.log, target.queue(), b"c")
    assert third > offsets[1]
    assert await read_all(store.log, target.queue(), 1, start=offsets[0]) == [(third, b"c")]


async def test_a_trim_beyond_the_tail_hides_no_later_message(store: Store, target: Target) -> None:
    offsets = await put_one(store.log, target.queue(), b"a")
    await store.log.trim([Trim(target.queue(), offsets[0] + 1000, 1)])
    (bounds,) = await store.log.bounds([target.queue()])
    assert bounds.head == bounds.tail == offsets[0] + 1
    later = await put_one(store.log, target.queue(), b"b")
    assert await read_all(store.log, target.queue(), 1, start=offsets[0]) == [(later[0], b"b")]


async def test_two_instances_append_to_one_queue_without_losing_or_mixing_up(
    store: Store, other: Store, target: Target
) -> None:
    queue, rounds = target.queue(), 30

    async def produce(instance: Store, mark: bytes) -> list[int]:
        return [o for i in range(rounds) for o in await put_one(instance.log, queue, mark + b"%d" % i, mark + b"+")]

    # The reader runs all the time: it must not overtake a message that is still on its way.
    reading = asyncio.create_task(read_all(store.log, queue, 4 * rounds, limit=7))
    written = await asyncio.gather(produce(store, b"s"), produce(other, b"o"))
    found = await reading
    assert sorted(written[0] + written[1]) == [offset for offset, _ in found]
    for mark in (b"s", b"o"):
        mine = [body[1:] for _, body in found if body[:1] == mark]
        assert mine == [part for i in range(rounds) for part in (b"%d" % i, b"+")]


async def test_puts_that_cross_each_other_do_not_block_for_ever(
    store: Store, other: Store, target: Target, needs: Needs
) -> None:
    needs(Can.ATOMIC)
    queues = [target.queue("mid", group) for group in range(20)]
    calls = [
        instance.log.put([Put(queue, [b"x"]) for queue in order])
        for instance, order in ((store, queues), (other, queues[::-1]))
        for _ in range(10)
    ]
    async with asyncio.timeout(20):
        for answers in await asyncio.gather(*calls):
            assert not any(isinstance(answer, Exception) for answer in answers)
    assert [bound.tail - bound.head for bound in await store.log.bounds(queues)] == [20] * 20


async def test_more_calls_at_once_than_a_server_has_connections_are_all_carried_out(
    store: Store, target: Target
) -> None:
    calls = (store.log.put([Put(target.queue(), [b"x"])]) for _ in range(300))
    offsets = {offset for [answer] in await asyncio.gather(*calls) if isinstance(answer, Sequence) for offset in answer}
    assert len(offsets) == 300


async def test_the_environments_share_nothing(store: Store, opened: Target, needs: Needs) -> None:
    needs(Can.MANY_INSTANCES)
    sandbox = await opened.open(Environment.SANDBOX)
    queue = opened.queue()
    offsets = await put_one(store.log, queue, b"online")
    assert await ends(sandbox.log, [queue]) == [(store.log.first_offset, store.log.first_offset)]
    assert await sandbox.log.get(queue, offsets[0]) is None
    await put_one(sandbox.log, queue, b"sandbox")
    await read_one(sandbox.log, queue, store.log.first_offset, epoch=9)
    await sandbox.log.trim([Trim(queue, offsets[0] + 1, 9, seal=True)])
    assert await read_all(store.log, queue, 1, epoch=1) == [(offsets[0], b"online")]
    await put_one(store.log, queue, b"not sealed here")


async def test_closing_may_be_repeated(store: Store) -> None:
    await store.close()
    await store.close()


async def test_max_length_is_refused_where_it_cannot_be_kept(store: Store, target: Target) -> None:
    if Can.MAX_LENGTH in target.can:
        pytest.skip(f"{target.name} keeps it")
    (answer,) = await store.log.put([Put(target.queue(), [b"a"], 5, False, [target.queue()])])
    assert isinstance(answer, errors.InvalidTopic)
    assert "max_length 5" in str(answer)
