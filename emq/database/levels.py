"""Feature levels: what all processes of an environment can read, so that two versions of EMQ work side by side.

Each environment has a level in its database. Processes write only forms of that level or below. A host announces its
own level, the highest that it can read, and joins only if the environment's is not above that. `emq upgrade --level`
raises the environment's level once every host can read the new one; from then on, older hosts refuse to join. The
raise has two steps, so that no host joins unseen: a level is *announced*, which keeps older hosts from joining, while
nobody writes newer forms yet. It takes effect after one more look at the hosts. An older host that nobody saw, because
it was paused, finds the new level at its next look at the catalog, and ends.

A change of a form that several processes read (rows of the catalog, records of the coordination tree, stored messages)
raises `LEVEL` by one, and is written only where the environment has that level: an option of topics by a line in
`SINCE`, any other form by asking `current`.
"""

from __future__ import annotations

import sqlalchemy as sa

from emq.database import statements, tables
from emq.database.database import read_value
from emq.runtime import errors

LEVEL = 1
"""The highest level that this version can read."""

SINCE: dict[str, int] = {}
"""Fields and options of topics -> the level that brought them; all others are as old as level 1."""

KEY = "feature_level"
"""The key of the level in `emq_meta`."""

ANNOUNCED = "feature_level_announced"


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
    return admit(environment, read_value(connection, environment, KEY))


def admit(environment: str, level: int) -> int:
    """Return the level of an environment. Raises as `check`."""
    if level > LEVEL:
        raise errors.HostConflict(
            f"the {environment} environment is at feature level {level}, and this version of EMQ reads up to level "
            f"{LEVEL}: upgrade this process"
        )
    return level


def join(connection: sa.Connection, environment: str) -> int:
    """Return the environment's level, for a host that joins.

    Raises:
        HostConflict: this version cannot read all that is written there, or all that is about to be.
    """
    level = current(connection, environment)
    if (soon := announced(connection, environment)) > LEVEL:
        raise errors.HostConflict(
            f"the {environment} environment is about to be at feature level {soon}, and this version of EMQ reads up "
            f"to level {LEVEL}: upgrade this process, or take the raise back: emq upgrade --level {level}"
        )
    return level


def announced(connection: sa.Connection, environment: str) -> int:
    """Return the level of a raise that has not taken effect yet; 0 without one."""
    return read_value(connection, environment, ANNOUNCED)


def _begun(connection: sa.Connection, environment: str) -> int:
    topics = tables.topics
    row = sa.select(topics.c.name).where(topics.c.environment == environment).limit(1)
    level = LEVEL if connection.execute(row).first() is None else 1
    _draw(connection, environment, KEY, level)
    return read_value(connection, environment, KEY)


def _draw(connection: sa.Connection, environment: str, key: str, value: int) -> None:
    values = {"environment": environment, "key": key, "value": value}
    connection.execute(statements.catalog(connection, "identity_draw"), values)


def put(connection: sa.Connection, environment: str, key: str, value: int) -> None:
    """Write a level."""
    _draw(connection, environment, key, value)
    meta = tables.meta
    here = sa.and_(meta.c.environment == environment, meta.c.key == key)
    connection.execute(sa.update(meta).where(here).values(value=value))
