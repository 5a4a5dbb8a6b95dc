"""Reads of the database's tree that cost no query, because the client watches what it reads."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

from emq.allocation.tree.database import DatabaseTree
from emq.allocation.tree.watches import UNKNOWN, Aspect, Watches


def changed() -> None:
    pass


async def test_what_is_watched_is_read_once_and_again_after_a_change_of_another(tmp_path: Path) -> None:
    one, other = (DatabaseTree(f"sqlite:///{tmp_path}/tree.db", 10.0) for _ in range(2))
    for tree in (one, other):
        await tree.open(lambda state: None)
    await other.create("/a", b"x")
    told: list[int] = []
    with mock.patch.object(one._session, "ask", wraps=one._session.ask) as asked:
        for _ in range(5):
            node = await one.read("/a", lambda: told.append(1))
            assert node is not None
            assert node.data == b"x"
            assert await one.children("/", changed) == ["a"]
        assert asked.call_count == 2
        await other.write("/a", b"y", 0)
        await one._look()
        assert told
        node = await one.read("/a", changed)
        assert node is not None
        assert node.data == b"y"
        await one.read("/a")
        assert asked.call_count == 4, "who does not watch asks"
    for tree in (one, other):
        await tree.close()


async def test_a_proof_of_life_looks_in_the_same_transaction(tmp_path: Path) -> None:
    one, other = (DatabaseTree(f"sqlite:///{tmp_path}/tree.db", 10.0) for _ in range(2))
    for tree in (one, other):
        await tree.open(lambda state: None)
        assert tree._looking is not None
        tree._looking.cancel()
    await other.create("/a", b"x")
    told: list[int] = []
    await one.read("/a", lambda: told.append(1))
    await one.prove("/")
    assert not told
    await other.write("/a", b"y", 0)
    database = one._session.database
    assert database is not None
    with mock.patch.object(database, "run", wraps=database.run) as run:
        await one.prove("/")
    assert told
    assert run.call_count == 1
    for tree in (one, other):
        await tree.close()


def test_of_two_reads_with_a_change_between_them_none_is_taken_for_the_present_state() -> None:
    for numbers in ((1, 2), (2, 1)):
        watches, aspect = Watches(), Aspect("/a", "node")
        for number in numbers:
            watches.add(aspect, changed, number, f"as of {number}")
        assert watches.known(aspect, changed) is UNKNOWN
        assert watches.now()[aspect].number == 1
