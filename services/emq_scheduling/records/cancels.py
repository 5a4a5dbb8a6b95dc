"""Tasks that somebody asked to cancel, by id; the owner of the pool keeps reading them."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from emq_scheduling.database import schema, tables

_cancels = tables.cancels
OVERLAP_US = 10_000_000
"""Microseconds by which each look reaches back, since a later time may be committed first."""


class Cancels(schema.Tables):
    """Asks to cancel tasks, and reads who asked."""

    async def ask(self, pool: str, tasks: Collection[str]) -> None:
        """Ask to cancel tasks. Asking again later concerns tasks that were submitted meanwhile, too."""

        def save(connection: sa.Connection) -> None:
            insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
            now_us = self.clock_us(connection)
            own = {"environment": self._environment, "pool": pool, "asked_us": now_us}
            added = insert(_cancels)
            keys = ["environment", "pool", "task"]
            again = added.on_conflict_do_update(index_elements=keys, set_={"asked_us": added.excluded.asked_us})
            connection.execute(again, [{**own, "task": task} for task in dict.fromkeys(tasks)])

        if tasks:
            await self.run(save)

    def reader(self, pool: str) -> CancelReader:
        """Return a reader of the cancels of a pool for its owner."""
        return CancelReader(self, pool)

    async def since(self, pool: str, asked_us: int) -> list[tuple[int, str]]:
        """Return the tasks that somebody asked to cancel at a time or later, with the times, the first one first."""
        c = _cancels.c
        where = (c.environment == self._environment, c.pool == pool, c.asked_us >= asked_us)
        query = sa.select(c.asked_us, c.task).where(*where).order_by(c.asked_us, c.task)

        def read(connection: sa.Connection) -> list[tuple[int, str]]:
            return [(row.asked_us, row.task) for row in connection.execute(query)]

        return await self.run(read, read_only=True)


class CancelReader:
    """Reads the cancels of one pool bit by bit: at first all, then those that came."""

    def __init__(self, cancels: Cancels, pool: str) -> None:
        self._cancels = cancels
        self._pool = pool
        self._latest_us = 0
        self._seen: dict[str, int] = {}

    async def new(self) -> dict[str, int]:
        """Return the tasks that somebody asked to cancel since the last call, each once, with the times."""
        found = await self._cancels.since(self._pool, max(0, self._latest_us - OVERLAP_US))
        new = {task: asked_us for asked_us, task in found if self._seen.get(task) != asked_us}
        self._seen = {task: asked_us for asked_us, task in found}
        if found:
            self._latest_us = max(self._latest_us, found[-1][0])
        return new
