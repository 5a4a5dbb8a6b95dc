"""Writes the records of attempts into the database, in the background."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence

import msgspec
import sqlalchemy as sa

from emq.database import Database, statements
from emq.database.batch_writer import BatchWriter
from emq_push import attempts
from emq_push.attempts import Attempt
from emq_push.records import schema, tables

log = logging.getLogger(__name__)

FLUSH_S = 0.5
"""Most seconds that a record waits to be written, while the database answers."""

BATCH = 4_000
"""Most records of one transaction; if so many are there, the log waits for no more."""

MOST = 100_000
"""Most records that wait while the database is away; later ones are lost, and counted."""

_PACKAGE = "emq_push.records"
_encode = msgspec.json.Encoder().encode
_ANY_DELIVERY = (
    sa.select(tables.deliveries.c.topic).where(tables.deliveries.c.environment == sa.bindparam("environment")).limit(1)
)


class AttemptLog(BatchWriter[Attempt]):
    """Takes records of attempts; another task writes them in batches, so that no delivery waits.

    While the database is away, up to `most` records wait. Further ones are lost, and counted in the log at the first
    loss and after the next write. If the outcome of a write is unknown, it is repeated, which changes nothing.

    Args:
        database: returns the database, once the first record is there.
        environment: the environment of the topics.
        host: returns the name of this host.
        most: most records that wait.
    """

    def __init__(
        self, database: Callable[[], Database], environment: str, host: Callable[[], str], *, most: int = MOST
    ) -> None:
        super().__init__("record of an attempt", "records of attempts", batch=BATCH, flush_s=FLUSH_S)
        self._database = database
        self._environment = environment
        self._host = host
        self._most = most
        self._loses = self._has_tables = False

    def attempted(self, attempt: Attempt) -> None:
        if self.waiting < self._most:
            self._add(attempt)
            return
        self.dropped += 1
        if not self._loses:
            self._loses = True
            log.warning(
                "%d records of attempts wait for the database; later ones are lost until it takes them, and deliveries "
                "go on: bring the database back",
                self._most,
            )

    async def _prepare(self) -> None:
        if not self._has_tables:
            await schema.ensure(self._database())
            self._has_tables = True

    async def _save(self, batch: Sequence[Attempt]) -> None:
        await self._database().run(functools.partial(self._insert, batch=batch))

    def _left(self) -> None:
        if self._loses:
            self._loses = False
            log.warning("records of attempts are written again; lost so far: %d", self.dropped)

    def _shown(self, item: Attempt) -> str:
        return f"{item.message!r} of topic {item.topic!r}"

    def _insert(self, connection: sa.Connection, batch: Sequence[Attempt]) -> None:
        # One statement for all rows: the database works on it without Python. A statement for each row would stop the
        # event loop twice for each, since both need Python's lock.
        latest = {(a.topic, a.message): a for a in batch}  # of several attempts of one delivery, the last
        made = [a for a in batch if a.outcome != attempts.EXPIRED]
        rows = _encode(made).decode()
        last = rows if len(latest) == len(made) == len(batch) else _encode(list(latest.values())).decode()
        mine = {"environment": self._environment}
        if made:
            connection.execute(_statement(connection, "attempts_add"), {"rows": rows, "host": self._host(), **mine})
        if connection.execute(_ANY_DELIVERY, mine).first():  # none are there without the API
            connection.execute(_statement(connection, "deliveries_follow"), {"rows": last, **mine})


def _statement(connection: sa.Connection, name: str) -> sa.TextClause:
    return sa.text(statements.read(_PACKAGE, connection.dialect.name, name))
