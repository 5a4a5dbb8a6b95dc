"""A client of the coordination tree in the database."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar, cast

import sqlalchemy as sa

from emq.allocation.tree.database import nodes
from emq.allocation.tree.database.nodes import SessionGone
from emq.allocation.tree.database.session import RENEWALS, RETRY_S, Session
from emq.allocation.tree.protocol import Node, OnChange, SessionState, check, split
from emq.allocation.tree.watches import UNKNOWN, Aspect, Watch, Watches
from emq.runtime import errors, pace
from emq.runtime.guard import Guard

log = logging.getLogger(__name__)

LOOK_S = 0.5
"""Seconds between two looks of a client for changes. A look is one small query."""

LOOK_ALONE_S = 1.5
"""Seconds between two looks while no other session exists; a client that joins may wait this long to be noticed. Mostly
less: `prove` looks, too.

A client looks at once after its own changes."""

LOOK_SOON_S = 0.05
"""Seconds between two looks within `STIR_S` after a watched node has changed, since more changes are likely."""
STIR_S = 3.0

T = TypeVar("T")


class DatabaseTree:
    """A client with a session of its own; see `emq.allocation.tree.protocol.Tree`.

    A connected client polls the number of the tree's last change. If the number has grown, the same transaction reads
    the numbers of the watched nodes. The client looks at its own changes at once.

    A read of what is watched already costs no query: it returns what was read before. That is as new as the last look.

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
        self._kick = asyncio.Event()
        self._session = Session(timeout_s, self._session_changed, self._kick.set)
        self._on_session: Callable[[SessionState], None] = lambda state: None
        self._watches = Watches()
        self._number: int | None = None
        self._anew = False
        self._changes = 0  # begun and ended, by this client
        self._alone = False
        self._stirred_s = self._looked_s = float("-inf")
        self._looking: asyncio.Task[None] | None = None

    async def open(self, on_session: Callable[[SessionState], None]) -> None:
        self._on_session = on_session
        await self._session.open(self._url, self._create)
        while not self.session:
            await self._try_to_look()
            if not self.session:
                await asyncio.sleep(RETRY_S)
        self._looking = asyncio.create_task(Guard().keep("database tree", self._look_on), name="emq database tree")

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        check(path, data)
        made = await self._change(
            lambda c, session: nodes.create(c, session, path, data, ephemeral=ephemeral, sequence=sequence), data
        )
        if Aspect(made, "node") in self._watches or Aspect(split(made)[0], "children") in self._watches:
            self._kick.set()
        return made

    async def read(self, path: str, on_change: OnChange | None = None) -> Node | None:
        return await self._read(Aspect(path, "node"), nodes.read, on_change)

    async def children(self, path: str, on_change: OnChange | None = None) -> list[str]:
        return [*await self._read(Aspect(path, "children"), nodes.children, on_change)]

    async def write(self, path: str, data: bytes, version: int) -> int:
        check(path, data)
        written = await self._change(lambda c, session: nodes.write(c, session, path, data, version), data)
        if Aspect(path, "node") in self._watches:
            self._kick.set()
        return written

    async def prove(self, path: str) -> None:
        """See `Tree.prove`: renew the session, whose row is as good a proof as the node. The same call looks."""
        look = self._begin_look()

        def renewed(connection: sa.Connection, session: int) -> nodes.Glance:
            nodes.renew(connection, session)
            return look.ask(connection)

        try:
            glance = await self._session.change(renewed)
        except BaseException:
            self._anew = True
            raise
        await self._tried(self._end_look(look, glance))

    async def delete(self, path: str) -> None:
        await self._change(lambda c, session: nodes.delete(c, session, path))
        self._kick.set()

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
            self._looking = None
        self._watches.clear()
        self.session = 0
        await self._session.close()

    async def _look_on(self) -> None:
        while True:
            stirred = time.monotonic() - self._stirred_s < STIR_S
            pause_s = LOOK_ALONE_S if self._alone else LOOK_SOON_S if stirred else LOOK_S
            pause_s = min(pause_s, self.timeout_s / RENEWALS)
            await pace.wait(self._kick, max(LOOK_SOON_S, self._looked_s + pause_s - time.monotonic()))
            if not self._kick.is_set() and time.monotonic() < self._looked_s + pause_s - pace.GRID_S:
                continue  # `prove` has looked meanwhile
            self._kick.clear()
            await self._try_to_look()

    async def _try_to_look(self) -> None:
        await self._tried(self._look())

    async def _tried(self, looking: Awaitable[None]) -> None:
        try:
            await looking
        except errors.DatabaseUnavailable as exc:
            await self._interrupted(exc)
        except SessionGone:
            self._session.lose()
            self._kick.set()
        except Exception as exc:  # the loop goes on at once: else the session might end meanwhile
            log.exception("the look at the database in which hosts meet broke; it looks again")
            await self._interrupted(exc)

    async def _interrupted(self, exc: Exception) -> None:
        self._anew = True
        self._session.suspend(exc)
        await asyncio.sleep(RETRY_S)

    async def _look(self) -> None:
        """Renew the session, call the functions that watch a changed node, and end the sessions that are over."""
        await self._session.renew()
        look = self._begin_look()
        await self._end_look(look, await self._session.run(look.ask, read_only=True))

    def _begin_look(self) -> _Look:
        anew, self._anew = self._anew, False
        return _Look(self._session.id, None if anew else self._number, self._watches.now())

    async def _end_look(self, look: _Look, glance: nodes.Glance) -> None:
        self._number, self._looked_s = glance.number, time.monotonic()
        if look.session not in {sighting.id for sighting in glance.sessions}:
            raise SessionGone(f"session {look.session} has ended")
        self._alone = len(glance.sessions) == 1
        for aspect, watch in look.watched.items():
            numbers = glance.numbers
            if numbers is None or nodes.seen(numbers, aspect) == watch.number:
                continue
            if self._watches.call(aspect, watch):
                self._stirred_s = time.monotonic()
        if await self._session.end_silent(glance.sessions):
            self._kick.set()

    def _session_changed(self, state: SessionState) -> None:
        self.session = self._session.id
        self._on_session(state)
        if state is SessionState.CONNECTED:
            self._watches.call_all()

    async def _read(
        self, aspect: Aspect, read: Callable[[sa.Connection, str], tuple[T, int]], on_change: OnChange | None
    ) -> T:
        if on_change is not None and self._session.state is SessionState.CONNECTED:
            known = self._watches.known(aspect, on_change)
            if known is not UNKNOWN:
                return cast(T, known)
        changes = self._changes
        value, number = await self._session.ask(lambda c: read(c, aspect.path))
        if on_change is not None:
            self._watches.add(aspect, on_change, number, value if changes == self._changes else UNKNOWN)
            # The last look may have compared a change from before this watch, so the next look compares once more.
            self._anew = True
        return value

    async def _change(self, change: Callable[[sa.Connection, int], T], data: bytes = b"") -> T:
        """Change the tree. What was read before, or is read meanwhile, may be older than this change."""
        self._changes += 1
        try:
            return await self._session.change(change, data)
        finally:
            self._changes += 1
            self._watches.forget_values()


class _Look(NamedTuple):
    """A look at the tree that has begun.

    Attributes:
        number: the tree's number at the last look; None to compare every watched node.
    """

    session: int
    number: int | None
    watched: dict[Aspect, Watch]

    def ask(self, connection: sa.Connection) -> nodes.Glance:
        return nodes.glance(connection, self.number, {aspect.path for aspect in self.watched})
