"""`emq.storage.store.LogStore` that has come back from a crash without the last messages of a queue."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from emq.runtime import errors
from emq.storage import marks
from emq.storage.log_store import Batch, Put, Read, Trim
from emq.storage.marks import Mark
from emq.storage.store import Store
from emq_testing.contract.target import Can, Needs, Target, put_one, read_all, read_one


async def forget_last(target: Target, store: Store, queue: str, count: int) -> None:
    """Take back the last messages of a queue behind the adapter's back."""
    if target.forget_last is None:
        pytest.skip(f"{target.name}: the target has no `forget_last`")
    await target.forget_last(store, queue, count)


async def seen(store: Store, queue: str, *bodies: bytes) -> tuple[int, list[Mark]]:
    """Put messages and read them as the owner: the position behind them, and the mark of each."""
    await put_one(store.log, queue, *bodies)
    found = await read_all(store.log, queue, len(bodies))
    return found[-1][0] + 1, [marks.of(offset, body) for offset, body in found]


async def seen_and_lost(store: Store, target: Target, count: int = 3) -> tuple[str, int, list[Mark]]:
    """A queue of eight messages that its owner has seen, of which the last are gone."""
    queue = target.queue()
    position, known = await seen(store, queue, *(b"%d" % i for i in range(8)))
    if count:
        await forget_last(target, store, queue, count)
    return queue, position, known


async def ask(store: Store, queue: str, start: int, mark: Mark | None, epoch: int | None = 1) -> object:
    (answer,) = await store.log.read([Read(queue, start, 100, epoch, mark)])
    return answer


def bodies_of(answer: object) -> Sequence[bytes]:
    assert isinstance(answer, Batch), answer
    return list(answer.bodies)


async def test_an_owner_is_told_that_a_message_it_has_read_is_gone(store: Store, target: Target) -> None:
    queue, position, known = await seen_and_lost(store, target)
    assert isinstance(await ask(store, queue, position, known[-1]), errors.MessagesLost)
    assert isinstance(await ask(store, queue, known[4].offset + 1, known[4]), Batch), "what is older is there"


async def test_it_is_told_also_when_new_messages_have_taken_the_offsets(store: Store, target: Target) -> None:
    queue, position, known = await seen_and_lost(store, target)
    await put_one(store.log, queue, *(b"new %d" % i for i in range(9)))
    assert isinstance(await ask(store, queue, position, known[-1]), errors.MessagesLost)
    found = await read_all(store.log, queue, 9, known[4].offset + 1)
    assert [body for _, body in found] == [b"new %d" % i for i in range(9)], "from the last one that is still there"


async def test_nothing_is_dropped_on_the_word_of_who_has_seen_what_is_gone(store: Store, target: Target) -> None:
    queue, position, known = await seen_and_lost(store, target)
    await put_one(store.log, queue, *(b"new %d" % i for i in range(9)))
    (answer,) = await store.log.trim([Trim(queue, position, 1, mark=known[-1])])
    assert isinstance(answer, errors.MessagesLost)
    assert len(await read_all(store.log, queue, 14)) == 14


async def test_a_message_that_was_dropped_proves_nothing(store: Store, target: Target) -> None:
    queue, position, known = await seen_and_lost(store, target, 0)
    assert await store.log.trim([Trim(queue, position, 1, mark=known[-1])]) == [False]
    await put_one(store.log, queue, b"next")
    (found,) = await read_all(store.log, queue, 1, position)
    assert found[1] == b"next"
    assert isinstance(await ask(store, queue, position, known[-1]), Batch)


async def test_one_whose_messages_are_there_reads_on_and_is_woken(store: Store, target: Target) -> None:
    queue, _, known = await seen_and_lost(store, target, 0)
    batch = await ask(store, queue, known[5].offset + 1, known[5])
    assert bodies_of(batch)[-1:] == [b"7"] or Can.DENSE not in target.can
    (answer,) = await store.log.trim([Trim(queue, known[5].offset, 1, mark=known[-1])])
    assert answer is False


async def test_a_lost_message_fails_no_other_queue_of_the_call(store: Store, target: Target) -> None:
    mine, other = target.queue(), target.queue("low")
    position, known = await seen(store, mine, b"a", b"b", b"c")
    _, theirs = await seen(store, other, b"d", b"e", b"f")
    await forget_last(target, store, mine, 1)
    reads = [Read(mine, position, 9, 1, known[-1]), Read(other, theirs[0].offset, 1, 1, theirs[-1])]
    lost, found = await store.log.read(reads)
    assert isinstance(lost, errors.MessagesLost)
    assert mine in str(lost)
    assert bodies_of(found) == [b"d"]


async def test_a_start_beyond_the_tail_is_refused_to_owners(store: Store, target: Target, needs: Needs) -> None:
    needs(Can.DENSE)
    queue = target.queue()
    await put_one(store.log, queue, b"a")
    tail = (await store.log.bounds([queue]))[0].tail
    assert isinstance(await ask(store, queue, tail + 1, None), errors.MessagesLost)
    assert isinstance(await ask(store, queue, tail + 1, None, epoch=None), Batch), "observers look where they like"
    assert (await read_one(store.log, queue, tail)).exhausted
    await store.log.put([Put(queue, [b"b"])])
    assert bodies_of(await ask(store, queue, tail, None)) == [b"b"]


async def test_an_owner_that_has_read_nothing_knows_a_queue_by_what_was_dropped(store: Store, target: Target) -> None:
    queue, position, _ = await seen_and_lost(store, target, 0)
    for head in (position - 3, position + 20):  # a message is where one was dropped; the queue ends before that
        assert isinstance(await ask(store, queue, head, marks.dropped(head)), errors.MessagesLost)
    await store.log.trim([Trim(queue, position, 1)])
    [bounds] = await store.log.bounds([queue])
    if bounds.head == position:  # not in a storage that keeps all
        assert isinstance(await ask(store, queue, position, marks.dropped(position)), Batch)
        await put_one(store.log, queue, b"new")
        assert bodies_of(await ask(store, queue, position, marks.dropped(position))) == [b"new"]
