"""Deletes records and progress of tasks, requests to cancel and former versions of pools that are too old."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import sqlalchemy as sa

from emq.database import Database
from emq.database.trimming import Trimmer, delete_some
from emq.runtime.clock import Clock
from emq_scheduling.database import schema, tables
from emq_scheduling.records.ends import us

KEPT_S = 7 * 86_400.0
"""Seven days, in seconds."""

CANCELS_KEPT = 8
"""Requests to cancel are kept this many times as long, since their tasks may wait for that long."""

ROWS = 2_000
"""Most rows that one statement deletes, so that no write waits long for the database."""

PAUSE_S = 0.05


class Retention(Trimmer):
    """Deletes these rows.

    Args:
        kept_s: seconds for which records are kept.
    """

    EVERY_S = 300.0
    KEY = "scheduling_trimmed"
    WHAT = "records of tasks"

    def __init__(
        self, database: Callable[[], Database], environment: str, clock: Clock, *, kept_s: float = KEPT_S
    ) -> None:
        super().__init__(database, environment, clock)
        self._kept_s = kept_s

    async def trim(self) -> int:
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
            told = tables.progress
            deleted += await self._delete(own, told, (told.c.pool == name) & (told.c.told_us < before_us))
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
        mine = (table.c.environment == self._environment) & where
        deleted = 0
        while rows := await own.run(lambda c: delete_some(c, table, mine, ROWS)):
            deleted += rows
            if rows < ROWS:
                break
            await asyncio.sleep(PAUSE_S)
        return deleted
