"""Checkpoints: only what changed, in order, fenced, and the store is trimmed behind them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

import pytest

from emq.groups.context import HostContext
from emq.groups.offset_tracker import Note, OffsetTracker
from emq.groups.owned import OwnedQueue
from emq.offsets import checkpointer, retention
from emq.offsets.checkpointer import Checkpointer
from emq.offsets.checkpoints import Checkpoint
from emq.runtime import errors
from emq.storage import marks
from emq.storage.log_store import Put, Read
from emq.topics.model import Topic, TopicOptions
from emq_stores.memory import MemoryStore
from support.doubles import FaultyStore
from support.manual_clock import ManualClock
from support.owned_groups import owned_group
from support.recorded_events import RecordedEvents
from support.virtual import virtual

pytestmark = virtual


class Saved:
    """Stands for the database."""

    def __init__(self) -> None:
        self.batches: list[list[Checkpoint]] = []
        self.refuse: set[str] = set()
        self.fails: Exception | None = None

    async def save(self, batch: Sequence[Checkpoint]) -> list[str]:
        if self.fails is not None:
            raise self.fails
        self.batches.append(list(batch))
        return [c.queue for c in batch if c.queue in self.refuse]


class Bench:
    def __init__(self) -> None:
        self.saved = Saved()
        self.clock = ManualClock()
        self.store = FaultyStore(MemoryStore())
        events = RecordedEvents()
        self.lost, self.shrunk = events.losses, events.shrinks
        self.checkpointer = Checkpointer(
            self.saved,  # type: ignore[arg-type]
            self.store.log,
            HostContext(self.clock, events),
        )

    async def queue(self, name: str = "t", messages: int = 10, retention_s: float = 0.0) -> OwnedQueue:
        topic = Topic(name, 10, priorities=("p",), options=TopicOptions(retention_s=retention_s))
        [queue] = owned_group(topic, epoch=7).queues
        await self.store.log.put([Put(queue.name, [b"x"] * messages)])
        return queue

    def finish(self, queue: OwnedQueue, *offsets: int) -> None:
        for offset in offsets:
            queue.tracker.finish(offset, offset + 1)
        if not queue.dirty:
            queue.dirty = True
            self.checkpointer.dirty(queue)

    async def head(self, queue: OwnedQueue) -> int:
        [bounds] = await self.store.log.bounds([queue.name])
        return int(bounds.head)


@pytest.fixture
async def b() -> Bench:
    return Bench()


async def test_only_dirty_queues_are_saved_with_watermark_and_ranges(b: Bench) -> None:
    first, second = await b.queue("a"), await b.queue("b")
    await b.checkpointer.save()
    assert b.saved.batches == []
    b.finish(first, 1, 2, 4)
    b.finish(second, 3)
    await b.checkpointer.save()
    assert b.saved.batches == [[Checkpoint("a/0/p", 7, 3, ((4, 5),)), Checkpoint("b/0/p", 7, 1, ((3, 4),))]]
    await b.checkpointer.save()
    assert len(b.saved.batches) == 1
    b.finish(second, 1)
    await b.checkpointer.save()
    assert b.saved.batches[1] == [Checkpoint("b/0/p", 7, 2, ((3, 4),))]


async def test_what_could_not_be_saved_is_saved_later_once(b: Bench) -> None:
    queue = await b.queue()
    b.finish(queue, 1)
    b.saved.fails = errors.DatabaseUnavailable("down")
    await b.checkpointer.save()
    assert b.checkpointer.unreachable == "down"
    await b.checkpointer.trim()
    assert await b.head(queue) == 1, "what was not saved is not dropped"
    b.finish(queue, 2)
    await b.checkpointer.save()
    b.saved.fails = RuntimeError("broken")
    with pytest.raises(RuntimeError):
        await b.checkpointer.save()
    b.saved.fails = None
    await b.checkpointer.save()
    assert b.saved.batches == [[Checkpoint("t/0/p", 7, 3)]]
    assert b.checkpointer.unreachable is None


async def test_a_group_that_is_lost_while_progress_is_gathered_is_not_saved(b: Bench) -> None:
    """The refused count as finished here; a new owner that has saved nothing yet would not refuse the checkpoint."""
    queues = [await b.queue(f"t{i}") for i in range(checkpointer.TOGETHER + 2)]
    for queue in queues:
        b.finish(queue, 1)
    saving = asyncio.create_task(b.checkpointer.save())
    await asyncio.sleep(0)  # the first of them are gathered
    queues[-1].group.lost = True
    await saving
    [batch] = b.saved.batches
    assert [c.queue for c in batch] == [queue.name for queue in queues[:-1]]


async def test_the_store_is_trimmed_up_to_what_is_saved_and_no_further(b: Bench) -> None:
    queue = await b.queue()
    b.finish(queue, 1, 2, 3)
    await b.checkpointer.trim()
    assert await b.head(queue) == 1
    await b.checkpointer.save()
    b.finish(queue, 4, 5)
    await b.checkpointer.trim()
    assert await b.head(queue) == 4
    calls = b.store.log.calls["trim"]
    await b.checkpointer.trim()
    assert b.store.log.calls["trim"] == calls


async def test_trimming_waits_for_the_store_and_for_the_retention(b: Bench) -> None:
    now, later = await b.queue("now"), await b.queue("later", retention_s=60)
    for queue in (now, later):
        b.finish(queue, 1, 2)
    await b.checkpointer.save()
    b.store.fail()
    await b.checkpointer.trim()
    b.store.heal()
    await b.checkpointer.trim()
    assert (await b.head(now), await b.head(later)) == (3, 1)
    b.clock.advance(59)
    await b.checkpointer.trim()
    assert await b.head(later) == 1
    b.clock.advance(2)
    await b.checkpointer.trim()
    assert await b.head(later) == 3


async def test_what_is_retained_for_long_takes_little_to_remember(b: Bench) -> None:
    queue = await b.queue(messages=2_000, retention_s=86_400)
    for offset in range(1, 2_000):
        b.finish(queue, offset)
        await b.checkpointer.save()
        await b.checkpointer.trim()
        b.clock.advance(5)
    assert len(queue.notes) <= retention.MOST_NOTES
    assert len(b.checkpointer._retention._due) == 1
    step_s, passed_s = 86_400 / retention.NOTES, 5 * 1_999
    b.clock.advance(step_s)
    await b.checkpointer.trim()
    b.clock.advance(86_400 - passed_s - step_s - 1)
    await b.checkpointer.trim()
    assert await b.head(queue) == 1, "nothing goes before its time"
    b.clock.advance(passed_s + step_s + 2)
    await b.checkpointer.trim()
    assert await b.head(queue) == 2_000, "and all of it goes soon after"


async def test_retention_goes_on_where_the_last_owner_of_the_queue_left_off_however_often_it_moves(b: Bench) -> None:
    queue = await b.queue(messages=200, retention_s=100)
    for offset in range(1, 150):  # a new owner every five seconds
        b.finish(queue, offset)
        await b.checkpointer.save()
        await b.checkpointer.trim()
        await b.checkpointer.save()
        saved = b.saved.batches[-1][0]
        assert len(saved.notes) <= retention.MOST_NOTES
        b.clock.advance(5)
        [next_owner] = owned_group(queue.group.owner.topic, epoch=7).queues
        next_owner.tracker = OffsetTracker(saved.watermark, saved.finished)
        next_owner.saved, next_owner.notes = saved.watermark, saved.notes
        b.checkpointer.resumed(next_owner)
        queue = next_owner
        kept_s = (offset - await b.head(queue) + 1) * 5
        assert kept_s <= 100 * 1.1 + 10
        assert kept_s >= min(100, offset * 5)


async def test_what_was_set_back_by_hand_is_not_dropped_by_what_was_noted_before(b: Bench) -> None:
    queue = await b.queue(messages=20, retention_s=10)
    queue.notes = (Note(b.clock.now() - 100, 15),)
    queue.saved = 5
    b.checkpointer.resumed(queue)
    await b.checkpointer.trim()
    assert await b.head(queue) == 5


async def test_a_refused_checkpoint_means_the_group_is_lost_and_is_not_trimmed(b: Bench) -> None:
    queue = await b.queue()
    b.finish(queue, 1)
    b.saved.refuse = {"t/0/p"}
    await b.checkpointer.save()
    assert b.lost == [queue.group]
    await b.checkpointer.trim()
    assert await b.head(queue) == 1


async def test_a_trim_by_a_stale_owner_is_refused(b: Bench) -> None:
    queue = await b.queue()
    b.finish(queue, 1, 2)
    await b.checkpointer.save()
    await b.store.log.read([Read(queue.name, 1, 1, 8)])
    await b.checkpointer.trim()
    assert b.lost == [queue.group]
    assert await b.head(queue) == 1


async def test_what_a_former_owner_left_is_trimmed_although_nothing_new_is_finished(b: Bench) -> None:
    queue = await b.queue()
    queue.tracker = OffsetTracker(6)
    queue.saved = 6
    b.checkpointer.resumed(queue)
    await b.checkpointer.trim()
    assert await b.head(queue) == 6


async def test_what_the_store_has_lost_meanwhile_is_not_dropped_from_what_came_in_its_place(b: Bench) -> None:
    queue = await b.queue()
    queue.marks.newest = marks.of(10, b"read before the store came back, at the place of another")
    b.finish(queue, *range(1, 11))
    await b.checkpointer.save()
    assert b.saved.batches[-1][0].marks == (queue.marks.newest,)
    await b.checkpointer.trim()
    assert b.shrunk == [queue.group]
    assert (await b.store.log.bounds([queue.name]))[0].head == 1


async def test_progress_that_the_database_has_lost_is_saved_again(b: Bench) -> None:
    used, unused = await b.queue("a"), await b.queue("b")
    b.finish(used, 1, 2, 4)
    await b.checkpointer.save()
    b.checkpointer.save_again([used.group, unused.group])
    await b.checkpointer.save()
    assert b.saved.batches == [[Checkpoint("a/0/p", 7, 3, ((4, 5),))]] * 2


async def test_a_checkpoint_that_is_asked_for_comes_soon_unless_the_last_one_failed(b: Bench) -> None:
    queue = await b.queue(messages=40)
    loop = asyncio.create_task(b.checkpointer.checkpoint())
    for i in range(20):
        b.finish(queue, i + 1)
        b.checkpointer.soon()
        await asyncio.sleep(checkpointer.SOON_S)
    assert 17 <= len(b.saved.batches) <= 20
    b.saved.fails = errors.DatabaseUnavailable("down")
    b.finish(queue, 21)
    b.checkpointer.soon()
    await asyncio.sleep(2 * checkpointer.SOON_S)
    failures = b.checkpointer.failures
    for _ in range(20):
        b.checkpointer.soon()
        await asyncio.sleep(checkpointer.SOON_S)
    assert b.checkpointer.failures - failures <= 3  # once a second, as if nobody asked
    loop.cancel()


async def test_checkpoints_come_each_second_and_trims_each_five_however_often_one_is_asked_for() -> None:
    b = Bench()
    trims: list[float] = []

    async def note() -> None:
        trims.append(asyncio.get_running_loop().time())

    b.checkpointer.trim = note  # type: ignore[method-assign]
    loop = asyncio.create_task(b.checkpointer.checkpoint())
    for _ in range(100):
        b.checkpointer.soon()
        await asyncio.sleep(0.123)
    assert [round(b - a, 1) for a, b in itertools.pairwise([0.0, *trims])] == [5.0, 5.0]
    loop.cancel()
