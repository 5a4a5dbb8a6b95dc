"""Opens SQL stores."""

from __future__ import annotations

import asyncio
import functools
import secrets
from collections.abc import AsyncIterator, Collection, Sequence

import sqlalchemy as sa

from emq.database import statements, urls
from emq.runtime.clock import Clock
from emq.runtime.environment import Environment
from emq.storage.answers import Failure
from emq.storage.durability import Durability
from emq.storage.store import Ended, Holding
from emq_stores.refusals import queue_cap
from emq_stores.sql import hostlock, listen
from emq_stores.sql.backend import PACKAGE, Backend, StoreDatabase, Transaction
from emq_stores.sql.forgetting import forgotten
from emq_stores.sql.lane_store import SqlLanes
from emq_stores.sql.log_store import SqlLog
from emq_stores.sql.rows import KnownRows
from emq_stores.sql.slot_store import SqlSorted
from emq_stores.sql.tables import STORE

ABANDONED_MS = 600_000
"""Milliseconds until a wake-up that no instance takes is forgotten; a living one takes its own every other second."""


class SqlStore:
    """`emq.storage.store.Store` in SQLite or PostgreSQL; `open_store` makes it.

    Any number of processes may publish to an SQLite file, but only one process may have hosts on it. `watch` claims the
    file for this process's hosts; `claim_host` claims it earlier.
    """

    def __init__(self, backend: Backend, environment: Environment, max_queue_qps: float | None) -> None:
        known = KnownRows()
        self._known = known
        self.log = SqlLog(backend, known, max_queue_qps)
        self.lanes = SqlLanes(backend, known)
        self.sorted = SqlSorted(backend, known)
        self.shared = backend.db.dialect == "postgresql"
        self._backend = backend
        self._environment = environment
        self._path = urls.sqlite_path(backend.db.url)
        self._host_lock: hostlock.HostLock | None = None
        self._feeder: asyncio.Task[None] | None = None

    def follow(self, clock: Clock) -> None:
        """See `emq.storage.store.Store`."""
        self._backend.clock = clock

    def claim_host(self) -> None:
        """Claim the SQLite file for the hosts of this process, until `close`. Safe to repeat.

        Raises:
            HostConflict: a host in another process consumes from the file; stop it.
        """
        if self._path is not None and self._host_lock is None:
            self._host_lock = hostlock.host_lock(self._path, self._environment)

    def watch(self) -> AsyncIterator[Sequence[str] | None]:
        """See `Store.watch`. Yields None after the database was out of reach.

        Raises:
            HostConflict: at the call, not at the first wake-up; see `claim_host`.
        """
        self.claim_host()
        return self._watch()

    async def _watch(self) -> AsyncIterator[Sequence[str] | None]:
        feeder = self._feeder = self._start_feeder()
        try:
            async for names in self._backend.wakeups.watch():
                yield names
        finally:
            if feeder is not None:
                feeder.cancel()

    def _start_feeder(self) -> asyncio.Task[None] | None:
        if self.shared:
            feed = functools.partial(listen.listen_on_postgres, self._backend)
        elif self._path is not None:
            feed = functools.partial(listen.poll_file, self._backend)
        else:
            # No other process can see a database in memory.
            return None
        return asyncio.create_task(listen.keep(feed, self._backend), name="emq sql wake-ups")

    async def tell(self, topics: Collection[str]) -> None:
        """See `emq.storage.store.Store`."""
        await self._backend.run(lambda transaction: transaction.tell(topics), durability=Durability.ACCEPTED)

    async def unarmed(self, names: Sequence[str], now_ms: int) -> Sequence[str]:
        """See `emq.storage.store.Store`."""

        def look(transaction: Transaction) -> Sequence[str]:
            return [row[0] for row in transaction.rows("unarmed", names=[*names], now_ms=now_ms)]

        return await self._backend.run(look, read_only=True)

    async def holding(self) -> Holding:
        """See `emq.storage.store.Store`."""

        def look(transaction: Transaction) -> Holding:
            groups = [row.name for row in transaction.rows("groups_held")]
            queues = [row.name for row in transaction.rows("queues_held")]
            lanes = [name for name in groups if not name.endswith("/")]
            return Holding(queues, lanes, [name[:-1] for name in groups if name.endswith("/")])

        return await self._backend.run(look, read_only=True)

    async def forget(self, ended: Sequence[Ended]) -> Sequence[Sequence[int] | Failure | None]:
        """See `emq.storage.store.Store`."""

        def forget(transaction: Transaction, some: Sequence[Ended]) -> Sequence[Sequence[int] | None]:
            return forgotten(transaction, self._known, some)

        return await self._backend.of_each("forget group", ended, lambda each: each.lane, forget)

    async def close(self) -> None:
        """See `Store.close`."""
        self._backend.wakeups.close()
        if self._feeder is not None:
            self._feeder.cancel()
        await self._backend.db.close()
        if self._host_lock is not None:
            self._host_lock.release()


async def open_store(url: str, environment: Environment) -> SqlStore:
    """Open a store in `sqlite:///path`, `sqlite://` (in memory) or `postgresql://user:password@host/database`.

    Args:
        url: may have `?max_queue_qps=N`, a cap in operations a second that the store declares for one queue.
        environment: the environment whose data to serve.

    Raises:
        InvalidSettings: the URL has another form, or the file is not an SQLite database; correct it.
        StoreUnavailable: there is no connection; try again later.
    """
    parsed = urls.parse(url)
    given = parsed.query.get("max_queue_qps")
    max_queue_qps = None if given is None else queue_cap(given, urls.shown(parsed))
    plain = parsed.difference_update_query(["max_queue_qps"]).render_as_string(hide_password=False)
    db = await StoreDatabase.open(plain, STORE)
    text = sa.text(statements.read(PACKAGE, db.dialect, "woken_purge"))

    def purge(connection: sa.Connection) -> None:
        connection.execute(text, {"before_ms": db.clock_us(connection) // 1000 - ABANDONED_MS}).all()

    await db.run(purge)
    return SqlStore(Backend(db, environment, secrets.token_hex(6)), environment, max_queue_qps)
