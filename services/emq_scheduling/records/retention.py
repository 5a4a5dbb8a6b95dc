"""Deletes records of tasks, requests to cancel and former versions of pools that are too old."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable

import sqlalchemy as sa

from emq.database import Database, database
from emq.runtime import errors
from emq.runtime.clock import Clock
from emq_scheduling.database import schema, tables
from emq_scheduling.records.ends import us

log = logging.getLogger(__name__)

KEPT_S = 7 * 86_400.0
"""Seven days, in seconds."""

CANCELS_KEPT = 8
"""Requests to cancel are kept this many times as long, since their tasks may wait for that long."""

EVERY_S = 300.0
"""Seconds between two looks of all hosts together."""

ROWS = 2_000
"""Most rows that one statement deletes, so that no write waits long for the database."""

PAUSE_S = 0.05
_KEY = "scheduling_trimmed"


class Retention:
    """Looks at the tables once in `EVERY_S`, on one host at a time: the one that takes the turn in the database.

    Args:
        database: returns the database.
        environment: "online" or "sandbox".
        kept_s: seconds for which records are kept.
    """

    def __init__(
        self, database: Callable[[], Database], environment: str, clock: Clock, *, kept_s: float = KEPT_S
    ) -> None:
        self._database = database
        self._environment = str(environment)
        self._clock = clock
        self._kept_s = kept_s

    async def run(self) -> None:
        """Keep deleting old rows. Ends by cancellation."""
        while True:
            try:
                if await self.has_turn():
                    await self.trim()
            except errors.EMQError as exc:
                log.debug("old records of tasks stay for now: %s", exc)  # the database has logged its failure
            except Exception:
                log.exception("old records of tasks stay for now")
            await asyncio.sleep(EVERY_S / 10)

    async def has_turn(self) -> bool:
        """Take the turn; return False if a host had it within `EVERY_S`."""
        now_s = int(self._clock.now())

        def take(connection: sa.Connection) -> bool:
            if database.read_value(connection, self._environment, _KEY) > now_s - EVERY_S:
                return False
            # Of two hosts that come here at once, one gets a number above its own.
            return database.next_value(connection, self._environment, _KEY, now_s) == now_s

        return await self._database().run(take, deadline_s=database.QUICK_S)

    async def trim(self) -> int:
        """Delete all rows that are too old, in small steps; return their number."""
        before_us = us(self._clock.now() - self._kept_s)
        asked_before_us = us(self._clock.now() - self._kept_s * CANCELS_KEPT)
        own = schema.Tables(self._database(), self._environment)
        names = await own.run(self._pools, read_only=True)
        deleted = 0
        for name in names:
            tasks, cancels = tables.tasks, tables.cancels
            deleted += await self._delete(own, tasks, (tasks.c.pool == name) & (tasks.c.started_us < before_us))
            deleted += await self._delete(
                own, cancels, (cancels.c.pool == name) & (cancels.c.asked_us < asked_before_us)
            )
            deleted += await self._delete_versions(own, name, before_us)
        return deleted

    def _pools(self, connection: sa.Connection) -> list[str]:
        """Return the names of all pools, also of deleted ones with versions."""
        v = tables.versions.c
        query = sa.select(v.pool).where(v.environment == self._environment).distinct().order_by(v.pool)
        return list(connection.execute(query).scalars())

    async def _delete_versions(self, own: schema.Tables, pool: str, before_us: int) -> int:
        """Delete versions that were followed by others before a time; keep the last one, from which numbers go on."""
        v = tables.versions.c
        mine = (v.environment == self._environment, v.pool == pool)
        query = sa.select(sa.func.max(v.version)).where(*mine, v.changed_us < before_us)
        newest = await own.run(lambda c: c.execute(query).scalar(), read_only=True)
        if newest is None:
            return 0
        return await self._delete(own, tables.versions, (v.pool == pool) & (v.version < newest))

    async def _delete(self, own: schema.Tables, table: sa.Table, where: sa.ColumnElement[bool]) -> int:
        key = sa.tuple_(*table.primary_key.columns)
        mine = (table.c.environment == self._environment) & where
        some = sa.select(*table.primary_key.columns).where(mine).limit(ROWS)
        statement = sa.delete(table).where(key.in_(some))
        deleted = 0
        while rows := await own.run(functools.partial(_rows, statement=statement)):
            deleted += rows
            if rows < ROWS:
                break
            await asyncio.sleep(PAUSE_S)
        return deleted


def _rows(connection: sa.Connection, statement: sa.Delete) -> int:
    return connection.execute(statement).rowcount
