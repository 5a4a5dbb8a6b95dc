"""PostgreSQL undoes a transaction to end a deadlock: the transaction is carried out again, and few of them meet."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import AsyncIterator, Callable

import pytest
import sqlalchemy as sa

from emq.database import Database, urls
from emq.runtime import errors
from emq.runtime.environment import Environment
from emq.storage.answers import accepted
from emq.storage.log_store import Put
from emq_stores.sql import open_store
from emq_stores.sql.store import SqlStore

MINUTE_MS = 60_000


def deadlocks(url: str) -> int:
    """Return the deadlocks of sessions that have ended."""
    engine = sa.create_engine(urls.parse(url))
    with engine.connect() as connection:
        query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        found = int(connection.exec_driver_sql(query).scalar_one())
    engine.dispose()
    return found


@pytest.fixture
async def database(fresh_postgres: str) -> AsyncIterator[Database]:
    opened = await Database.open(fresh_postgres)
    yield opened
    await opened.close()


def crossing(left: threading.Barrier, *keys: str) -> Callable[[sa.Connection], int]:
    """Return a transaction that adds to two values; between them, it waits until another has locked its own first."""

    def run(connection: sa.Connection) -> int:
        for key in keys:
            add = sa.text("UPDATE emq_meta SET value = value + 1 WHERE environment = 'online' AND key = :key")
            connection.execute(add, {"key": key})
            if not left.broken:
                with contextlib.suppress(threading.BrokenBarrierError):
                    left.wait(5.0)
                left.abort()
        return 1

    return run


async def test_a_transaction_that_a_deadlock_undid_is_carried_out_again(
    database: Database, fresh_postgres: str
) -> None:
    rows = sa.text("INSERT INTO emq_meta (environment, key, value) VALUES ('online', 'a', 0), ('online', 'b', 0)")
    await database.run(lambda c: c.execute(rows).rowcount)
    barrier = threading.Barrier(2)
    runs = (database.run(crossing(barrier, *keys)) for keys in ("ab", "ba"))
    assert await asyncio.gather(*runs) == [1, 1]
    query = sa.text("SELECT value FROM emq_meta WHERE environment = 'online' AND key IN ('a', 'b')")
    assert await database.run(lambda c: list(c.execute(query).scalars())) == [2, 2]
    await database.close()
    assert deadlocks(fresh_postgres) == 1


async def test_a_transaction_that_ends_in_a_deadlock_each_time_fails(database: Database) -> None:
    tries = 0

    def undone(connection: sa.Connection) -> None:
        nonlocal tries
        tries += 1
        connection.exec_driver_sql("DO $$ BEGIN RAISE EXCEPTION 'undone' USING ERRCODE = 'deadlock_detected'; END $$")

    with pytest.raises(errors.DatabaseUnavailable, match="undone"):
        await database.run(undone)
    assert 1 < tries < 10


async def test_first_puts_of_the_same_names_at_once_wait_for_no_deadlock(fresh_postgres: str) -> None:
    """Whatever a put is to make (groups, queues, some with ids), it makes before it locks anything."""
    one, other = [await open_store(fresh_postgres, Environment.ONLINE) for _ in range(2)]
    chance = random.Random(7)

    async def put(store: SqlStore, names: list[str]) -> None:
        puts = [
            Put(f"{name}/0/only", [b"x"], ids=("id",), remember_ms=MINUTE_MS)
            if chance.random() < 0.5
            else Put(f"{name}/0/only", [b"x"])
            for name in names
        ]
        accepted(await store.log.put(puts))

    for turn in range(40):
        names = [f"t{turn}.{i}" for i in range(30)]
        stores = [one, other] * 4
        await asyncio.gather(*(put(store, chance.sample(names, 12)) for store in stores))
    await one.close()
    await other.close()
    assert deadlocks(fresh_postgres) == 0
