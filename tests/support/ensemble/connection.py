"""A connection to a server of the ensemble in memory: messages arrive in order, late, or never."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from emq.allocation.tree.watches import Aspect


class Client(Protocol):
    """The methods and attributes of a client that the servers use.

    Attributes:
        timeout_s: the time-out, in seconds, of the session that the client asks for.
        frozen: True while the client's process is suspended, so that no message of the client arrives.
    """

    timeout_s: float
    frozen: bool

    def established(self, session: int) -> None:
        """Take the session that the servers gave: the client's former session, or a new one."""

    def changed(self, aspect: Aspect) -> None:
        """Take the report that a watched part of a node has changed."""

    def break_connection(self) -> None:
        """Break the connection, if there is one."""

    def flow(self) -> None:
        """Look at the connection: notice whether it has broken, and let messages pass that were held up."""


class Link:
    """One direction of a connection: messages arrive in order, each after its delay, and not while the link is held.

    Args:
        delay: returns the seconds that the next message takes.
        held: returns whether the link holds all messages up now.
        context: the context (see `contextvars`) in which messages arrive, whoever sent them.
    """

    def __init__(self, delay: Callable[[], float], held: Callable[[], bool], context: contextvars.Context) -> None:
        self._delay = delay
        self._held = held
        self._context = context
        self._under_way: deque[Callable[[], None]] = deque()
        self._arrived: deque[Callable[[], None]] = deque()
        self._last_s = 0.0
        self._closed = False

    def send(self, message: Callable[[], None]) -> None:
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        self._last_s = max(self._last_s, loop.time() + self._delay())
        self._under_way.append(message)
        if self._last_s <= loop.time():
            loop.call_soon(self._arrive, context=self._context)
        else:
            loop.call_at(self._last_s, self._arrive, context=self._context)

    def flow(self) -> None:
        """Deliver the messages whose delay is over, unless the link is held."""
        while self._arrived and not self._held():
            self._arrived.popleft()()

    def close(self) -> None:
        """Lose the messages under way; no message arrives after this."""
        self._closed = True
        self._under_way.clear()
        self._arrived.clear()

    def _arrive(self) -> None:
        if self._under_way:
            self._arrived.append(self._under_way.popleft())
            self.flow()


@dataclass(eq=False)
class Connection:
    """A connection between a client and the servers. A broken one stays broken, and its messages under way are lost.

    Attributes:
        session: the id of the session that uses the connection; 0 before the servers have answered.
    """

    client: Client
    up: Link
    down: Link
    session: int = 0
    broken: bool = False

    def cut(self) -> None:
        """Break the connection; the client notices as soon as messages can reach the client."""
        if not self.broken:
            self.broken = True
            self.up.close()
            self.down.close()
            self.client.flow()
