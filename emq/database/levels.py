"""Feature levels: what all processes of an environment can read, so that two versions of EMQ work side by side.

Each environment has a level in its database. Processes write only forms of that level or below. A host announces its
own level, the highest that it can read, and joins only if the environment's is not above that. `emq upgrade --level`
raises the environment's level once every host can read the new one; from then on, older hosts refuse to join.

A change of a form that several processes read (rows of the catalog, records of the coordination tree, stored messages)
raises `LEVEL` by one, and is written only where the environment has that level: an option of topics by a line in
`SINCE`, any other form by asking `current`.
"""

from __future__ import annotations

import sqlalchemy as sa

from emq import errors
from emq.database import statements, tables
from emq.database.database import read_value

LEVEL = 1
"""The highest level that this version can read."""

SINCE: dict[str, int] = {}
"""Fields and options of topics -> the level that brought them. Those that are not here are as old as level 1."""

_KEY = "feature_level"


def current(connection: sa.Connection, environment: str) -> int:
    """Return the environment's level, for whoever writes or joins.

    An environment without topics begins with the level of the first process that asks; others may write no newer form.
    Raises as `check`.
    """
    return check(connection, environment) or _begun(connection, environment)


def check(connection: sa.Connection, environment: str) -> int:
    """Return the environment's level, 0 if it has none yet; writes nothing.

    Raises:
        HostConflict: this version cannot read all that is written there.
    """
    level = read_value(connection, environment, _KEY)
    if level > LEVEL:
        raise errors.HostConflict(
            f"the {environment} environment is at feature level {level}, and this version of EMQ reads up to level "
            f"{LEVEL}: upgrade this process"
        )
    return level


def raised(connection: sa.Connection, environment: str, level: int) -> int:
    """Raise the environment's level, never lower it; return what it was. The caller has asked all hosts."""
    before = current(connection, environment)
    if level > before:
        _set(connection, environment, level)
    return before


def lowered(connection: sa.Connection, environment: str, level: int) -> None:
    """Undo a raise, because an older host joined while it was made. Nothing of the higher level was written yet."""
    _set(connection, environment, level)


def _begun(connection: sa.Connection, environment: str) -> int:
    topics = tables.topics
    row = sa.select(topics.c.name).where(topics.c.environment == environment).limit(1)
    level = LEVEL if connection.execute(row).first() is None else 1
    values = {"environment": environment, "key": _KEY, "value": level}
    connection.execute(statements.catalog(connection, "identity_draw"), values)
    return read_value(connection, environment, _KEY)


def _set(connection: sa.Connection, environment: str, level: int) -> None:
    meta = tables.meta
    here = sa.and_(meta.c.environment == environment, meta.c.key == _KEY)
    connection.execute(sa.update(meta).where(here).values(value=level))
