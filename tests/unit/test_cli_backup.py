"""`emq backup check`: which copies fit together, and what it says of those that do not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import emq
from emq.offsets.checkpoints import Checkpoint
from emq.storage import marks
from emq.storage.answers import served
from emq.storage.log_store import Trim
from emq_cli import backup, fit

QUEUE = "orders/0/high"


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def app() -> emq.App:
    return emq.App("sqlite:///store.db", database="sqlite:///catalog.db")


async def arrive(opened: emq.App) -> None:
    """Note the store in the database, as each host does at its start."""
    assert opened.checkpoints.stores is not None
    await opened.checkpoints.stores.arrive()


async def published(count: int) -> None:
    """Publish to a topic of one queue, which a host has had."""
    async with app() as opened:
        await opened.create_topic("orders", 10, group_qps=10, priorities=("high",), exist_ok=True)
        await arrive(opened)
        await opened.publish_many("orders", [b"x"] * count)


async def finished(count: int, *read: int | marks.Mark) -> None:
    """Save what a host saves that has finished so many messages, and read others: each a mark, or a number from 0."""
    async with app() as opened:
        first = opened.store.log.first_offset
        found = []
        for each in read:
            if isinstance(each, int):
                body = await opened.store.log.get(QUEUE, first + each)
                assert body is not None
                each = marks.of(first + each, body)
            found.append(each)
        await opened.checkpoints.save([Checkpoint(QUEUE, 1, first + count, marks=tuple(found))])


async def looked() -> fit.Fit:
    async with app() as opened:
        return await fit.look(opened, lambda done, total: None)


def told(found: fit.Fit) -> str:
    return "\n".join(backup._lines(found))


def keep(name: str) -> None:
    shutil.copy(f"{name}.db", f"{name}.copy")


def remove(name: str) -> None:
    for end in ("", "-wal", "-shm"):
        Path(f"{name}.db{end}").unlink(missing_ok=True)


def restore(name: str) -> None:
    remove(name)
    shutil.copy(f"{name}.copy", f"{name}.db")


async def test_copies_of_one_time_fit() -> None:
    await published(10)
    await finished(7, 8)
    found = await looked()
    assert found.fits
    assert (found.queues, found.waiting, found.behind) == (1, 3, 0)
    assert found.store == found.expected
    assert "fit together: hosts go on in 1 queue" in told(found)


async def test_a_database_that_is_older_fits_and_has_messages_delivered_again() -> None:
    await published(10)
    await finished(2, 2)
    keep("catalog")
    await finished(9, 9)
    restore("catalog")
    found = await looked()
    assert found.fits
    assert found.waiting == 8


@pytest.mark.parametrize("later", [0, 20], ids=["as it was", "grown again"])
async def test_a_store_that_is_older_is_told_with_what_is_lost(later: int) -> None:
    await published(4)
    keep("store")
    await published(6)
    await finished(7, 8, 3, 0)
    restore("store")
    if later:
        await published(later)
    found = await looked()
    assert not found.fits
    assert found.behind == 1
    assert (found.missing, found.lost) == ((1, 0) if later else (5, 2))
    assert found.waiting == later
    assert "the store is the older copy: in 1 queue of 1, it lacks at least" in told(found)


async def test_without_a_mark_that_the_store_has_the_queue_is_delivered_from_its_head() -> None:
    await published(4)
    keep("store")
    await published(6)
    await finished(7, 8)
    restore("store")
    assert (await looked()).waiting == 4


async def test_what_was_trimmed_proves_nothing() -> None:
    await published(10)
    async with app() as opened:
        first = opened.store.log.first_offset
        await opened.store.log.trim([Trim(QUEUE, first + 8, None)])
    await finished(8, marks.Mark(first + 7, "another"))
    found = await looked()
    assert found.fits
    assert found.waiting == 2


async def test_another_store_is_named() -> None:
    await published(3)
    await finished(1, 1)
    remove("store")
    async with app() as opened:
        await opened.publish("orders", b"x")
    found = await looked()
    assert not found.fits
    assert (found.store, found.is_known, found.queues) == (None, False, 0)
    assert f"identity {found.expected}, and this store has no identity" in told(found)


async def test_messages_that_the_database_does_not_know_are_counted() -> None:
    async with app() as opened:
        await opened.create_topic("other", 10)
    keep("catalog")
    await published(3)
    restore("catalog")
    found = await looked()
    assert not found.fits
    assert found.orphans is not None
    assert [(each.topic, each.messages) for each in found.orphans] == [("orders", 3)]
    assert "holds 3 messages of 1 topic that it does not know" in told(found)


async def test_marks_of_many_large_messages_are_all_looked_at() -> None:
    async with app() as opened:
        await opened.create_topic("orders", 12, group_qps=1, priorities=("high",), max_payload=4 << 20)
        topic = await opened.catalog.get("orders")
        for number in range(12):
            await opened.publish("orders", b"x" * (3 << 20), key=f"k{number}")
        await arrive(opened)
        saved = []
        for queue in topic.all_queues():
            [bounds] = served(await opened.store.log.bounds([queue]))
            if bounds.tail > bounds.head:
                saved.append(Checkpoint(queue, 1, bounds.head, marks=(marks.Mark(bounds.head, "another"),)))
        await opened.checkpoints.save(saved)
    found = await looked()
    assert found.behind == len(saved) > 3
