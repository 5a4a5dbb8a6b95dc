"""The rows of the audit log: who changed what, and when."""

from __future__ import annotations

from typing import Any

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


class AuditLog(rows.Rows):
    """The audit log."""

    table = table

    def add(self, connection: sa.Connection, entry: Entry) -> None:
        values = {**msgspec.structs.asdict(entry), "changes": msgspec.json.encode(entry.changes).decode()}
        connection.execute(sa.insert(table).values(environment=self._environment, **values))

    def page(self, connection: sa.Connection, limit: int, cursor: str, tenant: str | None = None) -> Page[Entry]:
        """Return entries, the latest first. Raises `InvalidCursor`."""
        query = sa.select(table).where(self._mine)
        if tenant is not None:
            query = query.where(table.c.tenant == tenant)
        columns = [table.c.created_us, table.c.id]
        return cursors.read(connection, query, columns, _entry, limit, cursor, newest_first=True)


def _entry(row: sa.Row[tuple[object, ...]]) -> Entry:
    changes = msgspec.json.decode(row.changes)
    return Entry(row.created_us, row.id, row.tenant, row.actor, row.action, row.target, changes)
