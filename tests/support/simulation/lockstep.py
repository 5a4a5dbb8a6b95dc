"""Threads in virtual time: real ones, of which one runs at a time, or the event loop does.

A thread that is given work runs at once, while the event loop waits for it, until it waits for more work or sleeps. So
time passes for it as it does for all others, a stopped process's threads stand still, and each run is like the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

_own = threading.local()


class _Ended(BaseException):
    """The simulation is over."""


class _Thread:
    """As `threading.Thread`, to be resumed by the event loop; it parks itself."""

    def __init__(self, lockstep: Lockstep, target: Callable[[], None], name: str) -> None:
        self._lockstep = lockstep
        self._target = target
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._timers = contextvars.copy_context()
        self._resumed, self._parked = threading.Semaphore(0), threading.Semaphore(0)
        self._real = threading.Thread(target=self._context.run, args=(self._run,), name=name, daemon=True)
        self.is_over = False

    def start(self) -> None:
        self._lockstep.threads.append(self)
        self._real.start()
        self._parked.acquire()

    def resume(self) -> None:
        """In the event loop: let it run until it parks."""
        if not self.is_over:
            self._resumed.release()
            self._parked.acquire()

    def park(self) -> None:
        """In the thread: let the event loop go on."""
        self._parked.release()
        self._resumed.acquire()
        if self._lockstep.is_over:
            raise _Ended

    def sleep(self, seconds: float) -> None:
        self._loop.call_later(seconds, self.resume, context=self._timers)
        self.park()

    def _run(self) -> None:
        _own.thread = self
        asyncio._set_running_loop(self._loop)
        with contextlib.suppress(_Ended):
            self._target()
        self.is_over = True
        self._parked.release()


class _Queue:
    """As `queue.SimpleQueue`: the event loop puts, threads get."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiting: deque[_Thread] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._waiting:
            self._waiting.popleft().resume()

    def get(self) -> Any:
        while not self._items:
            thread: _Thread = _own.thread
            self._waiting.append(thread)
            thread.park()
        return self._items.popleft()


class Lockstep:
    """Attributes:
    threads: all that were started.
    is_over: those that are left end when they are resumed.
    """

    def __init__(self) -> None:
        self.threads: list[_Thread] = []
        self.is_over = False

    def _thread(self, *, target: Callable[[], None], name: str, daemon: bool) -> _Thread:
        return _Thread(self, target, name)

    def close(self) -> None:
        self.is_over = True
        while left := [thread for thread in self.threads if not thread.is_over]:
            for thread in left:
                thread.resume()


@contextlib.contextmanager
def in_lockstep() -> Iterator[Lockstep]:
    """Let the threads of handlers be of this kind; all have ended when it is over."""
    lockstep = Lockstep()
    threads = types.SimpleNamespace(Thread=lockstep._thread)
    queues = types.SimpleNamespace(SimpleQueue=_Queue)
    with (
        mock.patch("emq.quota.places.threads.threading", threads),
        mock.patch("emq.quota.places.threads.queue", queues),
    ):
        try:
            yield lockstep
        finally:
            lockstep.close()


def sleep(seconds: float) -> None:
    """In a thread: as `time.sleep`, in virtual time."""
    thread: _Thread = _own.thread
    thread.sleep(seconds)
