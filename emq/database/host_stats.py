"""Each host's latest snapshot, so that a dashboard need not reach every host."""

from __future__ import annotations

import sqlalchemy as sa

from emq.database import statements, tables, watches
from emq.database.database import QUICK_S, Database

_table = tables.host_stats


async def save(database: Database, environment: str, host: str, json_text: str, now_ms: int) -> frozenset[str]:
    """Keep the host's latest snapshot, for viewers outside of the cluster; return what they look at now.

    Args:
        now_ms: the environment's time.

    Returns:
        Names of topics; see `emq.database.watches`.
    """
    values = {"environment": str(environment), "host": host, "body": json_text, "updated_ms": now_ms}

    def run(connection: sa.Connection) -> frozenset[str]:
        statements.run(connection, "host_stats_save", values)
        return frozenset(watches.noted(connection, environment, now_ms))

    return await database.run(run, deadline_s=QUICK_S)


async def load(database: Database, environment: str) -> list[tuple[str, str, int]]:
    """Return the latest snapshot of every host, as (host, JSON text, milliseconds since the epoch), by host."""
    query = sa.select(_table.c.host, _table.c.body, _table.c.updated_ms).order_by(_table.c.host)
    mine = query.where(_table.c.environment == str(environment))

    def run(connection: sa.Connection) -> list[tuple[str, str, int]]:
        return [(host, body, updated_ms) for host, body, updated_ms in connection.execute(mine)]

    return await database.run(run, read_only=True)


async def drop(database: Database, environment: str, host: str) -> None:
    """Forget the host's snapshot. Safe to repeat."""
    rows = sa.delete(_table).where(_table.c.environment == str(environment), _table.c.host == host)
    await database.run(lambda c: c.execute(rows), deadline_s=QUICK_S)
