"""A client of the ensemble in memory; see `support.ensemble`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from emq.allocation.tree.protocol import Node, OnChange, SessionState, Tree
from emq.allocation.tree.watches import Aspect, Watches
from emq.runtime import errors
from support.ensemble.connection import Connection
from support.ensemble.pulse import Pulse
from support.ensemble.requests import Requests
from support.ensemble.servers import MemoryServers

RECONNECT_S = 0.1
"""Seconds between two attempts of a client to find a server."""

SLACK_S = 1e-6
"""Difference in seconds below which two times count as equal, since timers may fire a little early."""

T = TypeVar("T")


class MemoryTree(Tree):
    """A client with a session of its own; see `emq.allocation.tree.protocol.Tree`.

    The client pings the servers three times in its time-out.

    Attributes:
        frozen: True while the client neither sends nor receives, like a stopped process; its session runs out.
    """

    def __init__(self, ensemble: MemoryServers, timeout_s: float) -> None:
        self.session = 0
        self.timeout_s = timeout_s
        self.frozen = False
        self._ensemble = ensemble
        self._on_session: Callable[[SessionState], None] = lambda state: None
        self._previous = 0
        self._connection: Connection | None = None
        self._connected = asyncio.Event()
        self._closed = False
        self._pulse = Pulse()
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._requests = Requests(ensemble.heard, self._pulse.hear)
        self._watches = Watches()

    # ----------------------------------------------------------------------------------------------- the protocol

    async def open(self, on_session: Callable[[SessionState], None]) -> None:
        self._on_session = on_session
        await self._thawed.wait()
        self._attempt()
        await self._connected.wait()

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        def apply(connection: Connection) -> str:
            session = connection.session if ephemeral else 0
            made = self._ensemble.nodes.create(path, data, session=session, sequence=sequence)
            return self._ensemble.answer(connection, "create", path, made)

        return await self._request(apply)

    async def read(self, path: str, on_change: OnChange | None = None) -> Node | None:
        return await self._look(Aspect(path, "node"), lambda: self._ensemble.nodes.read(path), on_change)

    async def children(self, path: str, on_change: OnChange | None = None) -> list[str]:
        return await self._look(Aspect(path, "children"), lambda: self._ensemble.nodes.children(path), on_change)

    async def write(self, path: str, data: bytes, version: int) -> int:
        def apply(connection: Connection) -> int:
            return self._ensemble.answer(connection, "write", path, self._ensemble.nodes.write(path, data, version))

        return await self._request(apply)

    async def delete(self, path: str) -> None:
        def apply(connection: Connection) -> None:
            self._ensemble.nodes.delete(path)
            self._ensemble.answer(connection, "delete", path, None)

        await self._request(apply)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._pulse.stop()
        if self._connected.is_set() and not self.frozen and not self._ensemble.is_cut(self):
            self._ensemble.end(self.session)
        self._hang_up()
        self._connected.clear()
        self._watches.clear()
        self.session = 0
        self._requests.fail()

    # ------------------------------------------------------------------------------------------------- for faults

    def freeze(self) -> None:
        """Stop like a process that gets SIGSTOP: the client's requests wait, and no message reaches the client."""
        self.frozen = True
        self._thawed.clear()
        self._pulse.stop()

    def thaw(self) -> None:
        """Go on; the messages that came meanwhile arrive first."""
        if not self.frozen:
            return
        self.frozen = False
        self._thawed.set()
        self._pulse.hear()
        if not self._closed and self._pulse.began:
            self.flow()
            (self._beat if self._connected.is_set() else self._attempt)()

    def break_connection(self) -> None:
        """Break the connection, if there is one; the client looks for a new one."""
        if self._connection is not None:
            self._connection.cut()

    # ------------------------------------------------------------------------------------- what the servers tell it

    def flow(self) -> None:
        connection = self._connection
        if connection is None:
            return
        if not connection.broken:
            connection.up.flow()
            connection.down.flow()
        elif not self.frozen and not self._ensemble.is_silent(self):
            self._interrupted()

    def established(self, session: int) -> None:
        lost = self._previous not in (0, session)
        self._pulse.hear()
        if lost:
            self.session = 0
            self._on_session(SessionState.LOST)
        self.session = self._previous = session
        self._connected.set()
        self._beat()
        self._on_session(SessionState.CONNECTED)
        self._watches.call_all()

    def changed(self, aspect: Aspect) -> None:
        self._pulse.hear()
        self._watches.call(aspect)

    # ------------------------------------------------------------------------------------------------- the session

    def _attempt(self) -> None:
        """Look for a server, again and again until one answers."""
        if self._closed or self.frozen:
            return
        self._hang_up()
        if self._ensemble.is_cut(self) or not self._ensemble.quorum:
            self._pulse.after(RECONNECT_S, self._attempt)
        else:
            self._connection = self._ensemble.connect(self, self._previous)
            self._pulse.after(2 * self.timeout_s / 3, self._interrupted)

    def _interrupted(self) -> None:
        was_connected = self._connected.is_set()
        self._hang_up()
        self._connected.clear()
        if self._closed:
            return
        self._pulse.after(RECONNECT_S, self._attempt)
        self._requests.fail()
        if was_connected:
            self._on_session(SessionState.SUSPENDED)

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.cut()

    def _beat(self) -> None:
        """Send a sign of life, or give the connection up if the servers were silent for too long."""
        connection, left_s = self._connection, 2 * self.timeout_s / 3 - self._pulse.silent_s()
        if connection is None:
            return
        if left_s <= SLACK_S:
            self._interrupted()
            return

        def arrive() -> None:
            self._ensemble.heard(connection)
            connection.down.send(self._pulse.hear)

        connection.up.send(arrive)
        self._pulse.after(min(self.timeout_s / 3, left_s), self._beat)

    # ------------------------------------------------------------------------------------------------ the requests

    async def _look(self, aspect: Aspect, read: Callable[[], T], on_change: OnChange | None) -> T:
        if on_change is None:
            return await self._request(lambda _: read())

        def apply(connection: Connection) -> T:
            self._ensemble.watch(connection, aspect)
            return read()

        # Register with the answer: a failed read must leave no watch, and the change may arrive right behind it.
        return await self._request(apply, lambda: self._watches.add(aspect, on_change))

    async def _request(self, apply: Callable[[Connection], T], then: Callable[[], None] | None = None) -> T:
        await self._thawed.wait()
        if self._connection is None or not self._connected.is_set():
            raise errors.ClusterUnavailable("no server of the ensemble in memory answers; try again later")
        return await self._requests.send(self._connection, apply, then)
