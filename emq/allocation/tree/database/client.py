"""A client of the coordination tree in the database."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from emq import errors
from emq.allocation.tree.database import nodes
from emq.allocation.tree.database.nodes import SessionGone
from emq.allocation.tree.database.session import RENEWALS, RETRY_S, Session
from emq.allocation.tree.protocol import Node, OnChange, SessionState, check, split
from emq.allocation.tree.watches import Aspect, Watches

log = logging.getLogger(__name__)

LOOK_S = 0.5
"""Seconds between two looks of a client for changes. A look is one small query."""

LOOK_ALONE_S = 1.0
"""Seconds between two looks while no other session exists; a client that joins may wait this long to be noticed.

A client looks at once after its own changes."""

LOOK_SOON_S = 0.05
"""Seconds between two looks within `STIR_S` after a watched node has changed, since more changes are likely."""
STIR_S = 3.0


class DatabaseTree:
    """A client with a session of its own; see `emq.allocation.tree.protocol.Tree`.

    A connected client asks again and again for the number of the tree's last change. If the number has grown, the same
    transaction reads the numbers of the watched nodes. The client looks at its own changes at once.

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
        self._alone = False
        self._stirred_s = float("-inf")
        self._looking: asyncio.Task[None] | None = None

    async def open(self, on_session: Callable[[SessionState], None]) -> None:
        self._on_session = on_session
        await self._session.open(self._url, self._create)
        while not self.session:
            await self._try_to_look()
            if not self.session:
                await asyncio.sleep(RETRY_S)
        self._looking = asyncio.create_task(self._look_on(), name="emq database tree")

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        check(path, data)
        made = await self._session.change(
            lambda c, session: nodes.create(c, session, path, data, ephemeral=ephemeral, sequence=sequence), data
        )
        if Aspect(made, "node") in self._watches or Aspect(split(made)[0], "children") in self._watches:
            self._kick.set()
        return made

    async def read(self, path: str, on_change: OnChange | None = None) -> Node | None:
        node, number = await self._session.ask(lambda c: nodes.read(c, path))
        self._watch(Aspect(path, "node"), number, on_change)
        return node

    async def children(self, path: str, on_change: OnChange | None = None) -> list[str]:
        names, number = await self._session.ask(lambda c: nodes.children(c, path))
        self._watch(Aspect(path, "children"), number, on_change)
        return names

    async def write(self, path: str, data: bytes, version: int) -> int:
        check(path, data)
        written = await self._session.change(lambda c, session: nodes.write(c, session, path, data, version), data)
        if Aspect(path, "node") in self._watches:
            self._kick.set()
        return written

    async def delete(self, path: str) -> None:
        await self._session.change(lambda c, session: nodes.delete(c, session, path))
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
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(pause_s, self.timeout_s / RENEWALS)):
                    await self._kick.wait()
            self._kick.clear()
            await self._try_to_look()

    async def _try_to_look(self) -> None:
        try:
            await self._look()
        except errors.DatabaseUnavailable as exc:
            await self._interrupted(exc)
        except SessionGone:
            self._session.lose()
            self._kick.set()
        except Exception as exc:  # this loop must go on: without it, the session ends and nobody hears of it
            log.exception("the look at the database in which hosts meet broke; it looks again")
            await self._interrupted(exc)

    async def _interrupted(self, exc: Exception) -> None:
        self._anew = True
        self._session.suspend(exc)
        await asyncio.sleep(RETRY_S)

    async def _look(self) -> None:
        """Renew the session, call the functions that watch a changed node, and end the sessions that are over."""
        await self._session.renew()
        session = self._session.id
        number, watched = None if self._anew else self._number, self._watches.now()
        self._anew = False
        paths = {aspect.path for aspect in watched}
        glance = await self._session.run(lambda c: nodes.glance(c, number, paths), read_only=True)
        self._number = glance.number
        if session not in {sighting.id for sighting in glance.sessions}:
            raise SessionGone(f"session {session} has ended")
        self._alone = len(glance.sessions) == 1
        for aspect, watch in watched.items():
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

    def _watch(self, aspect: Aspect, number: int, on_change: OnChange | None) -> None:
        if on_change is not None:
            self._watches.add(aspect, on_change, number)
            # The last look may have compared a change from before this watch, so the next look compares once more.
            self._anew = True
