"""What a database does for a statement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from emq.database import Database


@contextmanager
def statements(database: Database) -> Iterator[list[tuple[str, Any]]]:
    """Collect the statements that run within the block."""
    seen: list[tuple[str, Any]] = []

    def note(_c: object, _cursor: object, text: str, parameters: Any, *_: object) -> None:
        seen.append((text, parameters))

    sa.event.listen(database._engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        sa.event.remove(database._engine, "before_cursor_execute", note)


async def plan(database: Database, text: str, parameters: Any) -> str:
    explain = "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF)" if database.dialect == "postgresql" else "EXPLAIN QUERY PLAN"
    rows = await database.run(lambda c: c.exec_driver_sql(f"{explain} {text}", parameters).all())
    return "\n".join(str(row[-1]) for row in rows)
