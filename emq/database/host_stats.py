"""Each host's latest snapshot, so that a dashboard need not reach every host."""

from __future__ import annotations

import sqlalchemy as sa

from emq.database import statements, tables

_table = tables.host_stats


def save(connection: sa.Connection, environment: str, host: str, json_text: str, now_ms: int) -> None:
    values = {"environment": str(environment), "host": host, "body": json_text, "updated_ms": now_ms}
    connection.execute(statements.catalog(connection, "host_stats_save"), values)


def load(connection: sa.Connection, environment: str) -> list[tuple[str, str, int]]:
    query = (
        sa.select(_table.c.host, _table.c.body, _table.c.updated_ms)
        .where(_table.c.environment == str(environment))
        .order_by(_table.c.host)
    )
    return [(host, body, updated_ms) for host, body, updated_ms in connection.execute(query)]


def drop(connection: sa.Connection, environment: str, host: str) -> None:
    connection.execute(sa.delete(_table).where(_table.c.environment == str(environment), _table.c.host == host))
