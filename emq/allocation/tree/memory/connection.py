"""A connection to a server of the ensemble in memory: requests arrive in order, late, or never."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from typing import Protocol

from emq.allocation.tree.memory.nodes import Aspect


class Client(Protocol):
    """What the servers say to a client. Attributes: timeout_s: of the session that it asks for."""

    timeout_s: float

    def established(self, session: int) -> None:
        """Its session is `session`: the one that it had, or a new one."""

    def changed(self, aspect: Aspect) -> None:
        """Something that it watches has changed."""

    def flow(self) -> None:
        """Look at the connection: it may have broken, or messages may pass that were held up."""


class Link:
    """One direction of a connection: messages arrive in order, each after its delay, and not while it is held.

    Args:
        delay: seconds for the next message.
        held: whether nothing passes now.
        context: in which messages arrive, whoever sent them.
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
        """Hand over what has arrived, unless it is held."""
        while self._arrived and not self._held():
            self._arrived.popleft()()

    def close(self) -> None:
        """Lose what is under way; nothing arrives any more."""
        self._closed = True
        self._under_way.clear()
        self._arrived.clear()

    def _arrive(self) -> None:
        if self._under_way:
            self._arrived.append(self._under_way.popleft())
            self.flow()


class Connection:
    """Between a client and the servers; once broken it stays so, and what was under way is lost.

    Attributes:
        session: that it serves; 0 before the servers have answered.
    """

    def __init__(self, client: Client, up: Link, down: Link) -> None:
        self.client = client
        self.up = up
        self.down = down
        self.session = 0
        self.broken = False

    def cut(self) -> None:
        """Break it; its client hears of that as soon as it can hear anything."""
        if not self.broken:
            self.broken = True
            self.up.close()
            self.down.close()
            self.client.flow()
