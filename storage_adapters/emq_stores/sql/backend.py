"""Transactions of the SQL store: their statements, their errors, and the wake-ups that they send after the commit."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from emq.database import Database, statements
from emq.database.refusals import reason_of
from emq.runtime import errors
from emq.runtime.clock import Clock, SystemClock
from emq.runtime.environment import Environment
from emq.storage.answers import Failure
from emq.storage.durability import Durability
from emq_stores.memory.wakeups import Wakeups
from emq_stores.sql.damage import Damage, is_corruption, told

T = TypeVar("T")
E = TypeVar("E")

log = logging.getLogger(__name__)

PACKAGE = "emq_stores.sql"

CHANNEL = "emq_wake_{instance}"
"""PostgreSQL channel on which an instance listens."""

EVERYBODY = "everybody_{environment}"
"""Stands for all instances; `woken_any.sql` and `woken_take.sql` know the name, too."""

_INSTANCE = re.compile(r"[0-9a-zA-Z_-]{1,40}")
"""Form of an instance's name; PostgreSQL may refuse the channel of another name."""

_DISK_FULL = "53100"


class StoreDatabase(Database):
    """A database whose failures are the errors of a store."""

    unavailable = errors.StoreUnavailable

    def _translated(self, exc: Exception, in_doubt: bool) -> errors.EMQError:
        reason = reason_of(exc)
        cause = exc.orig if isinstance(exc, sa.exc.DBAPIError) else exc
        if "database or disk is full" in reason or getattr(cause, "sqlstate", None) == _DISK_FULL:
            return errors.StoreFull(f"{self.shown} has no room left: {reason}; free disk space there")
        if in_doubt:
            return self._in_doubt(f"the connection broke while committing: {reason}")
        if is_corruption(exc):
            return errors.KeyDamaged(f"{self.shown}: {reason}; restore it from a backup; nothing was applied")
        return super()._translated(exc, in_doubt)

    def _in_doubt(self, reason: str) -> errors.EMQError:
        return errors.OutcomeUnknown(f"{self.shown}: {reason}")

    def _failed(self, exc: errors.EMQError) -> None:
        if not isinstance(exc, errors.KeyDamaged):  # the database itself is within reach
            super()._failed(exc)


