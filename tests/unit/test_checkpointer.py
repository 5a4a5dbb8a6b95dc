"""Checkpoints: only what changed, in order, fenced, and the store is trimmed behind them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest
from support.doubles import FaultyStore

from emq import errors
from emq.clock import ManualClock
from emq.dispatch.counter import WindowCounter
from emq.dispatch.priority import policy_for
from emq.model import Topic, TopicOptions
from emq.offsets.checkpointer import Checkpointer
from emq.offsets.checkpoints import Checkpoint
from emq.offsets.tracker import OffsetTracker
from emq.owned import Gauge, OwnedGroup, OwnedQueue, OwnedTopic
from emq.storage import Put
from storage_adapters.memory import MemoryStore


class Saved:
    """Stands for the database."""

    def __init__(self) -> None:
        self.batches: list[list[Checkpoint]] = []
        self.refuse: set[str] = set()
        self.down = False

    async def save(self, batch: Sequence[Checkpoint]) -> list[str]:
        if self.down:
            raise errors.DatabaseUnavailable("down")
        self.batches.append(list(batch))
        return [c.queue for c in batch if c.queue in self.refuse]


class Bench:
    def __init__(self) -> None:
        self.saved = Saved()
        self.clock = ManualClock()
        self.store = FaultyStore(MemoryStore())
        self.lost: list[OwnedGroup] = []
        self.checkpointer = Checkpointer(
            self.saved,  # type: ignore[arg-type]
            self.store.log,
            self.clock,
            on_lost=self.lost.append,
        )

    async def queue(self, name: str = "t", messages: int = 10, retention_s: float = 0.0) -> OwnedQueue:
        owner = OwnedTopic(Topic(name, 10, priorities=("p",), options=TopicOptions(retention_s=retention_s)))
        group = OwnedGroup(owner, 0, 7, WindowCounter(1, 0), policy_for(owner.topic), Gauge())
        group.buffers = [deque()]
        queue = OwnedQueue(group, 0, OffsetTracker(1), 1.0)
        await self.store.log.put([Put(queue.name, [b"x"] * messages)])
        return queue

    def finish(self, queue: OwnedQueue, *offsets: int) -> None:
        for offset in offsets:
            queue.tracker.finish(offset)
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
    b.saved.down = True
    await b.checkpointer.save()
    assert b.checkpointer.unreachable == "down"
    b.finish(queue, 2)
    await b.checkpointer.save()
    b.saved.down = False
    await b.checkpointer.save()
    assert b.saved.batches == [[Checkpoint("t/0/p", 7, 3)]]
    assert b.checkpointer.unreachable is None


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


async def test_nothing_is_trimmed_while_the_database_is_down(b: Bench) -> None:
    queue = await b.queue()
    b.finish(queue, 1, 2, 3)
    b.saved.down = True
    await b.checkpointer.save()
    await b.checkpointer.trim()
    assert await b.head(queue) == 1


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
    assert len(b.checkpointer._retained) <= 200
    step_s, passed_s = 86_400 / 50, 5 * 1_999
    b.clock.advance(step_s)
    await b.checkpointer.trim()
    b.clock.advance(86_400 - passed_s - step_s - 1)
    await b.checkpointer.trim()
    assert await b.head(queue) == 1, "nothing goes before its time"
    b.clock.advance(passed_s + step_s + 2)
    await b.checkpointer.trim()
    assert await b.head(queue) == 2_000, "and all of it goes soon after"


async def test_a_refused_checkpoint_means_the_group_is_lost_and_is_not_trimmed(b: Bench) -> None:
    queue = await b.queue()
    b.finish(queue, 1)
    b.saved.refuse = {"t/0/p"}
    await b.checkpointer.save()
    assert b.lost == [queue.group]
    await b.checkpointer.trim()
    assert await b.head(queue) == 1


async def test_nothing_of_a_lost_group_is_saved(b: Bench) -> None:
    queue = await b.queue()
    b.finish(queue, 1)
    queue.group.lost = True
    await b.checkpointer.save()
    assert b.saved.batches == []


async def test_a_trim_by_a_stale_owner_is_refused(b: Bench) -> None:
    from emq.storage import Read

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
