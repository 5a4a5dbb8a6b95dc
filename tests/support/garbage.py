"""A program that writes garbage over the data of some topics, in every key and column of a store."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import redis.asyncio
import sqlalchemy as sa

GARBAGE: list[bytes] = [
    b"",
    b"\x00",
    b"\xff\xfe",
    b"inf",
    b"-inf",
    b"nan",
    b"9" * 400,
    b"-1",
    b"7.5",
    b"1 99999 x",
    b"[",
    b"{}",
    b"\xdc\x00\x16" + b"\xa1a" * 22,
    b"\x95\xa1a",
    b"\xed\xa0\x80",
    b"null",
    b"1e308",
]

NUMBERS = [-1, 0, 1, 17, 1 << 40, (1 << 62) - 1, (1 << 63) - 1, -(1 << 63)]
FLOATS = [float("inf"), float("-inf"), float("nan"), 1e300, -5.0, 7.5]

CATALOG_TABLES = ("emq_topics", "emq_checkpoints", "emq_passages")
STORE_TABLES = ("store_queues", "store_groups")
PARTS = {"store_messages": ("queue_id", "store_queues"), "store_entries": ("slot_id", "store_groups")}
PARTS["store_members"] = PARTS["store_rests"] = PARTS["store_entries"]
"""Tables of the store whose rows belong to rows of another one: by which column, and to which."""

NAMES = ("topic", "queue", "name", "lane", "slot", "group_name")
KEPT = {"id", "environment", "queue_id", "slot_id", "msg_offset"}
"""Columns that say which row it is; another value would be another row."""


def garbage(rng: random.Random) -> bytes:
    return rng.choice(GARBAGE) if rng.random() < 0.7 else rng.randbytes(rng.randrange(1, 60))


# --------------------------------------------------------------------------------------------------------------- Redis


async def damage_redis(url: str, rng: random.Random, mark: str) -> int:
    """Write into each key whose name has the mark, and each field of other keys that has it; returns how often."""
    if url.startswith("redis+cluster"):
        client: Any = redis.asyncio.RedisCluster.from_url(url.replace("redis+cluster", "redis").partition(",")[0])
    else:
        client = redis.asyncio.Redis.from_url(url)
    done = 0
    try:
        keys = sorted([key async for key in client.scan_iter(count=1000)])
        for key in keys:
            mine = mark.encode() in key
            with contextlib.suppress(redis.exceptions.ResponseError):
                done += await _damage_key(client, key, (await client.type(key)).decode(), rng, None if mine else mark)
    finally:
        await client.aclose()
    return done


async def _damage_key(client: Any, key: bytes, kind: str, rng: random.Random, mark: str | None) -> int:
    """Args: mark: of the fields that may be touched; None for all, and new ones."""
    if kind == "hash":
        fields = sorted(field for field in await client.hkeys(key) if mark is None or mark.encode() in field)
        for field in fields[:20]:
            await client.hset(key, field, garbage(rng))
        if mark is None:
            await client.hset(key, garbage(rng), garbage(rng))
        return len(fields)
    if mark is not None:
        return 0
    if kind == "zset":
        await client.zadd(key, {garbage(rng): rng.choice([float("inf"), float("-inf"), 1e300, -5, 7.5])})
        for member in (await client.zrange(key, 0, 1))[:1]:
            await client.zadd(key, {member: rng.choice([float("inf"), float("-inf"), 1e300, -5, 7.5])})
    elif kind == "list":
        await client.rpush(key, garbage(rng))
        await client.lset(key, 0, garbage(rng))
    elif kind == "string":
        await client.set(key, garbage(rng))
    elif kind == "set":
        await client.sadd(key, garbage(rng))
    return 1


# ----------------------------------------------------------------------------------------------------------------- SQL


async def damage_sql(url: str, rng: random.Random, tables: tuple[str, ...], like: str) -> int:
    """Write one value into each column of what belongs to names like this, some columns each time; how many rows."""
    return await asyncio.to_thread(
        _damage_sql, url.replace("postgresql://", "postgresql+psycopg://"), rng, tables, like
    )


def _damage_sql(url: str, rng: random.Random, tables: tuple[str, ...], like: str) -> int:
    engine = sa.create_engine(url)
    done = 0
    try:
        for table in tables:
            where = _rows_of(engine, table)
            for column in sa.inspect(engine).get_columns(table):
                if column["name"] in KEPT or column["name"] in NAMES or rng.random() < 0.3:
                    continue
                value = _value(rng, column["type"], engine.dialect.name == "sqlite")
                # What the database itself refuses cannot be in there.
                with contextlib.suppress(sa.exc.DBAPIError, OverflowError), engine.begin() as connection:
                    at = sa.text(f'UPDATE {table} SET "{column["name"]}" = :v WHERE {where}')
                    done += connection.execute(at, {"v": value, "like": like}).rowcount
    finally:
        engine.dispose()
    return done


def _rows_of(engine: sa.Engine, table: str) -> str:
    if table in PARTS:
        column, whole = PARTS[table]
        # About every other row, so that damaged ones have sound neighbours.
        return f"{column} IN (SELECT id FROM {whole} WHERE name LIKE :like) AND {_other(engine, table)}"
    names = [column["name"] for column in sa.inspect(engine).get_columns(table) if column["name"] in NAMES]
    return f'"{names[0]}" LIKE :like'


def _other(engine: sa.Engine, table: str) -> str:
    if table == "store_messages":
        return "msg_offset % 2 = 0"
    return "substr(id, length(id), 1) IN ('0', '2', '4', '6', '8', 'a', 'c', 'e')"


def _value(rng: random.Random, kind: Any, anything: bool) -> Any:
    text = garbage(rng)
    if anything and rng.random() < 0.15:  # SQLite keeps values of any type in any column
        return rng.choice([text, text.decode("latin-1"), rng.choice(NUMBERS)])
    if isinstance(kind, sa.LargeBinary):
        return text
    if isinstance(kind, sa.Text | sa.String):
        return text.decode("latin-1").replace("\0", "?")
    return rng.choice(FLOATS if isinstance(kind, sa.Float) else NUMBERS)
