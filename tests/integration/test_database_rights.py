"""A database that lacks a table or a right says so in one line, and works again once it has them."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import emq_servers as servers
from emq.database import Database, statements
from emq.runtime import errors
from emq.runtime.environment import Environment
from emq.storage.lane_store import LaneAdd, LaneClaim
from emq.storage.log_store import Put, Read
from emq.topics.catalog import Catalog
from emq.topics.model import Topic
from emq_stores.sql import open_store

Call = Callable[[], Coroutine[Any, Any, object]]
_count = itertools.count(1)


@pytest.fixture
def server_url(postgres_server: servers.PostgresServer) -> Iterator[sa.URL]:
    """A database of its own, for which `clerk` may log in."""
    root = sa.make_url(postgres_server.url).set(drivername="postgresql+psycopg")
    name = f"rights_{next(_count)}"
    engine = sa.create_engine(root, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
        connection.exec_driver_sql("DROP ROLE IF EXISTS clerk")
        connection.exec_driver_sql("CREATE ROLE clerk LOGIN")
    yield root.set(database=name)
    with engine.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
        connection.exec_driver_sql("DROP ROLE clerk")
    engine.dispose()


def plain(url: sa.URL, **changed: str) -> str:
    return url.set(drivername="postgresql", **changed).render_as_string(hide_password=False)


def execute(url: sa.URL, *statements: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


async def refused(call: Call, error: type[errors.EMQError], *said: str) -> None:
    with pytest.raises(error) as caught:
        await call()
    text = str(caught.value)
    assert "\n" not in text
    assert "LINE 1" not in text
    for words in said:
        assert words in text


async def test_a_missing_right_is_one_line_that_names_the_table_and_the_remedy(server_url: sa.URL) -> None:
    await (await open_store(plain(server_url), Environment.ONLINE)).close()
    await (await Database.open(plain(server_url))).close()
    clerk = plain(server_url, username="clerk")
    await refused(lambda: open_store(clerk, Environment.ONLINE), errors.StoreUnavailable, "permission denied", "right")
    await refused(lambda: Database.open(clerk), errors.DatabaseUnavailable, "permission denied", "right")
    execute(server_url, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO clerk", "GRANT DELETE ON store_woken TO clerk")
    store, db = await open_store(clerk, Environment.ONLINE), await Database.open(clerk)
    put: Call = lambda: store.log.put([Put("t/0/high", [b"a"])])  # noqa: E731
    try:
        await refused(put, errors.StoreUnavailable, "permission denied for table store_groups", "give EMQ's user")
        create: Call = lambda: Catalog(db, "online", None).create(Topic("t", 1))  # noqa: E731
        await refused(create, errors.DatabaseUnavailable, "permission denied for table emq_", "give EMQ's user")
        execute(server_url, "GRANT ALL ON ALL TABLES IN SCHEMA public TO clerk")
        assert await put() == [range(1, 2)]
        await create()
    finally:
        await store.close()
        await db.close()


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
async def test_a_missing_table_is_one_line_that_names_it_in_every_call(
    dialect: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if dialect == "sqlite":
        alchemy = sa.make_url(f"sqlite:///{tmp_path}/emq.db")
        url = f"sqlite:///{tmp_path}/emq.db"
    else:
        alchemy = request.getfixturevalue("server_url")
        url = plain(alchemy)
    store, db = await open_store(url, Environment.ONLINE), await Database.open(url)
    calls: dict[str, Call] = {
        "put": lambda: store.log.put([Put("t/0/high", [b"a"])]),
        "read": lambda: store.log.read([Read("t/0/high", 1, 1, 1)]),
        "add": lambda: store.lanes.add([LaneAdd("t/0", "a", b"", 0)]),
        "claim": lambda: store.lanes.claim([LaneClaim("t/0", 1, 1)], 0),
    }
    try:
        for call in calls.values():
            await call()
        tables = ("store_messages", "store_entries", "store_queues", "store_groups", "emq_topics")
        execute(alchemy, *(f"ALTER TABLE {table} RENAME TO {table}_away" for table in tables))
        for call in calls.values():
            await refused(call, errors.StoreUnavailable, "store_", "restore them")
        await refused(Catalog(db, "online", None).list, errors.DatabaseUnavailable, "emq_topics", "restore them")
        execute(alchemy, *(f"ALTER TABLE {table}_away RENAME TO {table}" for table in tables))
        for call in calls.values():
            await call()
    finally:
        await store.close()
        await db.close()


@pytest.mark.parametrize("by", ["driver", "sqlalchemy"])
async def test_a_statement_of_ours_that_breaks_a_rule_is_no_outage(by: str, tmp_path: Path) -> None:
    """Some statements go straight to SQLite's driver, whose errors are not those of SQLAlchemy."""
    db = await Database.open(f"sqlite:///{tmp_path}/emq.db")
    values = {"environment": "online", "host": "h", "body": None, "updated_ms": 1}

    def save(connection: sa.Connection) -> None:
        if by == "driver":
            statements.run(connection, "host_stats_save", values)
        else:
            connection.execute(statements.catalog(connection, "host_stats_save"), values)

    with pytest.raises((sa.exc.IntegrityError, sqlite3.IntegrityError), match="NOT NULL"):
        await db.run(save)
    assert db.unreachable is None
    await db.close()
