"""Statements that SQLite and PostgreSQL write alike, but SQLAlchemy does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite


def upsert(connection: sa.Connection, table: sa.Table, values: Sequence[Mapping[str, Any]]) -> None:
    """Write rows; a row of the same primary key gets the new values."""
    if not values:
        return
    insert = (postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert)(table)
    keys = [column.name for column in table.primary_key]
    rest = {name: insert.excluded[name] for name in values[0] if name not in keys}
    connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=rest), list(values))


def insert(table: sa.Table, columns: Sequence[str]) -> Mapping[str, str]:
    """Return the text of an insert for each driver, to skip SQLAlchemy's work on each row."""
    names = ", ".join(("environment", *columns))
    return {
        dialect: f"INSERT INTO {table.name} ({names}) VALUES ({', '.join([mark] * (len(columns) + 1))})"
        for dialect, mark in (("sqlite", "?"), ("postgresql", "%s"))
    }