class Transaction:
    """One open transaction: runs the store's statements, and gathers the instances to wake after the commit.

    Attributes:
        connection: the database connection, for statements of one dialect only.
        environment, instance: bound to the parameters of the same names in every statement.
    """

    def __init__(self, connection: sa.Connection, environment: str, instance: str) -> None:
        self.connection = connection
        self.environment = environment
        self.instance = instance
        self.woken: dict[str, list[str]] = {}

    @property
    def is_sqlite(self) -> bool:
        return self.connection.dialect.name == "sqlite"

    def text(self, name: str) -> str:
        """Return the text of the statement `name` for the driver."""
        return statements.read(PACKAGE, self.connection.dialect.name, name)

    def rows(self, name: str, **values: Any) -> Sequence[Any]:
        """Run the statement `name` and return its rows; lists among the values become JSON."""
        given = {key: as_json(value) if isinstance(value, list) else value for key, value in values.items()}
        given |= {"environment": self.environment, "instance": self.instance}
        return self.connection.execute(_prepared(self.connection.dialect.name, name), given).all()

    def page(self, name: str, max_bytes: int, **values: Any) -> list[Any]:
        """Return rows as `rows` does, up to the row with which the bytes reach `max_bytes`.

        On SQLite, this method reads no further rows. On PostgreSQL, the statement itself keeps to `max_bytes`, because
        the driver returns whole results.
        """
        given = values | {"environment": self.environment}
        if not self.is_sqlite:
            given |= {"max_bytes": max_bytes}
        page: list[Any] = []
        found = self.connection.execute(_prepared(self.connection.dialect.name, name), given)
        for row in found:
            page.append(row)
            max_bytes -= sum([len(value) for value in row if isinstance(value, (bytes, memoryview))])
            if max_bytes <= 0:
                break
        found.close()
        return page

    def each(self, name: str, asked: Sequence[tuple[Any, ...]], **bounds: int) -> Iterator[Sequence[Any]]:
        """Yield the rows that the statement `name` finds for each request, with the request's number as first column.

        On SQLite, the statement runs once for each request, and this method reads no further rows when the caller
        stops. On PostgreSQL, one statement serves all requests and keeps to `bounds` itself, because the driver returns
        whole results.
        """
        if not self.is_sqlite:
            yield from self.rows(name, asked=[*asked], **bounds) if asked else ()
            return
        text, cursor = self.text(name), self.connection.connection.cursor()
        try:
            for number, values in enumerate(asked):
                cursor.execute(text, values)
                while row := cursor.fetchone():
                    yield number, *row
        finally:
            cursor.close()

    def write(self, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run the statement `name` for each row: row by row on SQLite, with arrays of columns on PostgreSQL."""
        if not rows:
            return
        if self.is_sqlite:
            self.connection.exec_driver_sql(self.text(name), list(rows))
        else:
            self.connection.exec_driver_sql(self.text(name), statements.arrays(PACKAGE, name, rows))

    def wake(self, instance: str, name: str) -> None:
        """Wake a store instance's watcher for a queue, lane or slot once the transaction has committed."""
        self.woken.setdefault(instance, []).append(name)

    def tell(self, topics: Iterable[str]) -> None:
        """Wake the watchers of all instances for topics, once the transaction has committed."""
        everybody = EVERYBODY.format(environment=self.environment)
        if not self.is_sqlite:  # in one statement, since a batch may make thousands of topics
            each = sa.func.unnest(sa.cast([*topics], postgresql.ARRAY(sa.Text)))
            self.connection.execute(sa.select(sa.func.pg_notify(CHANNEL.format(instance=everybody), each)))
            return
        for topic in topics:
            self.wake(self.instance, topic)
            self.wake(everybody, topic)  # whoever takes it, since only one process has hosts

    def send_wakeups(self) -> list[str]:
        """Write wake-ups for other instances, in the transaction; return the names for this instance."""
        mine = self.woken.pop(self.instance, [])
        rows = sorted((instance, name) for instance, names in self.woken.items() for name in names)
        self.write("woken_add", rows)
        if not self.is_sqlite:
            # A damaged row may name no valid instance. PostgreSQL would refuse the whole put for that name.
            for instance in filter(_INSTANCE.fullmatch, self.woken):
                self.connection.execute(sa.select(sa.func.pg_notify(CHANNEL.format(instance=instance), "")))
        return mine


class Backend:
    """The parts that the SQL store's queues, lanes and slots share.

    Args:
        db: the open database.
        environment: the environment whose rows to serve.
        instance: this store instance's name, unique among all instances that use the database.
    """

    def __init__(self, db: StoreDatabase, environment: Environment, instance: str) -> None:
        self.db = db
        self.instance = instance
        self.wakeups = Wakeups()
        self.clock: Clock = SystemClock()
        self.damage = Damage()
        self.environment = str(environment)
        self._loop = asyncio.get_running_loop()

    def now_ms(self) -> int:
        """Return the time for the stamps of dead letters, in milliseconds."""
        return self.clock.now_us() // 1000

    async def run(
        self,
        fn: Callable[[Transaction], T],
        *,
        read_only: bool = False,
        durability: Durability = Durability.ACCEPTED,
    ) -> T:
        """Run `fn` in one transaction, then send its wake-ups; see `Database.run`."""

        def work(connection: sa.Connection) -> tuple[T, list[str]]:
            transaction = Transaction(connection, self.environment, self.instance)
            return fn(transaction), transaction.send_wakeups() if transaction.woken else []

        try:
            done = await self.db.run(work, read_only=read_only, durability=durability, then=self._wake)
        except errors.OutcomeUnknown:
            self.wakeups.lose()
            raise
        return done[0]

    async def of_each(
        self,
        operation: str,
        entries: Sequence[E],
        name: Callable[[E], str],
        fn: Callable[[Transaction, Sequence[E]], Sequence[T]],
        *,
        read_only: bool = False,
        durability: Durability = Durability.ACCEPTED,
    ) -> list[T | Failure]:
        """Carry out `fn` for all entries in one transaction; if a damaged row makes it fail, in smaller ones.

        If an answer is an error, nothing of its entry was applied, unless the error is `OutcomeUnknown`. The entries of
        one name keep their order. Without entries, there is no transaction.

        Args:
            operation: the operation's name, such as "put to queue"; its last word is the kind of thing that is named.
            name: returns the name of an entry's queue, lane or slot.
            fn: returns one answer for each of its entries; it may be called with a part of all entries.

        Raises:
            StoreUnavailable, StoreFull: as `Database.run`; the error holds for all entries.
        """
        names = [name(entry) for entry in entries]
        answers: dict[int, T | Failure] = {}
        parts = [[*range(len(entries))]] if entries else []
        if self.damage.knows(operation, names):
            refused, parts = self.damage.apart(operation, names)
            answers.update(refused)
        served = False
        while parts:
            part = parts.pop(0)
            some = entries if len(part) == len(entries) else [entries[i] for i in part]
            try:
                found = await self._tried(functools.partial(_call, fn, some), read_only, durability)
            except (errors.StoreUnavailable, errors.StoreFull) as exc:
                if not served:
                    raise
                # The remaining entries would meet the same error, only later.
                answers.update(dict.fromkeys(itertools.chain(part, *parts), exc))
                break
            if not isinstance(found, Exception):
                served = True
                answers.update(zip(part, found, strict=True))
                if self.damage.knows(operation, [names[i] for i in part]):
                    self.damage.well(operation, [names[i] for i in part])
            elif len(part) > 1:
                half = len(part) // 2
                parts = [part[:half], part[half:], *parts]
            else:
                log.debug("%s %r broke", operation, names[part[0]], exc_info=found)
                error = told(f"{operation.rpartition(' ')[2]} {names[part[0]]!r}", found)
                self.damage.found(operation, names[part[0]], error)
                answers[part[0]], served = error, True
        return [answers[i] for i in range(len(entries))]

    async def _tried(
        self, fn: Callable[[Transaction], Sequence[T]], read_only: bool, durability: Durability
    ) -> Sequence[T] | Exception:
        """Run `fn` in one transaction; return its answers, or the error that a damaged row may have caused."""
        try:
            return await self.run(fn, read_only=read_only, durability=durability)
        except errors.EMQError as exc:
            if isinstance(exc, errors.KeyDamaged):
                return exc
            raise
        except Exception as exc:  # of the driver, or of EMQ's code that met a value of the wrong type
            return exc

    def _wake(self, done: tuple[Any, list[str]]) -> None:
        if done[1]:
            # The loop is closed only when no watcher is left.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake_all, done[1])

    def _wake_all(self, names: Iterable[str]) -> None:
        for name in names:
            self.wakeups.wake(name)


def share_of(max_bytes: int, some: Sized, of: Sized) -> int:
    """Return the bytes that a part of a call may return, in proportion to its entries; at least 1."""
    return max(max_bytes * len(some) // len(of), 1)


def _call(fn: Callable[[Transaction, Sequence[E]], Sequence[T]], some: Sequence[E], t: Transaction) -> Sequence[T]:
    return fn(t, some)


@functools.cache
def _prepared(dialect: str, name: str) -> sa.TextClause:
    return sa.text(statements.read(PACKAGE, dialect, name))


def as_json(value: object) -> str:
    """Return a value as JSON text, the form in which the statements take lists."""
    return msgspec.json.encode(value).decode()
