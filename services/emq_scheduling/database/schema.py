"""Sets up the tables of resource scheduling in the database of the catalog."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import sqlalchemy as sa

from emq.database import Database, Schema, environment_time
from emq.database.database import ANSWER_S, set_up
from emq_scheduling.database import tables

SCHEDULING = Schema(tables.metadata, "emq_scheduling_revision", "first", "emq_scheduling.database:migrations")

T = TypeVar("T")


async def ensure(database: Database) -> None:
    """Create or upgrade the tables, if needed.

    Raises:
        InvalidSettings: a newer EMQ wrote the tables; upgrade this installation.
        DatabaseUnavailable: there is no connection; try again.
    """
    await set_up(database, SCHEDULING)


class Tables:
    """The base of those that read and write tables, which are set up before the first call.

    Each method of theirs is one transaction. It raises `DatabaseUnavailable` if the database does not answer; the same
    call may work later.

    Args:
        environment: "online" or "sandbox".
    """

    def __init__(self, database: Database, environment: str) -> None:
        self._environment = str(environment)
        self._database = database
        self._are_there = False

    async def run(
        self, fn: Callable[[sa.Connection], T], *, read_only: bool = False, deadline_s: float = ANSWER_S
    ) -> T:
        """Run `fn` in one transaction; see `Database.run`.

        Raises:
            DatabaseUnavailable: the database cannot be reached; try again.
            InvalidSettings: a newer EMQ wrote the tables; upgrade this installation.
        """
        await self.ready()
        return await self._database.run(fn, read_only=read_only, deadline_s=deadline_s)

    async def ready(self) -> None:
        """Set the tables up, if nobody has; raises as `run`."""
        if not self._are_there:
            await ensure(self._database)
            self._are_there = True

    def time_us(self, connection: sa.Connection) -> int:
        """Microseconds since the epoch by the environment's time, which never goes back: tasks have it, too."""
        return environment_time.now_us(connection, self._database, self._environment)
