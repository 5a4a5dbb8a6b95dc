"""The names of one topic's queues, lanes and slots that a store still has somewhere."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from emq.storage.store import Store
from emq_stores.memory import MemoryStore
from emq_stores.redis import keys
from emq_stores.redis.store import RedisStore
from emq_stores.sql import tables
from emq_stores.sql.store import SqlStore
from emq_testing.contract.target import Target

_MEMBERS = {"hash": ("HKEYS",), "set": ("SMEMBERS",), "zset": ("ZRANGE", 0, -1)}


async def traces(store: Store, target: Target) -> dict[str, set[str]]:
    """Return the names by place; places without any are left out."""
    of_kind = {MemoryStore: _in_memory, SqlStore: _in_sql, RedisStore: _in_redis}
    find: Any = next(find for kind, find in of_kind.items() if isinstance(store, kind))
    found: dict[str, set[str]] = await find(store)
    named = {place: {name for name in names if name.startswith(target.topic)} for place, names in found.items()}
    return {place: names for place, names in named.items() if names}


async def _in_memory(store: MemoryStore) -> dict[str, set[str]]:
    return {place: set(value) for place, value in store._world._stored().items()}


async def _in_sql(store: SqlStore) -> dict[str, set[str]]:
    """Rows that belong to a row that is gone count under the names of all topics."""

    def look(connection: sa.Connection) -> dict[str, set[str]]:
        named = (tables.groups, tables.queues)
        there = {table.name: set(connection.scalars(sa.select(table.c.name))) for table in named}
        groups = sa.select(tables.groups.c.id)
        for table, column in ((tables.entries, "slot_id"), (tables.members, "slot_id"), (tables.ids, "group_id")):
            lost = sa.select(sa.func.count()).select_from(table).where(table.c[column].not_in(groups))
            assert connection.scalar(lost) == 0, table.name
        return there

    return await store._backend.db.run(look)


async def _in_redis(store: RedisStore) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    async for key in store._server.scan("*"):
        kind, _, name = key.partition("}:")[2].partition(":")
        if keys.is_shared(key):
            command, *more = _MEMBERS[keys.expected_type(key)]
            members = await store._server.command(command, key, *more)
            found.setdefault(kind, set()).update(member.decode().rpartition("\n")[2] for member in members)
        else:
            found.setdefault(kind or "slot", set()).add(name or key.partition("{")[2] or key)
    return found
