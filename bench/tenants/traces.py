"""What the store and the database hold of the family's topics, counted by their names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple, Self

import redis.asyncio
import sqlalchemy as sa

import emq
from bench.support.stage import Stage
from bench.tenants import family
from emq.database import Database, tables, urls
from emq.database.database import LONG_S
from emq_stores.redis import keys
from emq_stores.sql.tables import STORE
from emq_stores.sql.tables import metadata as of_store

_NAMES = ("name", "queue", "topic")
"""The columns that have a topic's name, or begin with it."""

_AT_ONCE = 1_000


class Traces(NamedTuple):
    """Attributes:
    keys: place in the store to the number of its keys with a name of the family in it. Fields and members of a key
        that all topics share count like keys; so do rows of an SQL store.
    rows: table of the database to the number of its rows with such a name.
    """

    keys: Counter[str]
    rows: Counter[str]

    def beyond(self, before: Self) -> Traces:
        return Traces(self.keys - before.keys, self.rows - before.rows)


def text(places: Mapping[str, int]) -> str:
    """Return the numbers that are not 0, by place, as a text."""
    return ", ".join(f"{place} {number:,}" for place, number in places.items() if number) or "nothing"


async def found(app: emq.App, stage: Stage) -> Traces:
    rows = await app.database.run(
        lambda connection: _rows(connection, tables.metadata, nameless=False), read_only=True, deadline_s=LONG_S
    )
    return Traces(await (_in_redis(stage.url) if stage.store == "redis" else _in_sql(stage.url)), rows)


async def _in_redis(url: str) -> Counter[str]:
    """Count keys, and members of shared keys, by the kind of the key."""
    there: Counter[str] = Counter()
    pattern = f"*{family.PREFIX}*"
    async with redis.asyncio.Redis.from_url(url.partition("?")[0], decode_responses=True) as server:
        async for key in server.scan_iter(count=_AT_ONCE):
            kind = key.partition("}:")[2].partition(":")[0] or "slot"
            if keys.is_shared(key):
                scans = {"hash": server.hscan_iter, "set": server.sscan_iter, "zset": server.zscan_iter}
                async for _ in scans[keys.expected_type(key)](key, match=pattern, count=_AT_ONCE):
                    there[kind] += 1
            elif family.PREFIX in key:
                there[kind] += 1
    return there


async def _in_sql(url: str) -> Counter[str]:
    """Count rows by table; those of a table without names all, since the store began empty."""
    plain = urls.parse(url).difference_update_query(["max_queue_qps"]).render_as_string(hide_password=False)
    database = await Database.open(plain, STORE, create=False)
    try:
        return await database.run(
            lambda connection: _rows(connection, of_store, nameless=True), read_only=True, deadline_s=LONG_S
        )
    finally:
        await database.close()


def _rows(connection: sa.Connection, metadata: sa.MetaData, *, nameless: bool) -> Counter[str]:
    there: Counter[str] = Counter()
    for table in metadata.sorted_tables:
        named = [table.c[name] for name in _NAMES if name in table.c]
        if not named and not nameless:
            continue
        query = sa.select(sa.func.count()).select_from(table)
        for column in named:  # the family itself has a row of its own
            query = query.where(column.startswith(family.PREFIX, autoescape=True), column != family.NAME)
        there[table.name] = connection.scalar(query) or 0
    return there
