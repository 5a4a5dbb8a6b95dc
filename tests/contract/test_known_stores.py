"""The stores under one database: progress belongs to the store that it was made in, on each database."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from emq.database import Database
from emq.database.known_stores import KnownStores
from emq.offsets.checkpoints import Checkpoint, CheckpointStore
from emq.runtime import errors
from emq.topics.passages import Passage, PassageStore
from emq_stores.memory import MemoryStore, World

FIRST, SECOND = "redis://first/0", "redis://second/0"


def known(db: Database, world: World, place: str = FIRST, environment: str = "online") -> KnownStores:
    return KnownStores(db, environment, MemoryStore(world).lanes, place)


async def hosted(db: Database, world: World, place: str = FIRST) -> CheckpointStore:
    """The checkpoints of a host that has come with a store."""
    stores = known(db, world, place)
    await stores.arrive()
    return CheckpointStore(db, "online", stores)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.name == "emq.database.known_stores"]
    caplog.clear()
    return found


async def test_another_store_begins_without_checkpoints_and_the_first_one_keeps_its_own(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = World(), World()
    mine = Checkpoint("a/0/p", 1, 100)
    await (await hosted(db, first)).save([mine])
    assert told(caplog) == []

    other = await hosted(db, second, SECOND)
    (line,) = told(caplog)
    assert FIRST in line
    assert SECOND in line
    assert "from its first message on" in line
    assert await other.load(["a/0/p"]) == await other.load_all() == {}
    await other.save([Checkpoint("a/0/p", 2, 3)])
    assert await other.rewind([Checkpoint("a/0/p", 3, 1)]) == (await other.fence({"a/0/p": 9})).refused == []
    assert await other.drop(["a/0/p"]) == 1
    await other.save([Checkpoint("a/0/p", 9, 4)])
    assert (await hosted(db, second, SECOND)).stores is not None
    assert told(caplog) == []

    again = await hosted(db, first)
    (line,) = told(caplog)
    assert "from where hosts had come in it" in line
    assert await again.load_all() == {"a/0/p": mine}
    assert await (await hosted(db, second, SECOND)).load_all() == {"a/0/p": Checkpoint("a/0/p", 9, 4)}


async def test_a_store_that_was_emptied_begins_without_checkpoints(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    await (await hosted(db, world)).save([Checkpoint("a/0/p", 1, 100)])
    world.restore(None)
    assert await (await hosted(db, world)).load_all() == {}
    (line,) = told(caplog)
    assert line.startswith(f"the store {FIRST} was emptied or replaced")


async def test_checkpoints_from_before_stores_had_identities_are_those_of_the_first_host_s_store(db: Database) -> None:
    old = Checkpoint("a/0/p", 1, 100)
    await CheckpointStore(db, "online").save([old])
    await CheckpointStore(db, "sandbox").save([old])
    world = World()
    assert await CheckpointStore(db, "online", known(db, world)).load_all() == {"a/0/p": old}  # before any host
    assert await (await hosted(db, world)).load_all() == {"a/0/p": old}
    assert await (await hosted(db, World(), SECOND)).load_all() == {}
    assert await (await hosted(db, world)).load_all() == {"a/0/p": old}


async def test_who_only_looks_notes_nothing_and_sees_what_hosts_see(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = World(), World()
    mine = await hosted(db, first)
    await mine.save([Checkpoint("a/0/p", 1, 100)])
    empty = second.snapshot()
    assert await CheckpointStore(db, "online", known(db, second, SECOND)).load_all() == {}
    assert second.snapshot() == empty
    assert await CheckpointStore(db, "online", known(db, first)).load_all() == await mine.load_all()
    set_back = CheckpointStore(db, "online", known(db, second, SECOND))
    await set_back.reset("a/0/p", 7)
    assert (await mine.load_all())["a/0/p"].watermark == 100
    await hosted(db, first)
    assert told(caplog) == []
    assert (await (await hosted(db, second, SECOND)).load_all())["a/0/p"].watermark == 7


async def test_a_lost_database_gives_the_store_the_same_scope(db: Database, tmp_path: Path) -> None:
    world = World()
    stores = known(db, world)
    await stores.arrive()
    empty = await Database.open(f"sqlite:///{tmp_path}/empty.db")
    try:
        after = known(empty, world)
        await after.arrive()
        assert await after.scope() == await stores.scope()
    finally:
        await empty.close()


async def test_hosts_that_come_at_once_agree(db: Database) -> None:
    await CheckpointStore(db, "online").save([Checkpoint("a/0/p", 1, 100)])
    first, second = World(), World()
    comers = [known(db, world, place) for world, place in ((first, FIRST), (second, SECOND)) * 3]
    await asyncio.gather(*(stores.arrive() for stores in comers))
    scopes = [await stores.scope() for stores in comers]
    assert len(set(scopes)) == 2
    assert "online" in scopes
    assert set(scopes[::2]).isdisjoint(scopes[1::2])


async def test_a_running_host_gives_an_emptied_store_its_identity_back(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    running = known(db, world)
    await running.arrive()
    world.restore(None)
    await running.keep()
    later = known(db, world)
    await later.arrive()
    assert await later.scope() == await running.scope()
    assert told(caplog) == []


async def test_a_running_host_follows_another_that_was_quicker(db: Database) -> None:
    world = World()
    running, later = known(db, world), known(db, world)
    await running.arrive()
    world.restore(None)
    await later.arrive()
    assert await later.scope() != await running.scope()
    await running.keep()
    assert await later.scope() == await running.scope()


async def test_a_full_store_without_identity_is_the_one_that_the_database_knows(
    db: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await CheckpointStore(db, "online").save([Checkpoint("a/0/p", 1, 100)])

    async def refuse(*_: object) -> list[object]:
        return [errors.StoreFull("no room")]

    with caplog.at_level(logging.WARNING):
        stores = known(db, World())
        monkeypatch.setattr(stores._lanes, "add", refuse)
        await stores.arrive()
    assert (await CheckpointStore(db, "online", stores).load_all())["a/0/p"].watermark == 100
    assert "no room" in told(caplog)[0]


async def test_passages_belong_to_a_store_as_well(db: Database) -> None:
    of = []
    for place in (FIRST, SECOND):
        stores = known(db, World(), place)
        await stores.arrive()
        of.append(PassageStore(db, "online", stores))
    first, second = of
    await first.note([Passage("t", 0, 1, [100])])
    await second.note([Passage("t", 0, 1, [3], passed=True)])
    assert list((await first.load(["t"])).values()) == [Passage("t", 0, 1, [100])]
    await second.forget("t", [1])
    assert await second.load(["t"]) == {}
    assert len(await first.load(["t"])) == 1
