"""A session in the tree in the database: its states, its calls, and its log messages."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import sqlalchemy as sa

from emq.allocation.tree.database import nodes, sessions
from emq.allocation.tree.database.nodes import SessionGone, Sighting
from emq.allocation.tree.protocol import SessionState
from emq.database import Database
from emq.runtime import errors
from emq.storage.durability import Durability

log = logging.getLogger(__name__)

RENEWALS = 6
"""Number of renewals of the session in one time-out. Any other write renews the session, too."""

PATIENCE = 1 / 3
"""Share of the time-out that one query may take; after that, the database counts as out of reach."""

RETRY_S = 0.5
COMPLAIN_EVERY_S = 30.0
CLOSE_S = 2.0

T = TypeVar("T")


class Session:
    """Keeps a session, and begins a new one after the session was lost.

    The session has a connection of its own, so that no long statement of the host holds up a heartbeat.

    Args:
        on_state: called at each change of state; `id` is that of the new state.
        on_trouble: called when a call has failed.

    Attributes:
        id: 0 while there is no session.
        state: None before the first connection.
        database: None before `open` and after `close`.
    """

    def __init__(
        self, timeout_s: float, on_state: Callable[[SessionState], None], on_trouble: Callable[[], None]
    ) -> None:
        self.id = 0
        self.state: SessionState | None = None
        self.database: Database | None = None
        self._timeout_s = timeout_s
        self._on_state = on_state
        self._on_trouble = on_trouble
        self._watchman = sessions.Watchman()
        self._renewed_s = 0.0
        self._complained_s = float("-inf")

    async def open(self, url: str, create: bool) -> None:
        """Connect to the database; wait for that without limit."""
        while self.database is None:
            try:
                # Every change locks the row of the tree's counter. A process that is paused meanwhile must not hold up
                # the heartbeats of all the others until their leases end.
                idle_s = self._timeout_s / RENEWALS
                self.database = await Database.open(url, create=create, idle_s=idle_s)
            except errors.NoDatabase:
                raise
            except errors.DatabaseUnavailable as exc:
                self._complain(exc)
                await asyncio.sleep(RETRY_S)

    async def ask(
        self, fn: Callable[[sa.Connection], T], *, read_only: bool = True, durability: Durability | None = None
    ) -> T:
        """Ask the database for somebody else.

        Raises:
            ClusterUnavailable: the database or the session is away; the call may have had effect.
        """
        if self.state is not SessionState.CONNECTED:
            raise errors.ClusterUnavailable("the database in which hosts meet is out of reach; try again later")
        try:
            return await self.run(fn, read_only=read_only, durability=durability)
        except errors.DatabaseUnavailable as exc:
            self._on_trouble()
            raise errors.ClusterUnavailable(f"hosts meet in the database: {exc}; it may have happened") from exc
        except SessionGone as exc:
            self._on_trouble()
            raise errors.ClusterUnavailable(f"{exc}; another session begins") from exc

    async def change(self, fn: Callable[[sa.Connection, int], T], data: bytes = b"") -> T:
        """Make a change in the name of this session. A node without data need not survive a crash of the server."""
        session, started_s = self.id, time.monotonic()
        durability = None if data else Durability.ACCEPTED
        result = await self.ask(lambda c: fn(c, session), read_only=False, durability=durability)
        self._renewed_s = started_s
        return result

    async def run(self, fn: Callable[[sa.Connection], T], **options: Any) -> T:
        """Run a transaction; raise `DatabaseUnavailable` if it takes too long."""
        assert self.database is not None
        patience_s = self._timeout_s * PATIENCE
        try:
            async with asyncio.timeout(patience_s):
                return await self.database.run(fn, deadline_s=patience_s, **options)
        except TimeoutError:
            text = f"{self.database.shown} did not answer within {patience_s:.1f} s"
            raise errors.DatabaseUnavailable(text) from None

    async def renew(self) -> None:
        """Begin the session, or renew it if that is due; connected after this."""
        if not self.id:
            await self._begin()
        session, now_s = self.id, time.monotonic()
        if self.state is not SessionState.CONNECTED or now_s - self._renewed_s > self._timeout_s / RENEWALS:
            await self.run(lambda c: nodes.renew(c, session), durability=Durability.ACCEPTED)
            self._renewed_s = now_s
        if self.state is not SessionState.CONNECTED:
            if self._complained_s > float("-inf"):
                log.info("the database in which hosts meet answers again")
                self._complained_s = float("-inf")
            self._enter(SessionState.CONNECTED)

    async def end_silent(self, sightings: Collection[Sighting]) -> bool:
        """End the other sessions that are over; return whether there were any."""
        over = [s for s in self._watchman.over(sightings, time.monotonic()) if s.id != self.id]
        for other in over:
            log.info("session %d was silent for %g s and has ended", other.id, other.timeout_ms / 1000)
            await self.run(functools.partial(nodes.end, session=other.id, beat=other.beat))
        return bool(over)

    def suspend(self, exc: Exception) -> None:
        """Note that the database is away; the session may still be alive."""
        if self.state is SessionState.CONNECTED:
            self._enter(SessionState.SUSPENDED)
        self._complain(exc)

    def lose(self) -> None:
        """Note that the session has ended; the next `renew` begins another."""
        self.id = 0
        self._enter(SessionState.LOST)

    async def close(self) -> None:
        """End the session within a few seconds. Safe to repeat."""
        self.state = None
        session, self.id = self.id, 0
        database, self.database = self.database, None
        if database is None:
            return
        if session:
            with contextlib.suppress(errors.DatabaseUnavailable, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await database.run(lambda c: nodes.end(c, session), durability=Durability.ACCEPTED)
        # If the database does not answer now, its threads end when it answers again.
        await asyncio.wait({asyncio.create_task(database.close())}, timeout=CLOSE_S)

    async def _begin(self) -> None:
        process, timeout_s = sessions.this_process(), self._timeout_s

        def begin(connection: sa.Connection) -> int:
            session = nodes.begin(connection, timeout_s, process)
            for other, of in nodes.processes(connection):
                if other != session and sessions.is_gone(of):
                    nodes.end(connection, other)
            return session

        self._renewed_s = time.monotonic()
        self.id = await self.run(begin, durability=Durability.ACCEPTED)

    def _enter(self, state: SessionState) -> None:
        self.state = state
        self._on_state(state)

    def _complain(self, exc: Exception) -> None:
        now_s = time.monotonic()
        if now_s - self._complained_s > COMPLAIN_EVERY_S:
            self._complained_s = now_s
            log.warning("%s; hosts meet in this database, trying again", exc)
