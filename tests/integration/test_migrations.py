"""Migrations: hosts that start together migrate once, and a crash leaves nothing half."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from emq.database import Database, schema
from support import migrating


@pytest.fixture(params=["sqlite", "postgresql"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """Of a new database; the directory has the revisions."""
    migrating.write(tmp_path)
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/emq.db"
        return
    root, name = request.getfixturevalue("postgres_url"), f"m{uuid.uuid4().hex[:8]}"
    engine = sa.create_engine(root.replace("://", "+psycopg://", 1), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    engine.dispose()
    yield f"{root.rpartition('/')[0]}/{name}"


async def state_of(url: str, directory: Path, head: str) -> tuple[str | None, set[str], set[str]]:
    """The database's revision, its tables, and the columns of the first one."""
    tables = migrating.schema(directory, head)
    database = await Database.open(url, tables, create=False)

    def look(connection: sa.Connection) -> tuple[str | None, set[str], set[str]]:
        inspector = sa.inspect(connection)
        columns = {column["name"] for column in inspector.get_columns(migrating.NAME)}
        return schema.revision(connection, tables), set(inspector.get_table_names()), columns

    try:
        return await database.run(look, read_only=True)
    finally:
        await database.close()


BEFORE = ("first", {"migrated_things", "migrated_revision"}, {"id"})
AFTER = ("second", {"migrated_things", "migrated_others", "migrated_revision"}, {"id", "more"})


async def test_hosts_that_make_one_database_at_once_both_go_on(url: str, tmp_path: Path) -> None:
    assert migrating.processes(url, tmp_path, "second", 2) == [0, 0]
    assert await state_of(url, tmp_path, "second") == AFTER


async def test_hosts_that_migrate_one_database_at_once_both_go_on_and_one_migrates(url: str, tmp_path: Path) -> None:
    await (await Database.open(url, migrating.schema(tmp_path, "first"))).close()
    assert migrating.processes(url, tmp_path, "second", 2) == [0, 0]
    assert await state_of(url, tmp_path, "second") == AFTER
    assert (tmp_path / "runs").read_text() == "once,"


async def test_a_crash_in_the_middle_of_a_migration_leaves_nothing_half(url: str, tmp_path: Path) -> None:
    await (await Database.open(url, migrating.schema(tmp_path, "first"))).close()
    (tmp_path / "die").touch()
    assert migrating.processes(url, tmp_path, "second", 1) == [9]
    assert await state_of(url, tmp_path, "first") == BEFORE
    (tmp_path / "die").unlink()
    assert migrating.processes(url, tmp_path, "second", 1) == [0]
    assert await state_of(url, tmp_path, "second") == AFTER
