"""Watches the work that takes real time in a test: threads, and connections to other processes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

from emq_testing.virtual_time import Select

Address = Any


class RealWork:
    """Holds virtual time while a thread works, and while a handler or the test may wait for another process.

    Virtual time stands still until something happens outside, for at most `patience_s` real seconds. After that
    silence, time jumps as usual until something happens outside, or a thread or handler starts. So time-outs still fire
    if a thread or a server hangs.

    A connection with both ends in this event loop needs no patience, because it carries bytes at once. So a server that
    a test starts in its own loop answers without any time passing.

    Attributes:
        threads: functions that run in threads for this loop.
        patience_s: the seconds above.
        expecting: returns whether somebody may wait for a connection.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, expecting: Callable[[], bool]) -> None:
        self._loop: Any = loop
        self.patience_s = 0.0
        self._is_patient = True
        self.expecting = expecting
        self.threads = 0

    def wait(self, select: Select) -> list[Any]:
        """See `Outside.wait`."""
        if not self._is_patient or not self.is_at_work():
            return []
        found = select(self.patience_s)
        self._is_patient = bool(found)
        return found

    def is_at_work(self) -> bool:
        """Return whether a thread works, or somebody may wait for a connection to another process."""
        return bool(self.threads or (self.expecting() and self._has_strange_connection()))

    def stirred(self) -> None:
        """Be patient again, because something that may take real time has begun or ended."""
        self._is_patient = True

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count the functions that `loop.run_in_executor` and `asyncio.to_thread` run during the block."""
        loop = self._loop
        former = loop.run_in_executor

        def run_in_executor(executor: Any, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
            future: asyncio.Future[Any] = former(executor, function, *arguments)
            self.began()
            future.add_done_callback(self.ended)
            return future

        loop.run_in_executor = run_in_executor
        try:
            yield
        finally:
            del loop.run_in_executor

    def began(self) -> None:
        """Note that a function has begun in a thread."""
        self.threads += 1
        self.stirred()

    def ended(self, _: object = None) -> None:
        """Note that a function in a thread has ended, or that nobody waits for it any more."""
        self.threads -= 1
        self.stirred()

    def _has_strange_connection(self) -> bool:
        """Return whether a socket is open whose other end is not in this event loop. Listening sockets do not count."""
        watched = self._loop._selector.get_map()
        if len(watched) <= 1:
            return False  # the loop's own pipe, by which threads wake it
        own: set[Address] = set()
        peers: list[Address] = []
        for fd in list(watched):
            if fd == self._loop._ssock.fileno():
                continue
            found = _ends(fd)
            if found is None:
                return True
            own.add(found[0])
            peers.extend(found[1:])
        return any(peer not in own for peer in peers)


def _ends(fd: int) -> tuple[Address, ...] | None:
    """Return the addresses of a connection's two ends, or a listening socket's own; None for anything else."""
    try:
        watched = socket.socket(fileno=fd)
    except OSError:
        return None  # a pipe, for one
    try:
        if watched.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return (watched.getsockname(),)
        return watched.getsockname(), watched.getpeername()
    except OSError:
        return None
    finally:
        watched.detach()
