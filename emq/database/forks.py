"""Closes the connections to SQLite files before this process forks: none may reach a child."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import ClassVar

PATIENCE_S = 10.0
"""Most seconds for which a fork waits for the transactions under way on one file."""

log = logging.getLogger(__name__)


class ForkGuard:
    """Held while connections to one SQLite file are in use: `with guard: ...`. A fork waits, and closes them.

    SQLite notes in its memory which locks its process has on a file. A child inherits the notes, but not the locks
    (https://www.sqlite.org/howtocorrupt.html, section 2.6). So a connection of the child believes that it has a lock:
    the next process that closes the file deletes the log into which the child writes, and the child's messages are
    gone. And a lock that a thread of the parent had at the fork bars the child for ever.

    Args:
        let_go: closes the idle connections.
    """

    _all: ClassVar[weakref.WeakSet[ForkGuard]] = weakref.WeakSet()
    _forking: ClassVar[threading.Lock] = threading.Lock()
    """Held during a fork, and while a guard joins the others."""

    _held: ClassVar[list[threading.Lock]] = []
    """The locks that the fork under way holds."""

    def __init__(self, let_go: Callable[[], None]) -> None:
        self._let_go = let_go
        self._lock = threading.Lock()
        with ForkGuard._forking:
            ForkGuard._all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()

    @classmethod
    def before_fork(cls) -> None:
        cls._forking.acquire()
        for guard in list(cls._all):
            if not guard._lock.acquire(timeout=PATIENCE_S):
                log.warning("a process was forked within a transaction on an SQLite file; use no EMQ in the child")
                continue
            cls._held.append(guard._lock)
            with contextlib.suppress(Exception):  # an exception here would be lost, and the fork goes on
                guard._let_go()

    @classmethod
    def after_fork(cls) -> None:
        """Let transactions go on, in the parent and in the child."""
        for lock in cls._held:
            lock.release()
        cls._held.clear()
        cls._forking.release()


os.register_at_fork(
    before=ForkGuard.before_fork, after_in_parent=ForkGuard.after_fork, after_in_child=ForkGuard.after_fork
)
