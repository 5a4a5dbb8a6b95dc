"""Runs transactions on an SQL database without blocking the event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import logging
import sqlite3
import time
from collections.abc import Callable
from typing import Self, TypeVar

import sqlalchemy as sa

from emq.database import engine, refusals, schema, statements, urls
from emq.database.deadline import Deadline
from emq.database.forks import ForkGuard
from emq.database.logcopier import LogCopier
from emq.database.refusals import reason_of
from emq.database.same_file import SameFile
from emq.runtime import errors
from emq.storage.durability import Durability

log = logging.getLogger(__name__)

T = TypeVar("T")

QUICK_S = 5.0
"""Most seconds for a statement about one row, including the wait for a free thread."""

ANSWER_S = 10.0
"""Most seconds for a statement about many rows. The largest takes a second or two on a busy machine."""

LONG_S = 600.0
"""Most seconds for setting up or upgrading the tables."""

IDLE_S = 30.0
"""Most seconds that a process which was stopped in the middle of a transaction holds its locks in PostgreSQL. A process
with a million topics, or on a busy machine, needs a part of it."""

CLOSE_S = 2.0
"""Most seconds that `close` waits for transactions under way."""

SLACK_S = 7.0
"""Seconds after its deadline at which a call gives up a thread that still resolves a name or waits for a disk."""

TRIES = 4
"""Times that a transaction is begun which the server undoes to end deadlocks."""

# Except for `refusals`, these errors mean that a statement was wrong. That is a bug of ours and must show as one.
_BUGS = (
    *(sa.exc.ProgrammingError, sa.exc.IntegrityError, sa.exc.DataError),
    *(sqlite3.ProgrammingError, sqlite3.IntegrityError, sqlite3.DataError),
)


class Database:
    """A database whose work runs on a few threads of its own: one for SQLite, four for PostgreSQL.

    A cancelled task only stops waiting; its transaction still ends on its thread, so that no connection leaks.
    May be shared by every task of a process.

    Every call has a deadline. If a server falls silent (keeps its connections and answers nothing), a call ends at its
    deadline: its connection is closed and its thread is free again.

    If an SQLite file is deleted or replaced while it is open, every call fails until the file is back.

    Attributes:
        url: the engine's URL.
        shown: the URL as an error message may show it.
        unavailable: the error to raise if the database cannot be reached; a subclass may name its own.
    """

    unavailable: type[errors.EMQError] = errors.DatabaseUnavailable

    def __init__(self, url: str, idle_s: float = IDLE_S) -> None:
        self.url = urls.parse(url)
        self.shown = urls.shown(self.url)
        self._deadline = Deadline()
        path = urls.sqlite_path(self.url)
        self._file = None if path is None else SameFile(path)
        located = self.url if self._file is None else self.url.set(database=self._file.path)
        self._engine = engine.create(located, self._deadline, idle_s)
        threads = 1 if self.dialect == "sqlite" else engine.POSTGRES_THREADS
        self._executor = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="emq-database")
        self._closed = False
        self._away_since: float | None = None
        self._trouble = ""
        self._reached = False
        self._waiting: dict[object, float] = {}
        self._copier = None if self._file is None else LogCopier(self._file)
        self._guard = contextlib.nullcontext() if self._file is None else ForkGuard(self._engine.dispose)

    @classmethod
    async def open(
        cls, url: str, tables: schema.Schema = schema.CATALOG, *, create: bool = True, idle_s: float = IDLE_S
    ) -> Self:
        """Connect, and create or upgrade the tables.

        Args:
            url: `sqlite:///path`, `sqlite://` (in memory, gone at close) or `postgresql://user:password@host/database`.
            tables: the tables that the database must have.
            create: if False, create neither file nor tables, unless the database is in memory.
            idle_s: see `IDLE_S`.

        Raises:
            InvalidSettings: the URL is not one of these, the file is not an SQLite database, or a newer EMQ set up the
                tables; correct it or upgrade.
            NoDatabase: the tables are missing, and `create` is False.
            DatabaseUnavailable: there is no connection.
        """
        create |= urls.is_in_memory(url)
        if not create:
            urls.refuse_missing_file(url)
        database = cls(url, idle_s)
        try:
            await set_up(database, tables, create=create)
        except sa.exc.DBAPIError as exc:
            await database.close()
            raise cls.unavailable(f"{database.shown} refused to set up its tables: {reason_of(exc)}") from exc
        except BaseException:
            await database.close()
            raise
        return database

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._engine.dialect.name

    @property
    def away_s(self) -> float:
        """Seconds since the first failed call after the last success; 0.0 while all is well."""
        return 0.0 if self._away_since is None else self._now_s() - self._away_since

    @property
    def unreachable(self) -> str | None:
        """A text for people that names the failure and its time; None while all is well."""
        if self._away_since is None:
            return None
        since = time.strftime("%H:%M:%S", time.localtime(time.time() - self.away_s))
        return f"database away since {since}: {self._trouble}"

    @property
    def file_trouble(self) -> str:
        """The text of the error if the SQLite file was deleted or replaced; empty while all is well."""
        return "" if self._file is None else self._file.trouble()

    @property
    def silent_s(self) -> float:
        """Seconds for which the oldest call under way has waited for its answer; 0.0 without a call."""
        began_s = next(iter(self._waiting.values()), None)
        return 0.0 if began_s is None else self._now_s() - began_s

    async def run(
        self,
        fn: Callable[[sa.Connection], T],
        *,
        read_only: bool = False,
        durability: Durability | None = None,
        then: Callable[[T], None] | None = None,
        deadline_s: float = ANSWER_S,
    ) -> T:
        """Run `fn` in one transaction on a thread of the database; commit if `fn` returns, roll back if it raises.

        Args:
            fn: must not keep the connection, nor touch the event loop. It is called again if the server undid the
                transaction to end a deadlock.
            read_only: promise that `fn` writes nothing; SQLite then takes no write lock.
            durability: the durability for which the commit waits; None means the database's default.
            then: called with the result on the same thread after the commit, even if the caller was cancelled.
            deadline_s: seconds after which the call ends with `DatabaseUnavailable`, whatever the server does.

        Raises:
            DatabaseUnavailable: the database cannot be reached, or lacks a table or right that EMQ needs. Nothing was
                applied, unless it is `DatabaseInDoubt`.
        """
        if self._closed:
            raise self.unavailable(f"the connection to {self.shown} is closed; open it again")
        until = time.monotonic() + deadline_s

        def work() -> T:
            self._deadline.begin(until)
            if self._deadline.left_s() <= 0:
                raise self.unavailable(f"{self.shown}: no thread was free for this call in time; nothing was applied")
            result = self._transact(fn, read_only, durability, deadline_s if deadline_s > ANSWER_S else None)
            if then is not None:
                then(result)
            return result

        call = object()
        self._waiting[call] = self._now_s()
        try:
            result = await self._in_thread(work, deadline_s + SLACK_S)
        except self.unavailable as exc:
            self._failed(exc)
            raise
        finally:
            del self._waiting[call]
        self._succeeded()
        return result

    async def _in_thread(self, work: Callable[[], T], timeout_s: float) -> T:
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    running = asyncio.get_running_loop().run_in_executor(self._executor, work)
                except RuntimeError:
                    # The main thread has ended: Python's pools take nothing more from the other threads.
                    text = f"{self.shown} takes no more calls, because the process ends; nothing was applied"
                    raise self.unavailable(text) from None
                return await running
        except TimeoutError:
            raise self._in_doubt(f"a call did not end within {timeout_s:g} s") from None

    def _failed(self, exc: errors.EMQError) -> None:
        self._trouble = str(exc)
        if self._away_since is None:
            self._away_since = self._now_s()
            if self._reached:  # else `open` raises the error to its caller
                log.warning("%s", self.unreachable)

    def _succeeded(self) -> None:
        self._reached = True
        if self._away_since is not None:
            log.info("%s answers again, after %.1f s", self.shown, self.away_s)
            self._away_since = None

    def _now_s(self) -> float:
        return time.monotonic()

    def _transact(
        self,
        fn: Callable[[sa.Connection], T],
        read_only: bool,
        durability: Durability | None,
        long_s: float | None = None,
        tries: int = TRIES,
    ) -> T:
        committing = False
        try:
            with self._guard, self._connected() as connection:
                with connection.begin():
                    engine.begin(connection, read_only, durability, long_s)
                    result = fn(connection)
                    committing = True
                if self._file is not None and not read_only:
                    self._note_written(connection)
            return result
        except (sa.exc.DBAPIError, sa.exc.TimeoutError, sqlite3.Error, OSError) as exc:
            if refusals.is_undone(exc) and tries > 1:
                return self._transact(fn, read_only, durability, long_s, tries - 1)
            if refusal := refusals.refusal(exc):
                raise self.unavailable(f"{self.shown}: {refusal}") from exc
            if isinstance(exc, _BUGS):
                raise
            lost = isinstance(exc, sa.exc.DBAPIError) and exc.connection_invalidated
            raise self._translated(exc, in_doubt=committing and lost and not read_only) from exc

    def _connected(self) -> sa.Connection:
        """Return a connection to the database; refuse a file that was replaced."""
        file = self._file
        if file is not None and (trouble := file.trouble()):  # else SQLite would make a new file
            raise self.unavailable(f"{self.shown}: {trouble}; nothing was applied")
        connection = self._engine.connect()
        if file is not None:
            file.connected()
            if trouble := file.trouble(connection.info.get("log")):
                connection.close()
                raise self.unavailable(f"{self.shown}: {trouble}; nothing was applied")
        return connection

    def _note_written(self, connection: sa.Connection) -> None:
        """Have the log copied; refuse a change that went to a deleted or replaced file."""
        assert self._file is not None
        log_file = connection.info.setdefault("log", self._file.log())
        if trouble := self._file.trouble(log_file):
            raise self._in_doubt(trouble)
        if self._copier is not None:
            self._copier.written()

    def _in_doubt(self, reason: str) -> errors.EMQError:
        """Return our error for a change that may or may not have been applied."""
        return errors.DatabaseInDoubt(f"{self.shown}: {reason}; whether the last change was applied is unknown")

    def _translated(self, exc: Exception, in_doubt: bool) -> errors.EMQError:
        """Our error for the driver's `exc`; `in_doubt` if the connection broke during a commit."""
        reason = reason_of(exc)
        if "not a database" in reason:
            # A database that has answered was overwritten, and may be put back. Another file will never become one.
            kind = self.unavailable if self._reached else errors.InvalidSettings
            return kind(f"{self.shown} is not an SQLite database; give another path, or move that file away")
        if "unable to open database file" in reason:
            return self.unavailable(f"{self.shown} cannot be opened; its directory must exist and be writable")
        return self._in_doubt(reason) if in_doubt else self.unavailable(f"{self.shown}: {reason}")

    async def close(self) -> None:
        """Wait for running transactions, `CLOSE_S` at most, then disconnect. Safe to repeat."""
        if self._closed:
            return
        self._closed = True
        self._deadline.cut(time.monotonic() + CLOSE_S)
        async with contextlib.AsyncExitStack() as last_first:  # each is closed, also if the caller is cancelled
            last_first.push_async_callback(asyncio.to_thread, self._engine.dispose)
            if self._copier is not None:
                last_first.push_async_callback(asyncio.to_thread, self._copier.close)
            last_first.push_async_callback(asyncio.to_thread, self._executor.shutdown)

    def clock_us(self, connection: sa.Connection) -> int:
        """Microseconds since the epoch by the database's clock; SQLite's is this machine's."""
        return int(statements.run(connection, "clock")[0][0])

    async def next_generation(self, environment: str, least: int = 1) -> int:
        """Add one to a persisted number, atomically, and return it: a host's fencing epoch.

        Args:
            least: the least number to return. Pass the microseconds since the epoch: then epochs still grow after the
                loss of the database, or of its last second, while the store remembers the highest epoch.
        """
        return await self.run(
            lambda c: next_value(c, environment, "generation", least),
            durability=Durability.FSYNCED,
            deadline_s=QUICK_S,
        )


