"""What the checkpoint store promises, on SQLite."""

from __future__ import annotations

import time

import pytest

from emq.database import Database
from emq.groups.offset_tracker import Note
from emq.offsets import lag
from emq.offsets.checkpoints import Checkpoint, CheckpointStore
from emq.runtime import errors
from emq.runtime.clock import SystemClock
from emq.storage.log_store import Put
from emq.storage.marks import Mark
from support.rig import rig


@pytest.fixture
def store(db: Database) -> CheckpointStore:
    return CheckpointStore(db, "online")


async def test_what_was_saved_is_loaded(store: CheckpointStore) -> None:
    saved = [Checkpoint("a/0/high", 1, 7, ((9, 11), (15, 16))), Checkpoint("ü'\"/0/low", 2, 2**40)]
    assert await store.save(saved) == []
    assert await store.load_all() == {c.queue: c for c in saved}
    assert await store.load(["a/0/high", "unknown"]) == {"a/0/high": saved[0]}


def test_a_checkpoint_taken_back_tells_of_nothing_that_the_store_has_lost() -> None:
    """What comes anew takes the same offsets: it would count as finished."""
    notes = (Note(1.0, 9), Note(2.0, 15))
    checkpoint = Checkpoint("a", 1, 10, ((12, 15), (20, 30)), (Mark(29, "abc"),), notes)
    assert checkpoint.rewound(14, ()) == Checkpoint("a", 1, 10, ((12, 14),), (), notes[:1])
    assert checkpoint.rewound(5, ()) == Checkpoint("a", 1, 5)


async def test_a_save_below_the_watermark_leaves_its_marks_in_place(store: CheckpointStore) -> None:
    """Else a new owner would take the newer mark for a proof that all below the old watermark is finished."""
    old = Checkpoint("a/0/high", 1, 40, (), (Mark(39, "before"),))
    await store.save([old])
    await store.save([Checkpoint("a/0/high", 1, 3, (), (Mark(2, "after"),))])
    assert await store.load(["a/0/high"]) == {"a/0/high": old}
    newer = Checkpoint("a/0/high", 1, 41, (), (Mark(40, "after"),))
    await store.save([newer])
    assert await store.load(["a/0/high"]) == {"a/0/high": newer}


async def test_tens_of_thousands_of_queues_are_saved_and_loaded_together(store: CheckpointStore) -> None:
    batch = [Checkpoint(f"t{i}/0/high", 1, i) for i in range(20_000)]
    assert await store.save(batch) == []
    assert len(await store.load_all()) == 20_000
    assert len(await store.save([c._replace(epoch=0) for c in batch])) == 20_000


async def test_a_closed_database_is_reported_as_unavailable(store: CheckpointStore, db: Database) -> None:
    await db.close()
    with pytest.raises(errors.DatabaseUnavailable, match="is closed"):
        await store.load_all()


async def test_a_fence_of_many_queues_among_many_takes_time_in_proportion_to_its_queues(store: CheckpointStore) -> None:
    names = [f"t/{n}/mid" for n in range(6_000)]
    await store.save([Checkpoint(name, 1, 5) for name in names])
    began = time.process_time()
    assert not (await store.fence(dict.fromkeys(names[:2_000], 2))).refused
    assert await store.rewind([Checkpoint(name, 2, 3) for name in names[:2_000]]) == []
    assert time.process_time() - began < 2  # some 0.1 s; a walk over all checkpoints for each queue takes 20 s
    saved = await store.load_all()
    assert {(c.epoch, c.watermark) for name, c in saved.items() if name in names[:2_000]} == {(2, 3)}
    assert {(c.epoch, c.watermark) for name, c in saved.items() if name in names[2_000:]} == {(1, 5)}


@pytest.mark.parametrize("order", [1, -1])
async def test_of_a_queue_that_is_in_a_batch_twice_the_higher_epoch_counts(store: CheckpointStore, order: int) -> None:
    """A host that let go of it while the database was away, and has acquired it again, still has both to save."""
    former, now = Checkpoint("a/0/high", 1, 9), Checkpoint("a/0/high", 2, 7)
    await store.save([Checkpoint("a/0/high", 2, 5)])
    assert await store.save([former, now][::order]) == []
    assert await store.load(["a/0/high"]) == {"a/0/high": now}


@pytest.mark.parametrize(
    ("checkpoint", "left"),
    [
        (Checkpoint("q", 1, 0), 8),
        (Checkpoint("q", 1, 5), 5),
        (Checkpoint("q", 1, 5, ((6, 8), (9, 10))), 2),
        (Checkpoint("q", 1, 0, ((1, 4),)), 6),
        (Checkpoint("q", 1, 10), 0),
        (Checkpoint("q", 1, 14), 8),
    ],
    ids=["none", "some", "beyond", "half of a trimmed range", "all", "a store that lost its last messages"],
)
def test_what_a_checkpoint_leaves_unfinished(checkpoint: Checkpoint, left: int) -> None:
    assert checkpoint.unfinished(2, 10) == left


async def test_messages_in_a_store_that_came_back_shorter_are_not_finished_by_a_checkpoint_beyond_its_tail() -> None:
    async with rig(SystemClock()) as r:
        topic = await r.topic("t", 50)
        queue = topic.queue(0, 0)
        await r.store.log.put([Put(queue, [b"x"] * 3)])
        await r.checkpoints.save([Checkpoint(queue, 1, 3)])
        assert await lag.unfinished(r.store.log, r.checkpoints, [queue]) == [1]
        await r.checkpoints.save([Checkpoint(queue, 1, 10)])
        assert await lag.unfinished(r.store.log, r.checkpoints, [queue]) == [3]
