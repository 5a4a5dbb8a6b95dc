"""What the checkpoint store promises, on SQLite."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from emq import errors
from emq.database import Database
from emq.offsets.checkpoints import Checkpoint, CheckpointStore


@pytest.fixture
async def db() -> AsyncIterator[Database]:
    database = await Database.open("sqlite://")
    yield database
    await database.close()


@pytest.fixture
def store(db: Database) -> CheckpointStore:
    return CheckpointStore(db, "online")


async def test_what_was_saved_is_loaded(store: CheckpointStore) -> None:
    saved = [Checkpoint("a/0/high", 1, 7, ((9, 11), (15, 16))), Checkpoint("ü'\"/0/low", 2, 2**40)]
    assert await store.save(saved) == []
    assert await store.load_all() == {c.queue: c for c in saved}
    assert await store.load(["a/0/high", "unknown"]) == {"a/0/high": saved[0]}


async def test_a_lower_epoch_is_refused_and_changes_nothing(store: CheckpointStore) -> None:
    await store.save([Checkpoint("a", 5, 10), Checkpoint("b", 1, 10)])
    assert await store.save([Checkpoint("a", 4, 99), Checkpoint("b", 1, 11), Checkpoint("new", 1, 1)]) == ["a"]
    assert await store.load_all() == {
        "a": Checkpoint("a", 5, 10),
        "b": Checkpoint("b", 1, 11),
        "new": Checkpoint("new", 1, 1),
    }


async def test_a_watermark_never_moves_back(store: CheckpointStore) -> None:
    await store.save([Checkpoint("a", 1, 10, ((12, 13),))])
    assert await store.save([Checkpoint("a", 1, 8, ((9, 10),))]) == []
    assert await store.load(["a"]) == {"a": Checkpoint("a", 1, 10, ((12, 13),))}
    assert await store.save([Checkpoint("a", 2, 8)]) == []
    assert await store.load(["a"]) == {"a": Checkpoint("a", 2, 10, ((12, 13),))}


async def test_a_queue_twice_in_a_batch_counts_once(store: CheckpointStore) -> None:
    assert await store.save([Checkpoint("a", 1, 1), Checkpoint("a", 1, 2)]) == []
    assert (await store.load_all())["a"].watermark == 2
    assert await store.save([]) == []


async def test_reset_sets_the_watermark_back_and_keeps_the_fence(store: CheckpointStore) -> None:
    await store.save([Checkpoint("a", 5, 10, ((12, 13),))])
    assert await store.reset("a", 3) == Checkpoint("a", 5, 3)
    assert await store.reset("new", 3) == Checkpoint("new", 0, 3)
    assert await store.save([Checkpoint("a", 4, 99)]) == ["a"]
    with pytest.raises(ValueError, match="watermark -1"):
        await store.reset("a", -1)


async def test_drop_forgets_only_the_named_queues(store: CheckpointStore) -> None:
    await store.save([Checkpoint("a", 1, 1), Checkpoint("b", 1, 1)])
    assert await store.drop(["a", "unknown"]) == 1
    assert set(await store.load_all()) == {"b"}


async def test_the_environments_share_nothing(store: CheckpointStore, db: Database) -> None:
    sandbox = CheckpointStore(db, "sandbox")
    await store.save([Checkpoint("a", 5, 10)])
    assert await sandbox.load_all() == {}
    assert await sandbox.save([Checkpoint("a", 1, 1)]) == []


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
    assert await store.fence(dict.fromkeys(names[:2_000], 2)) == []
    assert await store.rewind([Checkpoint(name, 2, 3) for name in names[:2_000]]) == []
    assert time.process_time() - began < 2  # some 0.1 s; a walk over all checkpoints for each queue takes 20 s
    saved = await store.load_all()
    assert {(c.epoch, c.watermark) for name, c in saved.items() if name in names[:2_000]} == {(2, 3)}
    assert {(c.epoch, c.watermark) for name, c in saved.items() if name in names[2_000:]} == {(1, 5)}
