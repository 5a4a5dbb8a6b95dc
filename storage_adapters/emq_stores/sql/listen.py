"""Listens for wake-ups that other processes left in the database."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable

from emq.database.database import QUICK_S
from emq.runtime import errors
from emq.storage.durability import Durability
from emq_stores.sql.backend import CHANNEL, EVERYBODY, Backend, Transaction

log = logging.getLogger(__name__)

POLL_S = 0.02
"""Seconds between two looks at SQLite's write-ahead log; a look is one `stat` call, for any number of queues."""

SWEEP_S = 2.0
"""Seconds between two looks for wake-ups that nobody announced; a look is one query, for any number of queues."""

BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0)


async def keep(listen: Callable[[Callable[[], None]], Awaitable[None]], backend: Backend) -> None:
    """Run `listen` forever. After an error, start `listen` again, and let the watcher look at everything.

    Without `listen`, every wake-up of another process would wait for the two-minute look. So no error ends this loop:
    not a lost database, not a full one, not a bug. `listen` calls its argument once it has taken the wake-ups that were
    left for this instance.
    """
    failures = 0

    def connected() -> None:
        nonlocal failures
        if failures:
            backend.wakeups.lose()
        failures = 0

    while True:
        try:
            await listen(connected)
        except errors.EMQError as exc:
            if not failures:
                log.warning("wake-ups are late until the store is back: %s", exc)
        except Exception:
            if not failures:
                log.exception("the wake-ups of %s failed; trying again", backend.db.shown)
        await asyncio.sleep(BACKOFF_S[min(failures, len(BACKOFF_S) - 1)])
        failures += 1


async def poll_file(backend: Backend, connected: Callable[[], None]) -> None:
    """SQLite: look for wake-ups when another connection has committed, and every `SWEEP_S`.

    Each commit writes to the log beside the file, also a commit of this process. `PRAGMA data_version` then tells
    whether another connection committed. A commit that changes neither the log's time nor its size waits for the sweep.
    A file that was deleted or replaced ends the loop with `StoreUnavailable`, also if nothing is written.
    """
    seen: int | None = None
    sweep = 0.0
    written: tuple[int, int] | None = None
    log_file = f"{backend.db.url.database}-wal"

    def look(transaction: Transaction) -> tuple[int, bool]:
        version: int = transaction.connection.exec_driver_sql("PRAGMA data_version").scalar_one()
        if version == seen and time.monotonic() < sweep:
            return version, False
        return version, bool(transaction.rows("woken_any"))

    while True:
        before, written = written, _written(log_file)
        if written == before and time.monotonic() < sweep and not backend.db.file_trouble:
            await asyncio.sleep(POLL_S)
            continue
        version, any_woken = await backend.run(look, read_only=True)
        if version != seen or time.monotonic() >= sweep:
            sweep = time.monotonic() + SWEEP_S
        seen = version
        if any_woken:
            await take(backend)
        connected()
        await asyncio.sleep(POLL_S)


def _written(file: str) -> tuple[int, int] | None:
    """Return the time of the last write to the file (ns) and its size (bytes); None if there is no file."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


async def listen_on_postgres(backend: Backend, connected: Callable[[], None]) -> None:
    """PostgreSQL: look for wake-ups at each notification on this instance's channel, and every `SWEEP_S`."""
    import psycopg

    try:
        async with await psycopg.AsyncConnection.connect(
            backend.db.url.set(drivername="postgresql").render_as_string(hide_password=False),
            autocommit=True,
            connect_timeout=5,
            application_name="emq wake-ups",
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
        ) as connection:
            try:
                async with asyncio.timeout(QUICK_S):
                    for instance in (backend.instance, EVERYBODY.format(environment=backend.environment)):
                        await connection.execute(f"LISTEN {CHANNEL.format(instance=instance)}")
                await take(backend)
                connected()
                while True:
                    async with contextlib.aclosing(connection.notifies(timeout=SWEEP_S, stop_after=1)) as announced:
                        async for notification in announced:
                            if notification.payload:  # a topic; see `Transaction.tell`
                                backend.wakeups.wake(notification.payload)
                    await take(backend)
            finally:
                connection.pgconn.finish()  # at once: a second cancellation would end the driver's own close half-way
    except TimeoutError:
        raise errors.StoreUnavailable(
            f"{backend.db.shown}: the server is silent: no answer within {QUICK_S:g} s"
        ) from None
    except (psycopg.Error, OSError, RuntimeError) as exc:
        raise errors.StoreUnavailable(f"{backend.db.shown}: {' '.join(str(exc).split())}") from exc


async def take(backend: Backend) -> None:
    """Take the wake-ups that other instances left for this one, and pass them on."""

    def passed_on(transaction: Transaction) -> None:
        for row in transaction.rows("woken_take"):
            transaction.wake(backend.instance, row.name)

    await backend.run(passed_on, durability=Durability.ACCEPTED)
