"""Endpoints of the push service that were disabled or enabled, from its audit log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import sqlalchemy as sa

from emq_notices.notice import Kind, Notice, time_of
from emq_push.records.audit_log import AuditLog, Entry
from emq_push.records.tables import audit_log

if TYPE_CHECKING:
    from emq.app import App

MOST = 100
"""Most changes told in one look; there may be more of an outage of many endpoints, which `emq top` shows."""

_ACTIONS: dict[str, Kind] = {"endpoint.disabled": "endpoint.disabled", "endpoint.enabled": "endpoint.enabled"}


async def changes(app: App, since_us: int) -> Sequence[tuple[int, Notice]]:
    """Return the changes after a time, the oldest first, with the time of each; none without a push service."""

    def read(connection: sa.Connection) -> Sequence[Entry]:
        if not sa.inspect(connection).has_table(audit_log.name):
            return []
        page = AuditLog(str(app.settings.environment)).page(connection, MOST, "")
        return [entry for entry in page.rows if entry.created_us > since_us]

    entries = await app.database.run(read, read_only=True)
    return [(entry.created_us, _notice(entry)) for entry in reversed(entries) if entry.action in _ACTIONS]


def _notice(entry: Entry) -> Notice:
    kind = _ACTIONS[entry.action]
    reason = str(entry.changes.get("reason", "")) if kind == "endpoint.disabled" else ""
    at = time_of(entry.created_us / 1e6)
    subject = f"{entry.tenant}.{entry.target}"
    text = f"endpoint {subject} was {kind.removeprefix('endpoint.')} by {entry.actor}{f': {reason}' if reason else ''}"
    return Notice(type=kind, text=text, subject=subject, tenant=entry.tenant, reason=reason, at=at)
