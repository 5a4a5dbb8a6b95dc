"""A client of the coordination tree in the database."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import sqlalchemy as sa

from emq import errors
from emq.allocation.tree.database import nodes, sessions
from emq.allocation.tree.database.nodes import Aspect, SessionGone
from emq.allocation.tree.protocol import Node, OnChange, SessionState, check, split
from emq.database import Database
from emq.storage.durability import Durability

log = logging.getLogger(__name__)

LOOK_S = 0.5
"""Seconds between two looks of a client for changes. A look is one small query."""

LOOK_ALONE_S = 1.0
"""Seconds between two looks while no other session exists; a client that joins may wait this long to be noticed.

A client looks at once after its own changes."""

LOOK_SOON_S = 0.05
"""Seconds between two looks within `STIR_S` after a watched node has changed, since more changes are likely."""
STIR_S = 3.0

RENEWALS = 6
"""Number of renewals of the session in one time-out. Any other write renews the session, too."""

PATIENCE = 1 / 3
"""Share of the time-out that one query may take; after that, the database counts as out of reach."""

RETRY_S = 0.5
COMPLAIN_EVERY_S = 30.0
CLOSE_S = 2.0

T = TypeVar("T")


class _Watch:
    """A watch of one node.

    Attributes:
        number: the number of the node's last change when the client read the node.
        functions: the functions to call at the next change.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.functions: dict[OnChange, None] = {}


