"""Empty databases on a PostgreSQL server: to make one writes some 300 files, to empty one takes milliseconds."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator

import sqlalchemy as sa

from emq.database import schema, urls

_LAYOUT = """
SELECT attrelid::regclass::text, attname, attnum, atttypid, attnotnull, attisdropped,
       (SELECT count(*) FROM pg_index WHERE indrelid = attrelid)
FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
WHERE relnamespace = 'public'::regnamespace ORDER BY 1, attnum
"""

_USERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"

_TABLES = reversed(schema.CATALOG.metadata.sorted_tables)
_EMPTY = ";".join((*(f"DELETE FROM {table.name}" for table in _TABLES), "SELECT pg_stat_reset()"))


class FreshDatabases:
    """Hands out databases with the catalog's tables. After its test, a database is emptied, for a later test.

    A database whose tables a test changed, or with which somebody is still connected, is dropped.

    Args:
        url: of the server's administrator.
    """

    def __init__(self, url: str) -> None:
        self._admin = sa.create_engine(urls.parse(url), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        self._names = (f"fresh_{os.getpid()}_{n}" for n in itertools.count())
        self._empty: list[str] = []
        self._layout: object = None

    @contextlib.contextmanager
    def one(self) -> Iterator[str]:
        """Give the URL of an empty database; when the context ends, it is emptied or gone."""
        name = self._empty.pop() if self._empty else self._made()
        yield self._at(name).set(drivername="postgresql").render_as_string(hide_password=False)
        if self._emptied(name):
            self._empty.append(name)
        else:
            self._run(self._admin, f"DROP DATABASE {name} WITH (FORCE)")

    def _made(self) -> str:
        name = next(self._names)
        self._run(self._admin, f"CREATE DATABASE {name}")
        engine = sa.create_engine(self._at(name), poolclass=sa.NullPool)
        with engine.begin() as connection:
            schema.ensure(connection, schema.CATALOG)
            self._layout = connection.exec_driver_sql(_LAYOUT).all()
        return name

    def _emptied(self, name: str) -> bool:
        try:
            with sa.create_engine(self._at(name), poolclass=sa.NullPool).begin() as connection:
                if (
                    connection.exec_driver_sql(_USERS).scalar()
                    or connection.exec_driver_sql(_LAYOUT).all() != self._layout
                ):
                    return False
                connection.exec_driver_sql(_EMPTY)
        except sa.exc.DBAPIError:  # a test dropped it, or closed it
            return False
        return True

    def _at(self, name: str) -> sa.URL:
        return self._admin.url.set(database=name)

    @staticmethod
    def _run(engine: sa.Engine, statement: str) -> None:
        with engine.connect() as connection:
            connection.exec_driver_sql(statement)
