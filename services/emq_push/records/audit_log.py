"""The rows of the audit log: who changed what, and when."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from emq_push.records import cursors, rows
from emq_push.records.cursors import Page
from emq_push.records.tables import audit_log as table


class Entry(msgspec.Struct, frozen=True):
    """Attributes:
    tenant: empty for a change of no tenant.
    actor: id and name of the key, "command line", or "app" for changes in code.
    action: such as "endpoint.changed".
    target: id of what was changed.
    changes: the new values, without secrets.
    """

    created_us: int
    id: str
    tenant: str
    actor: str
    action: str
    target: str
    changes: dict[str, Any]


class AuditFilter(NamedTuple):
    """The entries to list; all conditions must hold.

    Attributes:
        tenant: empty for changes of no tenant; None for all.
        actor, action: how they begin; empty for all.
        target: empty for all.
        since_us, until_us: made at the first or later, and before the second.
    """

    tenant: str | None = None
    actor: str = ""
    action: str = ""
    target: str = ""
    since_us: int = 0
    until_us: int = 1 << 62


ALL = AuditFilter()
MOST_VALUES = 50
"""Most actors, or actions, that begin alike and are read each along the index. More of them are common: then their
entries lie close together in the whole log."""


class AuditLog(rows.Rows):
    """The audit log."""

    table = table

    def add(self, connection: sa.Connection, entry: Entry) -> None:
        values = {**msgspec.structs.asdict(entry), "changes": msgspec.json.encode(entry.changes).decode()}
        connection.execute(sa.insert(table).values(environment=self._environment, **values))

    def page(self, connection: sa.Connection, limit: int, cursor: str, wanted: AuditFilter = ALL) -> Page[Entry]:
        """Return entries, the latest first. Raises `InvalidCursor`."""
        created = table.c.created_us
        query = sa.select(table).where(self._mine, created >= wanted.since_us, created < wanted.until_us)
        if wanted.tenant is not None:
            query = query.where(table.c.tenant == wanted.tenant)
        if wanted.target:
            query = query.where(table.c.target == wanted.target)
        begins = [(table.c.actor, wanted.actor), (table.c.action, wanted.action)]
        for column, begin in begins:
            if begin:
                query = query.where(*_range(column, begin))
        parts = [query]
        for column, begin in begins:
            if begin and not wanted.target and len(values := self._values(connection, column, begin)) <= MOST_VALUES:
                parts = [query.where(column == value) for value in values]
                break
        return cursors.read(connection, parts, [created, table.c.id], _entry, limit, cursor, newest_first=True)

    def _values(self, connection: sa.Connection, column: sa.Column[str], begin: str) -> list[str]:
        """Return the values of a column that begin so, each by one look at its index; at most one too many."""
        following = sa.select(sa.func.min(column)).where(self._mine, *_range(column, begin))
        found: list[str] = []
        value = connection.execute(following).scalar()
        while value is not None and len(found) <= MOST_VALUES:
            found.append(str(value))
            value = connection.execute(following.where(column > value)).scalar()
        return found


def _range(column: sa.Column[str], begin: str) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions for texts that begin so: the highest character of all is in no text of ours."""
    return column >= begin, column < begin + chr(0x10FFFF)


def _entry(row: sa.Row[tuple[object, ...]]) -> Entry:
    changes = msgspec.json.decode(row.changes)
    return Entry(row.created_us, row.id, row.tenant, row.actor, row.action, row.target, changes)
