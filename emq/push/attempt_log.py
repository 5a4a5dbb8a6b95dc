"""Writes the records of attempts into the database, behind the deliveries."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import islice

import msgspec
import sqlalchemy as sa

from emq import errors, plurals
from emq.database import Database, statements
from emq.push.attempts import Attempt
from emq.push.records import schema, tables

log = logging.getLogger(__name__)

FLUSH_S = 0.5
"""Most seconds that a record waits to be written, while the database answers."""

BATCH = 4_000
"""Most records of one transaction, and their number from which on the log does not wait for more."""

MOST = 100_000
"""Most records that wait while the database is away; later ones are lost, and counted."""

AGAIN_S = 1.0
CLOSE_S = 5.0
"""Most seconds that `close` waits for the last records to be written."""

_PACKAGE = "emq.push.records"
_encode = msgspec.json.Encoder().encode
_ANY_DELIVERY = (
    sa.select(tables.deliveries.c.topic).where(tables.deliveries.c.environment == sa.bindparam("environment")).limit(1)
)


class AttemptLog:
    """An `AttemptSink` whose records another task writes in batches. Never holds a delivery up.

    While the database is away, up to `most` records wait; the log counts those beyond as lost, and says so when it
    begins to lose and when it has written again. A record whose write has an unknown outcome is written again, which
    changes nothing.

    Args:
        database: returns the database, once the first record is there.
        environment: the environment of the topics.
        host: returns the name of this host.
        most: most records that wait.

    Attributes:
        written, lost: records so far.
    """

    def __init__(
        self, database: Callable[[], Database], environment: str, host: Callable[[], str], *, most: int = MOST
    ) -> None:
        self._database = database
        self._environment = environment
        self._host = host
        self._most = most
        self._waiting: deque[Attempt] = deque()
        self._some = asyncio.Event()
        self._many = asyncio.Event()
        self._loses = self._has_tables = False
        self._said = ""
        self.written = self.lost = 0

    def attempted(self, attempt: Attempt) -> None:
        waiting = self._waiting
        if len(waiting) >= self._most:
            self._lose()
            return
        waiting.append(attempt)
        if len(waiting) == 1:
            self._some.set()
        elif len(waiting) == BATCH:
            self._many.set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[AttemptLog]:
        """Write records for the length of a block; at its end, those that are left."""
        task = asyncio.create_task(self._run(), name="emq attempts")
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            with contextlib.suppress(TimeoutError, errors.EMQError):
                async with asyncio.timeout(CLOSE_S):
                    while self._waiting:
                        await self._write()
            if self._waiting:
                log.warning("%s lost: the database is away", plurals.count(len(self._waiting), "record of an attempt"))

    async def _run(self) -> None:
        while True:
            await self._some.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await self._many.wait()
            try:
                await self._write()
                self._said = ""
            except errors.EMQError as exc:
                if str(exc) != self._said:
                    self._said = str(exc)
                    log.warning("records of attempts wait: %s", exc)
                await asyncio.sleep(AGAIN_S)

    async def _write(self) -> None:
        """Write one batch; it leaves the buffer once it is written."""
        batch = list(islice(self._waiting, BATCH))
        if batch:
            database = self._database()
            if not self._has_tables:
                await schema.ensure(database)
                self._has_tables = True
            try:
                await database.run(lambda connection: self._save(connection, batch))
                self.written += len(batch)
            except errors.EMQError:
                raise
            except Exception:  # one record that no table takes must not keep the others out
                await self._write_singly(database, batch)
            for _ in batch:
                self._waiting.popleft()
            if self._loses:
                self._loses = False
                log.warning("records of attempts are written again; lost so far: %d", self.lost)
        if not self._waiting:
            self._some.clear()
        if len(self._waiting) < BATCH:
            self._many.clear()

    async def _write_singly(self, database: Database, batch: Sequence[Attempt]) -> None:
        for attempt in batch:
            try:
                await database.run(functools.partial(self._save, batch=[attempt]))
                self.written += 1
            except errors.EMQError:
                raise
            except Exception:
                self.lost += 1
                log.exception(
                    "the record of an attempt cannot be written: %r of topic %r", attempt.message, attempt.topic
                )

    def _lose(self) -> None:
        self.lost += 1
        if not self._loses:
            self._loses = True
            log.warning("over %d records of attempts wait for the database; later ones are lost", self._most)

    def _save(self, connection: sa.Connection, batch: Sequence[Attempt]) -> None:
        # One statement for all rows: the database works on it without Python. A statement for each row would stop the
        # event loop twice for each, since both need Python's lock.
        latest = {(a.topic, a.message): a for a in batch}  # of several attempts of one delivery, the last
        rows = _encode(batch).decode()
        last = rows if len(latest) == len(batch) else _encode(list(latest.values())).decode()
        mine = {"environment": self._environment}
        connection.execute(_statement(connection, "attempts_add"), {"rows": rows, "host": self._host(), **mine})
        if connection.execute(_ANY_DELIVERY, mine).first():  # none are there without the API
            connection.execute(_statement(connection, "deliveries_follow"), {"rows": last, **mine})


def _statement(connection: sa.Connection, name: str) -> sa.TextClause:
    return sa.text(statements.read(_PACKAGE, connection.dialect.name, name))