async def set_up(database: Database, tables: schema.Schema, *, create: bool = True) -> None:
    """Create or upgrade tables, if needed.

    Args:
        create: if False, raise `NoDatabase` if the tables are missing.

    Raises:
        InvalidSettings: a newer EMQ wrote the tables; upgrade this installation.
        DatabaseUnavailable: there is no connection; try again.
    """
    found = await database.run(lambda c: schema.revision(c, tables), read_only=True, deadline_s=QUICK_S)
    if found is None and not create:
        raise urls.no_database(database.shown)
    if found != tables.head:
        await database.run(lambda c: schema.ensure(c, tables), deadline_s=LONG_S)


def read_values(connection: sa.Connection, environment: str, *keys: str) -> list[int]:
    """Return numbers in `emq_meta`, by one query; 0 for one that was never written."""
    values = {"environment": environment, "keys": json.dumps(keys)}
    found = {key: int(value) for key, value in statements.run(connection, "meta_find", values)}
    return [found.get(key, 0) for key in keys]


def read_value(connection: sa.Connection, environment: str, key: str) -> int:
    """Return a number in `emq_meta`; 0 if it was never written."""
    return read_values(connection, environment, key)[0]


def next_value(connection: sa.Connection, environment: str, key: str, least: int = 1) -> int:
    """Add one to a counter in `emq_meta` and return it; its row stays locked until the transaction ends."""
    values = {"environment": str(environment), "key": key, "least": least}
    return int(connection.execute(statements.catalog(connection, "next_value"), values).scalar_one())
