"""The tables of the services: their migrations lead to them, and they stand beside those of the catalog."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from emq.database import Database, Schema
from emq_push.records import schema as push
from emq_scheduling.database import schema as scheduling
from support import schemas


@pytest.mark.parametrize("schema", [push.PUSH, scheduling.SCHEDULING], ids=["push", "scheduling"])
async def test_the_migrations_lead_to_the_tables(schema: Schema, tmp_path: Path) -> None:
    await schemas.check(schema, tmp_path)


@pytest.mark.parametrize(
    ("ensure", "names"),
    [
        (push.ensure, {"emq_push_deliveries", "emq_push_revision"}),
        (scheduling.ensure, {"emq_scheduling_pools", "emq_scheduling_revision"}),
    ],
    ids=["push", "scheduling"],
)
async def test_the_tables_stand_beside_those_of_the_catalog(
    ensure: Callable[[Database], Awaitable[None]], names: set[str]
) -> None:
    database = await Database.open("sqlite://")
    try:
        await ensure(database)
        await ensure(database)
        tables = await database.run(lambda c: set(c.exec_driver_sql("SELECT name FROM sqlite_master").scalars()))
        assert {"emq_topics"} | names <= tables
    finally:
        await database.close()
