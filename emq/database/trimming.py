"""Deletes old rows of the tables beside those of the catalog, on one host at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import sqlalchemy as sa

from emq.database import database
from emq.database.database import Database
from emq.runtime import errors
from emq.runtime.clock import Clock

log = logging.getLogger(__name__)


class Trimmer:
    """Looks at tables once in `EVERY_S`, on the host that takes the turn in the database. Its subclasses delete.

    Args:
        database: returns the database.
        environment: the environment whose rows it deletes.

    Attributes:
        EVERY_S: seconds between two looks of all hosts together.
        KEY: of the turn.
        WHAT: the name of its rows, for the log.
    """

    EVERY_S = 600.0
    KEY = ""
    WHAT = ""

    def __init__(self, database: Callable[[], Database], environment: str, clock: Clock) -> None:
        self._database = database
        self._environment = str(environment)
        self._clock = clock

    async def run(self) -> None:
        """Keep deleting old rows. Ends by cancellation."""
        while True:
            try:
                if await self.has_turn():
                    await self.trim()
            except errors.EMQError as exc:
                log.debug("old %s stay for now: %s", self.WHAT, exc)  # the database has logged its failure
            except Exception:
                log.exception("old %s stay for now", self.WHAT)
            await asyncio.sleep(self.EVERY_S / 10)

    async def has_turn(self) -> bool:
        """Take the turn; return False if a host had it within `EVERY_S`, or there are no tables."""
        now_s = int(self._clock.now())

        def take(connection: sa.Connection) -> bool:
            if not self.is_set_up(connection):
                return False
            if database.read_value(connection, self._environment, self.KEY) > now_s - self.EVERY_S:
                return False
            # Of two hosts that come here at once, one gets a number above its own.
            return database.next_value(connection, self._environment, self.KEY, now_s) == now_s

        return await self._database().run(take, deadline_s=database.QUICK_S)

    def is_set_up(self, connection: sa.Connection) -> bool:
        """Return whether the tables are there."""
        return True

    async def trim(self) -> int:
        """Delete all rows that are too old, in small steps; return their number."""
        raise NotImplementedError


def delete_some(connection: sa.Connection, table: sa.Table, where: sa.ColumnElement[bool], most: int) -> int:
    """Delete at most so many of the rows, so that no write waits long for the database; return their number."""
    key = sa.tuple_(*table.primary_key.columns)
    some = sa.select(*table.primary_key.columns).where(where).limit(most)
    return connection.execute(sa.delete(table).where(key.in_(some))).rowcount
