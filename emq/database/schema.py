"""Bring a database to the schema that this version of EMQ works with."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from emq.database import tables
from emq.runtime import errors

_LOCK_KEY = 0x656D71
"""Advisory lock under which PostgreSQL schemas are changed; SQLite's write lock does the same."""

_FIND = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table' AND name = '{}'",
    "postgresql": "SELECT relname FROM pg_class WHERE relname = '{}' AND pg_table_is_visible(oid)",
}
"""By dialect: the statement that returns the name of a table. Not PostgreSQL's `to_regclass`: after the wait for the
lock, that may still remember that there was no table, although another process has made it."""


class Schema(NamedTuple):
    """A set of tables with migrations of its own; several live side by side in one database.

    Attributes:
        metadata: the tables as of revision `head`.
        version_table: name of the table that holds the applied revision.
        head: the newest revision.
        migrations: where its revisions are, as `package:directory`.

    To change tables after the first release, change `metadata`, and add a revision beside `first.py`: a module with
    `revision = "second"`, `down_revision = "first"` (the last one before it) and a function `upgrade` that changes the
    tables that exist, with alembic's `op`. Then set `head` to the new revision. Leave `first.py` and `first.sql` alone:
    tests start from these tables, run the revisions, and compare the result with `metadata`.

    A revision is applied whole or not at all, since both databases undo changes of tables with their transaction.
    If several processes open an old database, one migrates it; the others wait.
    """

    metadata: sa.MetaData
    version_table: str
    head: str
    migrations: str


CATALOG = Schema(tables.metadata, "emq_catalog_revision", "first", "emq.database:migrations/versions")


def revision(connection: sa.Connection, schema: Schema) -> str | None:
    """Return the revision of the database's schema, or None if the schema is not there yet."""
    # The driver gets these texts as they are: SQLAlchemy would compile statements again for each database it opens.
    name = schema.version_table
    if connection.exec_driver_sql(_FIND[connection.dialect.name].format(name)).scalar() is None:
        return None
    found: str | None = connection.exec_driver_sql(f"SELECT version_num FROM {name}").scalar()
    return found


def ensure(connection: sa.Connection, schema: Schema) -> None:
    """Create or upgrade the schema's tables, in the connection's transaction.

    A fresh database gets the newest tables directly. Only a database of an older release runs migrations, since just
    importing alembic takes longer than creating the tables.

    Raises:
        InvalidSettings: another version of EMQ wrote the database, newer than this one or never released; upgrade this
            installation, or name another database. Nothing in the database has changed.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_KEY)))
    found = revision(connection, schema)
    if found == schema.head:
        return
    if found is None:
        for statement in _creation(schema, connection.dialect.name):
            connection.exec_driver_sql(statement)
    else:
        _upgrade(connection, schema, found)


@functools.cache
def _creation(schema: Schema, dialect: str) -> Sequence[str]:
    """Return the statements that make the newest tables. The text depends on nothing else, so it is made once."""
    statements: list[str] = []

    def note(made: sa.ExecutableDDLElement, *_: object) -> None:
        statements.append(str(made.compile(dialect=engine.dialect)))

    engine = sa.create_mock_engine(f"{dialect}://", note)
    schema.metadata.create_all(engine, checkfirst=False)
    _version_table(schema).create(engine, checkfirst=False)
    return *statements, f"INSERT INTO {schema.version_table} VALUES ('{schema.head}')"


def _version_table(schema: Schema) -> sa.Table:
    # Laid out as alembic lays out its own.
    column = sa.Column("version_num", sa.String(32), primary_key=True)
    return sa.Table(schema.version_table, sa.MetaData(), column)


def _upgrade(connection: sa.Connection, schema: Schema, found: str) -> None:
    import alembic.command
    import alembic.config
    import alembic.util

    config = alembic.config.Config()
    config.set_main_option("script_location", "emq.database:migrations")
    config.set_main_option("path_separator", "newline")  # the location has a colon
    config.set_main_option("version_locations", schema.migrations)
    config.attributes["connection"] = connection
    config.attributes["version_table"] = schema.version_table
    try:
        alembic.command.upgrade(config, "head")
    except alembic.util.CommandError as exc:
        raise errors.InvalidSettings(
            f"the database is at revision {found!r}, which this version of EMQ (revision {schema.head!r}) does not "
            "know; upgrade EMQ here, or use another database"
        ) from exc
