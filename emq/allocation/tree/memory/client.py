"""A client of the ensemble in memory; see `emq.allocation.tree.memory.ensemble`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from emq import errors
from emq.allocation.tree.memory.connection import Connection
from emq.allocation.tree.memory.nodes import Aspect
from emq.allocation.tree.memory.servers import MemoryServers
from emq.allocation.tree.protocol import Node, OnChange, SessionState

RECONNECT_S = 0.1
"""Seconds between two attempts of a client to find a server."""

SLACK_S = 1e-6
"""Difference in seconds below which two times count as equal, since timers may fire a little early."""

T = TypeVar("T")


class MemoryTree:
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
        self._heard_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._requests: dict[asyncio.Future[Any], None] = {}
        self._watching: dict[Aspect, dict[OnChange, None]] = {}

    # ----------------------------------------------------------------------------------------------- the protocol

    async def open(self, on_session: Callable[[SessionState], None]) -> None:
        self._on_session = on_session
        await self._thawed.wait()
        self._attempt()
        await self._connected.wait()

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        def apply(connection: Connection) -> str:
            session = connection.session if ephemeral else 0
            return self._ensemble.nodes.create(path, data, session=session, sequence=sequence)

        return await self._write("create", path, apply)

    async def read(self, path: str, on_change: OnChange | None = None) -> Node | None:
        return await self._look(Aspect(path, "node"), lambda: self._ensemble.nodes.read(path), on_change)

    async def children(self, path: str, on_change: OnChange | None = None) -> list[str]:
        return await self._look(Aspect(path, "children"), lambda: self._ensemble.nodes.children(path), on_change)

    async def write(self, path: str, data: bytes, version: int) -> int:
        return await self._write("write", path, lambda _: self._ensemble.nodes.write(path, data, version))

    async def delete(self, path: str) -> None:
        await self._write("delete", path, lambda _: self._ensemble.nodes.delete(path))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._stop_timer()
        if self._connected.is_set() and not self.frozen and not self._ensemble.is_cut(self):
            self._ensemble.end(self.session)
        self._hang_up()
        self._connected.clear()
        self._watching.clear()
        self.session = 0
        self._fail_requests()

    # ------------------------------------------------------------------------------------------------- for faults

    def freeze(self) -> None:
        """Stop like a process that gets SIGSTOP: the client's requests wait, and no message reaches the client."""
        self.frozen = True
        self._thawed.clear()
        self._stop_timer()

    def thaw(self) -> None:
        """Go on; the messages that came meanwhile arrive first."""
        if not self.frozen:
            return
        self.frozen = False
        self._thawed.set()
        self._heard_s = _now_s()
        if not self._closed and self._timer is not None:
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
        self._heard_s = _now_s()
        if lost:
            self.session = 0
            self._on_session(SessionState.LOST)
        self.session = self._previous = session
        self._connected.set()
        self._beat()
        self._on_session(SessionState.CONNECTED)
        missed, self._watching = self._watching, {}
        for watching in missed.values():
            for on_change in watching:
                on_change()

    def changed(self, aspect: Aspect) -> None:
        self._heard_s = _now_s()
        for on_change in self._watching.pop(aspect, ()):
            on_change()

    # ------------------------------------------------------------------------------------------------- the session

    def _attempt(self) -> None:
        """Look for a server, again and again until one answers."""
        if self._closed or self.frozen:
            return
        self._hang_up()
        if self._ensemble.is_cut(self) or not self._ensemble.quorum:
            self._after(RECONNECT_S, self._attempt)
        else:
            self._connection = self._ensemble.connect(self, self._previous)
            self._after(2 * self.timeout_s / 3, self._interrupted)

    def _interrupted(self) -> None:
        was_connected = self._connected.is_set()
        self._hang_up()
        self._connected.clear()
        if self._closed:
            return
        self._after(RECONNECT_S, self._attempt)
        self._fail_requests()
        if was_connected:
            self._on_session(SessionState.SUSPENDED)

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.cut()

    def _beat(self) -> None:
        """Send a sign of life, or give the connection up if the servers were silent for too long."""
        connection, left_s = self._connection, self._heard_s + 2 * self.timeout_s / 3 - _now_s()
        if connection is None:
            return
        if left_s <= SLACK_S:
            self._interrupted()
            return

        def heard() -> None:
            self._heard_s = _now_s()

        def arrive() -> None:
            self._ensemble.heard(connection)
            connection.down.send(heard)

        connection.up.send(arrive)
        self._after(min(self.timeout_s / 3, left_s), self._beat)

    def _after(self, seconds: float, then: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(seconds, then)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # ------------------------------------------------------------------------------------------------ the requests

    async def _look(self, aspect: Aspect, read: Callable[[], T], on_change: OnChange | None) -> T:
        def apply(connection: Connection) -> T:
            if on_change is not None:
                self._ensemble.watch(connection, aspect)
            return read()

        def answered() -> None:
            # Register now: a failed read must leave no watch, and the change may arrive right behind the answer.
            if on_change is not None:
                self._watching.setdefault(aspect, {})[on_change] = None

        return await self._request(apply, answered)

    async def _write(self, operation: str, path: str, write: Callable[[Connection], T]) -> T:
        def apply(connection: Connection) -> T:
            result = write(connection)
            if self._ensemble.loses_answer(operation, path):
                connection.cut()
            return result

        return await self._request(apply, lambda: None)

    async def _request(self, apply: Callable[[Connection], T], answered: Callable[[], None]) -> T:
        await self._thawed.wait()
        connection = self._connection
        if connection is None or not self._connected.is_set():
            raise errors.ClusterUnavailable("no server of the ensemble in memory answers; try again later")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def settle(result: T | None, refusal: Exception | None) -> None:
            self._heard_s = _now_s()
            if answer.done():
                return
            if refusal is not None:
                answer.set_exception(refusal)
            else:
                answered()
                answer.set_result(result)  # type: ignore[arg-type]  # there is a result or a refusal

        def arrive() -> None:
            self._ensemble.heard(connection)
            try:
                result, refusal = apply(connection), None
            except (errors.EMQError, ValueError) as exc:
                result, refusal = None, exc
            connection.down.send(lambda: settle(result, refusal))

        self._requests[answer] = None
        connection.up.send(arrive)
        try:
            return await answer
        finally:
            self._requests.pop(answer, None)

    def _fail_requests(self) -> None:
        for answer in self._requests:
            if not answer.done():
                text = "the connection to the ensemble in memory broke; what was asked may have happened"
                answer.set_exception(errors.ClusterUnavailable(text))


def _now_s() -> float:
    return asyncio.get_running_loop().time()
