"""Writes the records of attempts into the database, behind the deliveries."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import islice

import sqlalchemy as sa

from emq import errors, plurals
from emq.database import Database
from emq.push import attempts
from emq.push.attempts import Attempt
from emq.push.records import schema

log = logging.getLogger(__name__)

FLUSH_S = 0.5
"""Most seconds that a record waits to be written, while the database answers."""

BATCH = 2_000
"""Most records of one transaction, and their number from which on the log does not wait for more."""

MOST = 100_000
"""Most records that wait while the database is away; later ones are lost, and counted."""

AGAIN_S = 1.0
CLOSE_S = 5.0
"""Most seconds that `close` waits for the last records to be written."""

_INSERT = """INSERT INTO emq_push_attempts
(environment, topic, message, started_us, number, took_us, status, outcome, reason, answer, host)
VALUES ({}) ON CONFLICT DO NOTHING"""

_UPDATE = """UPDATE emq_push_deliveries SET
state = {0}, attempts = CASE WHEN attempts > {1} THEN attempts ELSE {1} END, status = {2}, reason = {3}, next_us = {4},
settled_us = {5}
WHERE environment = {6} AND topic = {7} AND message = {8}
AND (state = 'pending' AND attempts <= {1} OR {0} = 'delivered')
"""
"""A success counts whatever the row says. Any other outcome counts only if nothing newer is known, since two hosts may
write the attempts of one message, and a write whose answer was lost is repeated."""

_STATES = {attempts.DELIVERED: "delivered", attempts.DEAD: "dead"}


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
        # Straight to the driver: SQLAlchemy's own way would cost several times as much for each row.
        mark = "?" if connection.dialect.name == "sqlite" else "%s"
        environment, host = self._environment, self._host()
        connection.exec_driver_sql(
            _INSERT.format(", ".join([mark] * 11)),
            [
                (
                    *(environment, a.topic, a.message, a.started_us, a.number, a.took_us, a.status),
                    *(a.outcome, a.reason, a.answer, host),
                )
                for a in batch
            ],
        )
        latest = {(a.topic, a.message): a for a in batch}  # of several attempts of one delivery, the last
        if mark == "?":
            sql = _UPDATE.format("?1", "?2", "?3", "?4", "?5", "?6", "?7", "?8", "?9")
            connection.exec_driver_sql(sql, [self._row(a) for a in latest.values()])
        else:
            sql = _UPDATE.format(*(f"%({name})s" for name in _NAMES))
            rows = [dict(zip(_NAMES, self._row(a), strict=True)) for a in latest.values()]
            connection.exec_driver_sql(sql, rows)

    def _row(self, a: Attempt) -> tuple[object, ...]:
        settled = a.outcome in _STATES
        made = a.number - (a.outcome == attempts.PARKED)
        return (
            *(_STATES.get(a.outcome, "pending"), made, a.status, a.reason, a.next_us),
            *(a.started_us + a.took_us if settled else 0, self._environment, a.topic, a.message),
        )


_NAMES = ("state", "number", "status", "reason", "next_us", "settled_us", "environment", "topic", "message")
