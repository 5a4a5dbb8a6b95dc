"""The synchronous SQLAlchemy engine, set up for SQLite or PostgreSQL."""

from __future__ import annotations

import sqlite3
import time
from typing import Any

import sqlalchemy as sa
import sqlalchemy.event
import sqlalchemy.pool

from emq.database import urls
from emq.database.deadline import Deadline
from emq.runtime import errors, extras, private_files
from emq.storage.durability import Durability

BUSY_TIMEOUT_S = 5.0
"""Most seconds that SQLite waits for another process's write to end."""

POSTGRES_THREADS = 4

# A write to many queues touches a page of each, and the same pages are written again and again, so copying the log to
# the file seldom saves most copies. A `LogCopier` does it; this bound (128 MB) is for when it cannot.
_SQLITE_WAL_PAGES = 32_000
_SQLITE_CACHE_KIB = 32 << 10

# Under NORMAL, a power loss can undo the last commits, but not corrupt the file; a killed process loses nothing.
_SQLITE_SYNCHRONOUS = {Durability.ACCEPTED: "NORMAL", Durability.REPLICATED: "FULL", Durability.FSYNCED: "FULL"}
_POSTGRES_COMMIT = {Durability.ACCEPTED: "off", Durability.REPLICATED: "remote_apply", Durability.FSYNCED: "on"}


def create(url: sa.URL, deadline: Deadline, idle_s: float) -> sa.Engine:
    """Return an engine with one connection (SQLite) or up to four (PostgreSQL); nothing is connected yet.

    Args:
        deadline: the deadline for every wait of a connection to PostgreSQL. SQLite waits for locks only, at most
            `BUSY_TIMEOUT_S`.
        idle_s: most seconds that a process which was stopped in the middle of a transaction holds its locks in
            PostgreSQL. SQLite cannot take a lock away from a process.

    Raises:
        InvalidSettings: the driver is not installed; the text says what to install.
    """
    if url.get_backend_name() == "sqlite":
        path = urls.sqlite_path(url)
        in_memory = path is None
        engine = sa.create_engine(
            url,
            poolclass=sqlalchemy.pool.StaticPool if in_memory else sqlalchemy.pool.QueuePool,
            connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False},
            **({} if in_memory else {"pool_size": 1, "max_overflow": 0}),
        )
        if path is not None and not path.startswith("file:"):
            sqlalchemy.event.listen(engine, "do_connect", lambda *_: private_files.create(path))
        sqlalchemy.event.listen(engine, "connect", _set_up_sqlite)
        return engine
    try:
        from emq.database import postgres

        engine = sa.create_engine(
            url,
            pool_size=POSTGRES_THREADS,
            max_overflow=0,
            # After a restart of the server the pool is full of dead connections, and each would fail one call.
            pool_pre_ping=True,
            connect_args={"application_name": "emq"},
        )
        postgres.guard(engine, deadline, idle_s)
        return engine
    except ImportError as exc:
        raise errors.InvalidSettings(
            f"PostgreSQL needs a driver that is not installed; run: {extras.remedy('postgres')}"
        ) from exc


def begin(
    connection: sa.Connection, read_only: bool, durability: Durability | None, long_s: float | None = None
) -> None:
    """Begin the transaction of `connection` in the database; None leaves the default durability.

    Args:
        long_s: seconds that a statement may take, if more than PostgreSQL's usual limit here.

    A writer on SQLite takes the write lock at once: a transaction that reads first would fail if another process wrote
    in between.
    """
    if connection.dialect.name == "sqlite":
        # Set before the transaction begins: inside a transaction SQLite silently ignores the change.
        mode = _SQLITE_SYNCHRONOUS[durability or Durability.ACCEPTED]
        driver = connection.connection.driver_connection
        assert driver is not None
        if connection.info.get("synchronous") != mode:
            driver.execute(f"PRAGMA synchronous={mode}")
            connection.info["synchronous"] = mode
        driver.execute("BEGIN" if read_only else "BEGIN IMMEDIATE")  # SQLAlchemy would make a result of it
        return
    if durability is not None:
        connection.exec_driver_sql(f"SET LOCAL synchronous_commit TO {_POSTGRES_COMMIT[durability]}")
    if long_s is not None:
        from emq.database import postgres

        postgres.last_longer(connection, long_s)


def _set_up_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    # The driver must not begin transactions by itself: `begin` decides which kind.
    connection.isolation_level = None
    connection.execute(f"PRAGMA wal_autocheckpoint={_SQLITE_WAL_PAGES}")
    connection.execute(f"PRAGMA cache_size=-{_SQLITE_CACHE_KIB}")
    if connection.execute("PRAGMA journal_mode").fetchone()[0] in ("wal", "memory"):
        return
    # Two processes that create the file together: switching the journal ignores the busy timeout.
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as exc:
            if "locked" not in str(exc) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
