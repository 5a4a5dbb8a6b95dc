"""What all tables of the service share: the rows of one environment, many rows at a time, and inserts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

T = TypeVar("T")

IDS_AT_ONCE = 500
"""Most ids in one statement."""


class Rows:
    """Reads and writes rows of one environment, within the caller's transaction.

    Args:
        environment: "online" or "sandbox".
    """

    table: ClassVar[sa.Table]

    def __init__(self, environment: str) -> None:
        self._environment = str(environment)
        self._mine = self.table.c.environment == self._environment

    def _of(self, table: sa.Table, tenant: str) -> sa.ColumnElement[bool]:
        """Return the condition for the rows of a tenant."""
        return sa.and_(table.c.environment == self._environment, table.c.tenant == tenant)


def chunks(ids: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield ids, `IDS_AT_ONCE` at a time."""
    for start in range(0, len(ids), IDS_AT_ONCE):
        yield ids[start : start + IDS_AT_ONCE]


def topics_after(connection: sa.Connection, table: sa.Table, environment: str, topic: str, limit: int) -> list[str]:
    """Return the next topics that have rows, by name; one look-up for each, however many rows they have."""
    following = sa.select(sa.func.min(table.c.topic)).where(table.c.environment == environment)
    following = following.where(table.c.topic > sa.bindparam("last"))
    found = [topic]
    while len(found) <= limit and (name := connection.execute(following, {"last": found[-1]}).scalar()):
        found.append(str(name))
    return found[1:]


def add_missing(connection: sa.Connection, table: sa.Table, values: Sequence[Mapping[str, Any]]) -> None:
    """Write rows, except those of which there is one of the same key."""
    connection.execute(_insert(connection, table).on_conflict_do_nothing(), list(values))


def upsert(connection: sa.Connection, table: sa.Table, values: Sequence[Mapping[str, Any]]) -> None:
    """Write rows; a row of the same primary key gets the new values."""
    if not values:
        return
    insert = _insert(connection, table)
    keys = [column.name for column in table.primary_key]
    rest = {name: insert.excluded[name] for name in values[0] if name not in keys}
    connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=rest), list(values))


def _insert(connection: sa.Connection, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    return (postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert)(table)


def insert(table: sa.Table, columns: Sequence[str]) -> Mapping[str, str]:
    """Return the text of an insert for each driver, to skip SQLAlchemy's work on each row."""
    names = ", ".join(("environment", *columns))
    return {
        dialect: f"INSERT INTO {table.name} ({names}) VALUES ({', '.join([mark] * (len(columns) + 1))})"
        for dialect, mark in (("sqlite", "?"), ("postgresql", "%s"))
    }
