"""Notes of keys that move, on each database: what has passed stays passed, and the tails noted first count."""

from __future__ import annotations

from emq.database import Database
from emq.topics.passages import Passage, PassageStore


async def test_what_was_noted_first_counts(db: Database) -> None:
    """A later look finds messages of the new layout, too, and an owner that was late has passed nothing yet."""
    store = PassageStore(db, "online")
    await store.note([Passage("t", 0, 1, [7, 9]), Passage("t", 1, 1, [3, 3])])
    await store.note([Passage("t", 0, 1, [7, 9], passed=True)])
    await store.note([Passage("t", 0, 1, [20, 20])])
    assert await store.load(["t"]) == {
        ("t", 0, 1): Passage("t", 0, 1, [7, 9], True),
        ("t", 1, 1): Passage("t", 1, 1, [3, 3], False),
    }
    assert await store.progress(["t"]) == {("t", 1): (2, 1)}


async def test_each_layout_and_environment_is_noted_by_itself(db: Database) -> None:
    store, sandbox = PassageStore(db, "online"), PassageStore(db, "sandbox")
    await store.note([Passage("t", 0, 1, [1], passed=True), Passage("t", 0, 2, [5])])
    await sandbox.note([Passage("t", 0, 1, [2])])
    await store.forget("t", [1])
    assert await store.load(["t"]) == {("t", 0, 2): Passage("t", 0, 2, [5])}
    assert await sandbox.load(["t"]) == {("t", 0, 1): Passage("t", 0, 1, [2])}
