"""The time of an environment: the time of the database's clock, made to never go back."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from emq.database import statements
from emq.database.database import QUICK_S, Database, read_values
from emq.runtime import clock, timekeeping
from emq.runtime.timekeeping import Asked, Noted, Successor

NOTE_US = 5_000_000
"""Microseconds between two notes of the time, so that a clock that jumps back cannot give a second twice. This and the
time between two questions are together less than `timekeeping.UNNOTED_US`."""

_KEYS = ("time_us", "time_at_us", "time_run", "time_passed_us")
"""The keys in `emq_meta` for the fields of a `Noted`."""

QUICK_US = 50_000
"""Most microseconds that reading the database's clock may take for a note to name the run of the machine. If it takes
longer, the machine's own time of the note is too uncertain."""


class EnvironmentTime:
    """Reads the time of an environment in a database.

    Args:
        machine: number of this run of this machine, see `clock.this_run`; 0 if it is not known.
    """

    def __init__(self, db: Database, environment: str, *, machine: int | None = None) -> None:
        self._db = db
        self._environment = str(environment)
        self._run = clock.this_run() if machine is None else machine

    async def ask(self, passed_us: Callable[[], int], note: bool, anchor_us: int | None = None, /) -> Asked:
        """See `emq.runtime.timekeeping.Reference`. All callers together note the time every `NOTE_US`.

        Raises:
            DatabaseUnavailable: ask again later.
        """
        if anchor_us is None:
            asked, is_stale = await self._db.run(lambda c: self._look(c, passed_us), read_only=True, deadline_s=QUICK_S)
            if not (note and is_stale):
                return asked
        return await self._db.run(lambda c: self._note(c, passed_us, anchor_us), deadline_s=QUICK_S)

    def _look(self, connection: sa.Connection, passed_us: Callable[[], int]) -> tuple[Asked, bool]:
        noted = _noted(connection, self._environment)
        found, reference_us, sent_us, came_us = self._read(connection, noted, passed_us)
        is_stale = noted is None or found.has_jumped or not 0 <= reference_us - noted.at_us < NOTE_US
        return Asked(found.time_us, sent_us, came_us), is_stale

    def _read(
        self, connection: sa.Connection, noted: Noted | None, passed_us: Callable[[], int]
    ) -> tuple[Successor, int, int, int]:
        # Measured here, on the database's thread, so that a busy event loop does not count.
        sent_us = passed_us()
        reference_us = self._db.clock_us(connection)
        came_us = passed_us()
        found = timekeeping.successor(reference_us, noted, self._run, (sent_us + came_us) // 2)
        return found, reference_us, sent_us, came_us

    def _note(self, connection: sa.Connection, passed_us: Callable[[], int], anchor_us: int | None) -> Asked:
        # Make the rows and lock them, so that notes are written one after the other.
        rows = [{"environment": self._environment, "key": key, "value": 0} for key in _KEYS]
        connection.execute(statements.catalog(connection, "time_lock"), rows)
        noted = _noted(connection, self._environment)
        found, reference_us, sent_us, came_us = self._read(connection, noted, passed_us)
        middle_us, time_us = (sent_us + came_us) // 2, found.time_us
        if anchor_us is not None:
            time_us = max(time_us, middle_us + anchor_us)
        run = self._run if came_us - sent_us < QUICK_US else 0
        for row, value in zip(rows, Noted(time_us, reference_us, run, middle_us), strict=True):
            row["value"] = value
        connection.execute(statements.catalog(connection, "time_note"), rows)
        return Asked(time_us, sent_us, came_us)


def now_us(connection: sa.Connection, db: Database, environment: str) -> int:
    """Return the environment's time, within a transaction."""
    noted = _noted(connection, environment)
    return timekeeping.successor(db.clock_us(connection), noted, clock.this_run(), clock.boot_ns() // 1000).time_us


def _noted(connection: sa.Connection, environment: str) -> Noted | None:
    noted = Noted(*read_values(connection, environment, *_KEYS))
    return noted if noted.at_us else None
