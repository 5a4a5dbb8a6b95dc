"""What the coordination tree in a database does when the database loses its last second, or everything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from emq.allocation.tree.database import DatabaseTree
from emq.database import Database, tables
from support.waiting import until

KEPT = (tables.tree_nodes, tables.tree_sessions, tables.meta)

Rows = list[list[dict[str, Any]]]
Begin = Callable[[], Awaitable[DatabaseTree]]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/tree.db"
    return request.getfixturevalue("fresh_postgres")


@pytest.fixture
async def begin(url: str) -> AsyncIterator[Begin]:
    """Opens clients, and closes them when the test is over."""
    opened: list[DatabaseTree] = []

    async def open_one() -> DatabaseTree:
        opened.append(DatabaseTree(url, 3.0))
        await opened[-1].open(lambda state: None)
        return opened[-1]

    yield open_one
    for client in opened:
        await client.close()


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    opened = await Database.open(url)
    yield opened
    await opened.close()


def _rows(connection: sa.Connection) -> Rows:
    return [[dict(row) for row in connection.execute(sa.select(table)).mappings()] for table in KEPT]


def _bring_back(connection: sa.Connection, rows: Rows) -> None:
    for table, of_table in zip(KEPT, rows, strict=True):
        connection.execute(sa.delete(table))
        if of_table:
            connection.execute(sa.insert(table), of_table)


async def test_no_two_clients_share_a_session_after_the_database_came_back_empty(
    begin: Begin, database: Database
) -> None:
    clients = [await begin() for _ in range(3)]
    before = {client.session for client in clients}
    await database.run(lambda c: _bring_back(c, [[] for _ in KEPT]))
    await until(lambda: all(client.session not in {0, *before} for client in clients))
    assert len({client.session for client in clients}) == 3


@pytest.mark.parametrize("clock_is_behind", [False, True])
async def test_no_session_is_given_out_twice_by_a_database_that_lost_its_last_second(
    begin: Begin, database: Database, clock_is_behind: bool
) -> None:
    await begin()
    if clock_is_behind:  # behind the numbers of changes, so that these no longer follow the time
        ahead = sa.update(tables.meta).where(tables.meta.c.key == "tree").values(value=1 << 61)
        await database.run(lambda c: c.execute(ahead))
    rows = await database.run(_rows)
    lost = await begin()
    before = lost.session
    await database.run(lambda c: _bring_back(c, rows))
    other = await begin()
    assert other.session != before
    await until(lambda: lost.session not in (0, before))
    assert lost.session != other.session


async def test_a_change_that_was_lost_and_made_again_by_another_is_told(begin: Begin, database: Database) -> None:
    one, other = await begin(), await begin()
    await one.create("/a", b"0")
    rows = await database.run(_rows)
    await other.write("/a", b"lost", -1)
    told = asyncio.Event()
    node = await one.read("/a", told.set)
    assert node is not None
    assert node.data == b"lost"
    await database.run(lambda c: _bring_back(c, rows))
    await other.write("/a", b"1", -1)
    await asyncio.wait_for(told.wait(), 10)
    node = await one.read("/a")
    assert node is not None
    assert node.data == b"1"


async def test_a_node_that_went_back_is_told(begin: Begin, database: Database) -> None:
    one, other = await begin(), await begin()
    await one.create("/a", b"0")
    rows = await database.run(_rows)
    await other.write("/a", b"lost", -1)
    told = asyncio.Event()
    await one.read("/a", told.set)
    await database.run(lambda c: _bring_back(c, rows))
    await asyncio.wait_for(told.wait(), 10)
    node = await one.read("/a")
    assert node is not None
    assert node.data == b"0"