class DatabaseTree:
    """A client with a session of its own; see `emq.allocation.tree.protocol.Tree`.

    The client has a connection of its own, so that no long statement of the host holds up a heartbeat. A connected
    client asks again and again for the number of the tree's last change. If the number has grown, the same transaction
    reads the numbers of the watched nodes. The client looks at its own changes at once.

    A session of a process that has ended on this machine ends as soon as another session begins here. All other
    sessions end by the rule of `sessions.Watchman`.
    """

    def __init__(self, url: str, timeout_s: float, *, create: bool = True) -> None:
        """
        Args:
            url: the URL of the database.
            timeout_s: the session's time-out, in seconds.
            create: if False, `open` does not create missing tables, but raises `NoDatabase`.
        """
        self.session = 0
        self.timeout_s = timeout_s
        self._url = url
        self._create = create
        self._database: Database | None = None
        self._on_session: Callable[[SessionState], None] = lambda state: None
        self._state: SessionState | None = None
        self._watching: dict[Aspect, _Watch] = {}
        self._watchman = sessions.Watchman()
        self._number: int | None = None
        self._anew = False
        self._alone = False
        self._renewed_s = 0.0
        self._stirred_s = float("-inf")
        self._kick = asyncio.Event()
        self._complained_s = float("-inf")
        self._looking: asyncio.Task[None] | None = None

    async def open(self, on_session: Callable[[SessionState], None]) -> None:
        self._on_session = on_session
        while self._database is None:
            try:
                self._database = await Database.open(self._url, create=self._create)
            except errors.NoDatabase:
                raise
            except errors.DatabaseUnavailable as exc:
                self._complain(exc)
                await asyncio.sleep(RETRY_S)
        while not self.session:
            await self._try_to_look()
            if not self.session:
                await asyncio.sleep(RETRY_S)
        self._looking = asyncio.create_task(self._look_on(), name="emq database tree")

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        check(path, data)
        session = self.session
        made = await self._change(
            lambda c: nodes.create(c, session, path, data, ephemeral=ephemeral, sequence=sequence), data
        )
        self._changed_here(made)
        return made

    async def read(self, path: str, on_change: OnChange | None = None) -> Node | None:
        node, number = await self._ask(lambda c: nodes.read(c, path))
        self._watch((path, "node"), number, on_change)
        return node

    async def children(self, path: str, on_change: OnChange | None = None) -> list[str]:
        names, number = await self._ask(lambda c: nodes.children(c, path))
        self._watch((path, "children"), number, on_change)
        return names

    async def write(self, path: str, data: bytes, version: int) -> int:
        check(path, data)
        session = self.session
        written = await self._change(lambda c: nodes.write(c, session, path, data, version), data)
        if (path, "node") in self._watching:
            self._kick.set()
        return written

    async def delete(self, path: str) -> None:
        session = self.session
        await self._change(lambda c: nodes.delete(c, session, path), b"")
        self._kick.set()

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
            self._looking = None
        self._state = None
        self._watching.clear()
        session, self.session = self.session, 0
        database, self._database = self._database, None
        if database is None:
            return
        if session:
            with contextlib.suppress(errors.DatabaseUnavailable, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await database.run(lambda c: nodes.end(c, session), durability=Durability.ACCEPTED)
        # If the database does not answer now, its threads end when it answers again.
        await asyncio.wait({asyncio.create_task(database.close())}, timeout=CLOSE_S)

    # -------------------------------------------------------------------------------------------------- questions

    async def _change(self, fn: Callable[[sa.Connection], T], data: bytes) -> T:
        """Make a change in the name of this session. A node without data need not survive a crash of the server."""
        started_s = time.monotonic()
        result = await self._ask(fn, read_only=False, durability=None if data else Durability.ACCEPTED)
        self._renewed_s = started_s
        return result

    async def _ask(
        self, fn: Callable[[sa.Connection], T], *, read_only: bool = True, durability: Durability | None = None
    ) -> T:
        if self._database is None or self._state is not SessionState.CONNECTED:
            raise errors.ClusterUnavailable("the database in which hosts meet is out of reach; try again later")
        try:
            return await self._run(self._database, fn, read_only=read_only, durability=durability)
        except errors.DatabaseUnavailable as exc:
            self._kick.set()
            raise errors.ClusterUnavailable(f"hosts meet in the database: {exc}; it may have happened") from exc
        except SessionGone as exc:
            self._kick.set()
            raise errors.ClusterUnavailable(f"{exc}; another session begins") from exc

    async def _run(self, database: Database, fn: Callable[[sa.Connection], T], **options: Any) -> T:
        patience_s = self.timeout_s * PATIENCE
        try:
            async with asyncio.timeout(patience_s):
                return await database.run(fn, deadline_s=patience_s, **options)
        except TimeoutError:
            raise errors.DatabaseUnavailable(f"{database.shown} did not answer within {patience_s:.1f} s") from None

    # --------------------------------------------------------------------------------------------------- looking

    async def _look_on(self) -> None:
        while True:
            stirred = time.monotonic() - self._stirred_s < STIR_S
            pause_s = LOOK_ALONE_S if self._alone else LOOK_SOON_S if stirred else LOOK_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(pause_s, self.timeout_s / RENEWALS)):
                    await self._kick.wait()
            self._kick.clear()
            await self._try_to_look()

    async def _try_to_look(self) -> None:
        assert self._database is not None
        try:
            await self._look(self._database)
        except errors.DatabaseUnavailable as exc:
            self._suspended(exc)
            await asyncio.sleep(RETRY_S)
        except SessionGone:
            self._lose()
        except Exception as exc:  # this loop must go on: without it, the session ends and nobody hears of it
            log.exception("the look at the database in which hosts meet broke; it looks again")
            self._suspended(exc)
            await asyncio.sleep(RETRY_S)

    def _suspended(self, exc: Exception) -> None:
        self._anew = True
        if self._state is SessionState.CONNECTED:
            self._enter(SessionState.SUSPENDED)
        self._complain(exc)

    async def _look(self, database: Database) -> None:
        """Renew the session, call the functions that watch a changed node, and end the sessions that are over."""
        if not self.session:
            await self._begin(database)
        session, now_s = self.session, time.monotonic()
        if self._state is not SessionState.CONNECTED or now_s - self._renewed_s > self.timeout_s / RENEWALS:
            await self._run(database, lambda c: nodes.renew(c, session), durability=Durability.ACCEPTED)
            self._renewed_s = now_s
        if self._state is not SessionState.CONNECTED:
            self._connected()
        number, watched = None if self._anew else self._number, dict(self._watching)
        self._anew = False
        paths = {path for path, _ in watched}
        glance = await self._run(database, lambda c: nodes.glance(c, number, paths), read_only=True)
        self._number = glance.number
        if session not in {sighting.id for sighting in glance.sessions}:
            raise SessionGone(f"session {session} has ended")
        self._alone = len(glance.sessions) == 1
        if glance.numbers is not None:
            self._compare(watched, glance.numbers)
        for over in self._watchman.over(glance.sessions, time.monotonic()):
            if over.id != session:
                log.info("session %d was silent for %g s and has ended", over.id, over.timeout_ms / 1000)
                await self._run(database, functools.partial(nodes.end, session=over.id, beat=over.beat))
                self._kick.set()

    async def _begin(self, database: Database) -> None:
        process, timeout_s = sessions.this_process(), self.timeout_s

        def begin(connection: sa.Connection) -> int:
            session = nodes.begin(connection, timeout_s, process)
            for other, of in nodes.processes(connection):
                if other != session and sessions.is_gone(of):
                    nodes.end(connection, other)
            return session

        self._renewed_s = time.monotonic()
        self.session = await self._run(database, begin, durability=Durability.ACCEPTED)

    def _compare(self, watched: Mapping[Aspect, _Watch], found: Mapping[str, tuple[int, int]]) -> None:
        for aspect, watch in watched.items():
            if nodes.seen(found, aspect) != watch.number and self._watching.get(aspect) is watch:
                self._call(aspect)
                self._stirred_s = time.monotonic()

    # ---------------------------------------------------------------------------------------- session and watches

    def _connected(self) -> None:
        if self._complained_s > float("-inf"):
            log.info("the database in which hosts meet answers again")
            self._complained_s = float("-inf")
        self._enter(SessionState.CONNECTED)
        for aspect in list(self._watching):
            self._call(aspect)

    def _lose(self) -> None:
        self.session = 0
        self._enter(SessionState.LOST)
        self._kick.set()

    def _enter(self, state: SessionState) -> None:
        self._state = state
        self._on_session(state)

    def _watch(self, aspect: Aspect, number: int, on_change: OnChange | None) -> None:
        if on_change is None:
            return
        watch = self._watching.get(aspect)
        if watch is None:
            watch = self._watching[aspect] = _Watch(number)
        # The last look may have compared a change from before this watch, so the next look compares once more.
        watch.number = min(watch.number, number)
        watch.functions[on_change] = None
        self._anew = True

    def _changed_here(self, path: str) -> None:
        """Look at once, if this client watches the node or the children of its parent."""
        if (path, "node") in self._watching or (split(path)[0], "children") in self._watching:
            self._kick.set()

    def _call(self, aspect: Aspect) -> None:
        for on_change in self._watching.pop(aspect).functions:
            on_change()

    def _complain(self, exc: Exception) -> None:
        now_s = time.monotonic()
        if now_s - self._complained_s > COMPLAIN_EVERY_S:
            self._complained_s = now_s
            log.warning("%s; hosts meet in this database, trying again", exc)
