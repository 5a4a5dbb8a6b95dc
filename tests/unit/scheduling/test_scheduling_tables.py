"""The tables of resource scheduling: its migrations lead to them, and they stand beside those of the catalog."""

from __future__ import annotations

from pathlib import Path

from emq.database import Database
from emq_scheduling.database import schema
from support import schemas


async def test_the_migrations_lead_to_the_tables(tmp_path: Path) -> None:
    await schemas.check(schema.SCHEDULING, tmp_path)


async def test_the_tables_stand_beside_those_of_the_catalog() -> None:
    database = await Database.open("sqlite://")
    try:
        await schema.ensure(database)
        await schema.ensure(database)
        tables = await database.run(lambda c: set(c.exec_driver_sql("SELECT name FROM sqlite_master").scalars()))
        assert {"emq_topics", "emq_scheduling_pools", "emq_scheduling_revision"} <= tables
    finally:
        await database.close()
