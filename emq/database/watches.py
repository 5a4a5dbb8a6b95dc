"""Notes of the topics that somebody looks at now: hosts measure these each second, all others more seldom.

The notes are rows of `emq_meta`: `watch:<name>` with the time, in milliseconds since the epoch, up to which the
watcher wants figures. A watcher repeats its note while it looks.
"""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from emq.database import statements, tables
from emq.database.database import QUICK_S, Database

_PREFIX = "watch:"

MOST = 400
"""Most names that hosts measure at a time."""

_meta = tables.meta


async def note(database: Database, environment: str, names: Collection[str], now_ms: int, for_ms: int) -> None:
    """Ask hosts to measure topics each second for some time. Writes only if less than half of that time is noted.

    Args:
        names: topics; with `*` at the end, all topics together whose names begin with the text before it.
        now_ms: the environment's time.
    """
    known = await database.run(lambda c: noted(c, environment, now_ms), read_only=True, deadline_s=QUICK_S)
    if wanted := [name for name in names if known.get(name, 0) < now_ms + for_ms / 2]:
        await database.run(lambda c: _note(c, environment, wanted, now_ms, now_ms + for_ms), deadline_s=QUICK_S)


def _note(connection: sa.Connection, environment: str, names: Collection[str], now_ms: int, until_ms: int) -> None:
    """Note names, and drop expired notes."""
    expired = (
        _meta.c.environment == str(environment),
        _meta.c.key.startswith(_PREFIX, autoescape=True),
        _meta.c.value < now_ms,
    )
    connection.execute(sa.delete(_meta).where(*expired))
    values = [{"environment": str(environment), "key": _PREFIX + name, "value": until_ms} for name in sorted(names)]
    connection.execute(statements.catalog(connection, "watch_note"), values)


def noted(connection: sa.Connection, environment: str, now_ms: int) -> dict[str, int]:
    """Return the names that somebody looks at now, at most `MOST`, with the times up to which they are noted."""
    values = {"environment": str(environment), "like": f"{_PREFIX}%", "now_ms": now_ms, "most": MOST}
    return {key.removeprefix(_PREFIX): until_ms for key, until_ms in statements.run(connection, "watch_noted", values)}
