"""Transactions of the SQL store: its statements, its errors, and the wake-ups that a commit sets free."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa

from emq import errors
from emq.database import Database, statements
from emq.database.database import reason_of
from emq.durability import Durability
from emq.model import Environment
from storage_adapters.memory.wakeups import Wakeups

T = TypeVar("T")

PACKAGE = "storage_adapters.sql"

CHANNEL = "emq_wake_{instance}"
"""PostgreSQL channel on which an instance listens."""

_DISK_FULL = "53100"


class StoreDatabase(Database):
    """A database whose troubles are a store's troubles."""

    unavailable = errors.StoreUnavailable

    def _translated(self, exc: Exception, in_doubt: bool) -> errors.EMQError:
        reason = reason_of(exc)
        cause = exc.orig if isinstance(exc, sa.exc.DBAPIError) else exc
        if "database or disk is full" in reason or getattr(cause, "sqlstate", None) == _DISK_FULL:
            return errors.StoreFull(f"{self.shown} has no room left: {reason}; free disk space there")
        if in_doubt:
            return errors.OutcomeUnknown(f"{self.shown}: the connection broke while committing: {reason}")
        return super()._translated(exc, in_doubt)


class Transaction:
    """One transaction at work: runs the store's statements and gathers who is to be woken when it commits.

    Attributes:
        connection: for what only one dialect has.
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
        """The statement `name` for the driver."""
        return statements.read(PACKAGE, self.connection.dialect.name, name)

    def rows(self, name: str, **values: Any) -> Sequence[Any]:
        """Run the statement `name`, which answers rows; lists are handed over as JSON."""
        given = {key: as_json(value) if isinstance(value, list) else value for key, value in values.items()}
        given |= {"environment": self.environment, "instance": self.instance}
        return self.connection.execute(_prepared(self.connection.dialect.name, name), given).all()

    def write(self, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run the statement `name` for each row: one by one inside SQLite, as arrays of columns on PostgreSQL."""
        if not rows:
            return
        if self.is_sqlite:
            self.connection.exec_driver_sql(self.text(name), list(rows))
        else:
            columns = tuple([*column] for column in zip(*rows, strict=True))
            self.connection.exec_driver_sql(self.text(name), columns)

    def wake(self, instance: str, name: str) -> None:
        """Wake a store instance's watcher about a queue or slot, once the transaction has committed."""
        self.woken.setdefault(instance, []).append(name)

    def send_wakeups(self) -> list[str]:
        """Leave word for the other instances, in the transaction; answers the names for our own."""
        mine = self.woken.pop(self.instance, [])
        now_ms = int(time.time() * 1000)
        rows = sorted((instance, name, now_ms) for instance, names in self.woken.items() for name in names)
        self.write("woken_add", rows)
        if not self.is_sqlite:
            for instance in self.woken:
                self.connection.execute(sa.select(sa.func.pg_notify(CHANNEL.format(instance=instance), "")))
        return mine


class Backend:
    """What the log half and the sorted half share.

    Args:
        db: the open database.
        environment: whose rows to serve.
        instance: this store instance's name among all that use the database.
    """

    def __init__(self, db: StoreDatabase, environment: Environment, instance: str) -> None:
        self.db = db
        self.instance = instance
        self.wakeups = Wakeups()
        self._environment = str(environment)
        self._loop = asyncio.get_running_loop()

    async def run(
        self,
        fn: Callable[[Transaction], T],
        *,
        read_only: bool = False,
        durability: Durability = Durability.ACCEPTED,
    ) -> T:
        """Run `fn` in one transaction, then wake whom it wants woken; see `Database.run`."""

        def work(connection: sa.Connection) -> tuple[T, list[str]]:
            transaction = Transaction(connection, self._environment, self.instance)
            return fn(transaction), transaction.send_wakeups() if transaction.woken else []

        try:
            done = await self.db.run(work, read_only=read_only, durability=durability, then=self._wake)
        except errors.OutcomeUnknown:
            self.wakeups.lose()
            raise
        return done[0]

    def _wake(self, done: tuple[Any, list[str]]) -> None:
        if done[1]:
            # The loop is closed only when nobody is left to be woken.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake_all, done[1])

    def _wake_all(self, names: Iterable[str]) -> None:
        for name in names:
            self.wakeups.wake(name)


@functools.cache
def _prepared(dialect: str, name: str) -> sa.TextClause:
    return sa.text(statements.read(PACKAGE, dialect, name))


def as_json(value: object) -> str:
    """JSON text, as the statements take lists."""
    return msgspec.json.encode(value).decode()
