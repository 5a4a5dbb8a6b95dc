"""What checkpoints promise on each database: fences hold, and watermarks never move back by themselves."""

from __future__ import annotations

import pytest

from emq.database import Database
from emq.groups.offset_tracker import Note
from emq.offsets.checkpoints import Checkpoint, CheckpointStore
from emq.storage.marks import Mark


@pytest.fixture
def store(db: Database) -> CheckpointStore:
    return CheckpointStore(db, "online")


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


async def test_a_late_checkpoint_keeps_the_finished_ranges_of_the_newer_one(store: CheckpointStore) -> None:
    """Ranges above a lower watermark say less; with them, what lies between the two would be delivered again."""
    await store.save([Checkpoint("a", 1, 10, ((12, 15), (20, 30)))])
    await store.save([Checkpoint("a", 1, 8, ((9, 10),))])
    assert await store.load(["a"]) == {"a": Checkpoint("a", 1, 10, ((12, 15), (20, 30)))}
    await store.save([Checkpoint("a", 1, 10, ((12, 16),))])
    assert await store.load(["a"]) == {"a": Checkpoint("a", 1, 10, ((12, 16),))}


async def test_marks_are_kept_until_others_come(store: CheckpointStore) -> None:
    marks = (Mark(9, "abc"),)
    await store.save([Checkpoint("a", 1, 10, marks=marks)])
    await store.save([Checkpoint("a", 1, 11)])
    assert await store.load(["a"]) == {"a": Checkpoint("a", 1, 11, marks=marks)}
    await store.save([Checkpoint("a", 1, 11, marks=(Mark(10, "def"),), notes=(Note(1.5, 9),))])
    assert await store.load(["a"]) == {"a": Checkpoint("a", 1, 11, marks=(Mark(10, "def"),), notes=(Note(1.5, 9),))}


async def test_a_fence_refuses_saves_of_lower_epochs_and_changes_nothing_else(store: CheckpointStore) -> None:
    await store.save([Checkpoint("a", 5, 10, ((12, 13),)), Checkpoint("b", 5, 20)])
    found = await store.fence({"a": 7, "unknown": 7})
    assert (found.refused, found.saved) == ([], {"a": Checkpoint("a", 7, 10, ((12, 13),))})
    assert await store.load_all() == {"a": Checkpoint("a", 7, 10, ((12, 13),)), "b": Checkpoint("b", 5, 20)}
    assert await store.save([Checkpoint("a", 6, 99), Checkpoint("b", 6, 21)]) == ["a"]
    assert await store.load_all() == {"a": Checkpoint("a", 7, 10, ((12, 13),)), "b": Checkpoint("b", 6, 21)}


async def test_a_fence_is_never_lowered(store: CheckpointStore) -> None:
    await store.save([Checkpoint("a", 5, 10), Checkpoint("b", 5, 20)])
    assert (await store.fence({"a": 4, "b": 5})).refused == ["a"]
    assert await store.load_all() == {"a": Checkpoint("a", 5, 10), "b": Checkpoint("b", 5, 20)}
    assert await store.save([Checkpoint("a", 4, 99)]) == ["a"]


async def test_an_owner_takes_checkpoints_back_outright(store: CheckpointStore) -> None:
    await store.save([Checkpoint("a", 5, 10, ((12, 13),), (Mark(13, "abc"),), (Note(1.0, 9),)), Checkpoint("b", 5, 20)])
    assert await store.rewind([Checkpoint("a", 6, 4)]) == []
    assert await store.load_all() == {"a": Checkpoint("a", 6, 4), "b": Checkpoint("b", 5, 20)}


async def test_a_stale_owner_takes_no_checkpoint_back(store: CheckpointStore) -> None:
    await store.save([Checkpoint("a", 5, 10), Checkpoint("b", 5, 20)])
    assert await store.rewind([Checkpoint("a", 4, 1), Checkpoint("b", 5, 2)]) == ["a"]
    assert await store.load_all() == {"a": Checkpoint("a", 5, 10), "b": Checkpoint("b", 5, 2)}
