"""The logs of polling endpoints, on SQLite and PostgreSQL: nothing is skipped, told again or counted twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
import sqlalchemy as sa

from emq.database import Database
from emq_push.records import deliveries, schema, tables
from emq_push.records.poll_log import PollLog
from support import push_rows

LOG, TOPIC = PollLog("online"), "t1.ep_0"
N = 200


@pytest.fixture
async def database(db: Database) -> Database:
    await schema.ensure(db)
    row = {"environment": "online", "topic": TOPIC, "tenant": "t1", "endpoint": "ep_0", "body": "{}"}
    await db.run(lambda c: c.execute(sa.insert(tables.endpoints).values(**row, created_us=1, changed_us=1, log_end=0)))
    await db.run(lambda c: push_rows.fill(c, "t1", N, endpoints=1, states=(deliveries.PENDING,)))
    return db


async def place(database: Database, messages: Sequence[str]) -> None:
    await database.run(lambda c: LOG.place(c, TOPIC, messages, 5))


async def read(database: Database, after: int = 0) -> list[tuple[int, str]]:
    found = await database.run(lambda c: LOG.read(c, "t1", TOPIC, after, N), read_only=True)
    return [*map(tuple, found.rows)]


async def test_hosts_that_place_at_once_hide_no_message_from_a_consumer_that_goes_on(database: Database) -> None:
    parts = [[f"m{i:07d}" for i in range(first, first + 10)] for first in range(0, N, 10)]
    placing = asyncio.gather(*(place(database, part) for part in parts))
    seen: list[tuple[int, str]] = []
    is_over = False
    while not is_over:
        was_done = placing.done()
        new = await read(database, seen[-1][0] if seen else 0)
        seen += new
        is_over = was_done and not new
    await placing
    assert [number for number, _ in seen] == sorted({number for number, _ in seen})
    assert sorted(message for _, message in seen) == [message for part in parts for message in part]


async def test_what_was_acknowledged_is_not_placed_again_and_what_waits_keeps_its_number(database: Database) -> None:
    await place(database, ["m0000000", "m0000001", "m0000002"])
    first = (await read(database))[0][0]
    assert await database.run(lambda c: LOG.acknowledge(c, TOPIC, first, 9)) == 1
    waiting = await read(database)
    await place(database, ["m0000000", "m0000001", "m0000003"])
    again = await read(database)
    assert again[:2] == waiting
    assert [message for _, message in again] == ["m0000001", "m0000002", "m0000003"]


async def test_acknowledgements_at_once_settle_each_message_once(database: Database) -> None:
    await place(database, [f"m{i:07d}" for i in range(N)])
    last = (await read(database))[-1][0]
    counts = await asyncio.gather(*(database.run(lambda c: LOG.acknowledge(c, TOPIC, last, 9)) for _ in range(8)))
    assert sum(counts) == N
    state = sa.select(sa.func.count()).where(tables.deliveries.c.state == deliveries.DELIVERED)
    assert await database.run(lambda c: c.execute(state).scalar(), read_only=True) == N
    assert await read(database) == []
