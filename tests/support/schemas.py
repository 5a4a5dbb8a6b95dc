"""Checks of a set of tables and its migrations.

`first.sql` beside the first revision holds the tables of the first release. A line for one of the databases names it at
its end. Until that release, write these files again after a change of the tables:

    cd tests && ../.venv/bin/python -m support.schemas
"""

from __future__ import annotations

import difflib
import importlib.resources
import pkgutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import alembic.autogenerate
import alembic.migration
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from emq.database import Database, Schema, schema
from emq.runtime import errors

SCHEMAS = (
    "emq.database:CATALOG",
    "emq_push.records.schema:PUSH",
    "emq_scheduling.database.schema:SCHEDULING",
    "emq_spark.source.notes:SCHEMA",
    "emq_stores.sql.tables:STORE",
)

DIALECTS = {"sqlite": sqlite.dialect(), "postgresql": postgresql.dialect()}

MARKS = {"- ": "  -- SQLite", "+ ": "  -- PostgreSQL", "  ": ""}
"""The ends of lines in `first.sql`, by the signs that `difflib` puts before lines of SQLite, of PostgreSQL, of both."""


async def check(tables: Schema, directory: Path) -> None:
    """Migrations lead from the first tables to those that a fresh database gets; an unknown revision is refused."""
    wrong = difference(tables, directory / "migrated.db")
    if wrong:
        pytest.fail(wrong, pytrace=False)
    await _refuses_an_unknown_revision(tables, directory / "fresh.db")


def difference(tables: Schema, path: Path) -> str:
    """Return a line that says what to do if tables were changed without a revision; empty if all is well.

    Args:
        path: for a new SQLite file.
    """
    where = _first(tables)
    text = where.read_text()
    found: object = None
    if tables.head == "first" and text != statements(tables):
        found = "they differ from first.sql"
    engine = sa.create_engine(f"sqlite:///{path}")
    if found is None:
        with sqlite3.connect(path) as connection:
            connection.executescript(_of_sqlite(text))
        connection.close()
        with engine.begin() as migrated:
            version = schema._version_table(tables)
            version.create(migrated)
            migrated.execute(version.insert().values(version_num="first"))
            schema._upgrade(migrated, tables, "first")
            options = {"version_table": tables.version_table, "compare_type": True}
            context = alembic.migration.MigrationContext.configure(migrated, opts=options)
            found = alembic.autogenerate.compare_metadata(context, tables.metadata)
            head = schema.revision(migrated, tables)
            found = found or (f"they end at {head}, not at {tables.head}" if head != tables.head else None)
    engine.dispose()
    if not found:
        return ""
    return (
        f"the tables of {tables.migrations} are not those that its migrations lead to ({found}): add a revision, see "
        "emq.database.schema.Schema.migrations; or, before the first release, run: "
        "cd tests && ../.venv/bin/python -m support.schemas"
    )


def statements(tables: Schema) -> str:
    """Return the statements that make the tables, for SQLite and for PostgreSQL; each table with its indexes."""
    found = []
    for table in tables.metadata.sorted_tables:
        indexes = sorted(table.indexes, key=lambda index: str(index.name))
        made = [CreateTable(table), *map(CreateIndex, indexes)]
        both = difflib.ndiff(_lines(made, "sqlite"), _lines(made, "postgresql"))
        found.append("".join(f"{line[2:]}{MARKS[line[:2]]}\n" for line in both if line[:2] in MARKS))
    return "\n".join(found)


def _lines(made: Sequence[Any], dialect: str) -> list[str]:
    texts = (
        str(each.compile(dialect=DIALECTS[dialect])).strip().replace("\n WITHOUT", " WITHOUT") + ";" for each in made
    )
    return [line.rstrip().expandtabs(4) for text in texts for line in text.splitlines()]


async def _refuses_an_unknown_revision(tables: Schema, path: Path) -> None:
    url = f"sqlite:///{path}"
    await (await Database.open(url, tables)).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE {tables.version_table} SET version_num = 'v9999'")
        before = list(connection.iterdump())
    with pytest.raises(errors.InvalidSettings, match=r"'v9999'.*upgrade EMQ here, or use another database") as refused:
        await Database.open(url, tables)
    assert "\n" not in str(refused.value)
    assert list(connection.iterdump()) == before
    connection.close()


def _first(tables: Schema) -> Path:
    package, colon, directory = tables.migrations.partition(":")
    if not colon:
        return Path(package) / "first.sql"  # of a test
    return Path(str(importlib.resources.files(package))) / directory / "first.sql"


def _of_sqlite(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.endswith(MARKS["+ "]))


if __name__ == "__main__":
    for each in map(pkgutil.resolve_name, SCHEMAS):
        if each.head == "first":
            _first(each).write_text(statements(each))
