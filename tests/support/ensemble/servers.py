"""The servers of the ensemble in memory: nodes, watches, and sessions that expire."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import itertools
from collections.abc import Callable
from typing import TypeVar

from emq.allocation.tree.watches import Aspect
from emq.runtime.clock import Clock
from support.ensemble.connection import Client, Connection, Link
from support.ensemble.nodes import MemoryNodes

T = TypeVar("T")


class MemoryServers:
    """The servers: nodes, watches, and sessions that expire by the loop's time.

    A session ends when no message of its client has arrived for its time-out. Without a quorum, no session ends; when
    the quorum is back, every session has its full time-out again. The servers work in the context (see `contextvars`)
    in which they were made, and not in the context of the client that asked. So the context tells clients apart.

    Args:
        clock: the servers' clock, which gives `Node.written_s`.

    Attributes:
        delay: returns the seconds that a message between a client and the servers takes; called for each message. The
            messages of one connection stay in order.
        loses_answer: called after each write, with the operation ("create", "write" or "delete") and the path; returns
            whether the connection breaks before the answer.
        nodes: the nodes, which tests may look at or damage.
    """

    def __init__(self, clock: Clock) -> None:
        self.delay: Callable[[], float] = lambda: 0.0
        self.loses_answer: Callable[[str, str], bool] = lambda operation, path: False
        self.nodes = MemoryNodes(clock.now, self._changed)
        self._clock = clock
        self._context = contextvars.copy_context()
        self._quorum = True
        self._numbers = itertools.count(1)
        self._sessions: dict[int, _Session] = {}
        self._watches: dict[Aspect, dict[Connection, None]] = {}
        self._cut: dict[Client, bool] = {}

    @property
    def now_s(self) -> float:
        """The servers' time, in seconds since the epoch."""
        return self._clock.now()

    @property
    def sessions(self) -> frozenset[int]:
        """The ids of the living sessions."""
        return frozenset(self._sessions)

    # -------------------------------------------------------------------------------------------------- for faults

    @property
    def quorum(self) -> bool:
        """True while a majority of the servers is up. Set it to lose or restore the majority. Without a majority, no
        client is connected."""
        return self._quorum

    @quorum.setter
    def quorum(self, there: bool) -> None:
        if there == self._quorum:
            return
        self._quorum = there
        for session in list(self._sessions.values()):
            if there:
                self._touch(session)
            else:
                session.stop_expiry()
                session.connection.cut()

    def partition(self, tree: Client, *, silent: bool = False) -> None:
        """Cut a client off from the servers.

        Args:
            silent: if True, the connection holds its messages up, and the client notices after two thirds of its
                time-out; if False, the connection breaks at once.
        """
        self._cut[tree] = silent
        if not silent:
            tree.break_connection()

    def heal(self, tree: Client) -> None:
        """Let a client reach the servers again; messages that were held up arrive if the connection still stands."""
        self._cut.pop(tree, None)
        tree.flow()

    def is_cut(self, tree: Client) -> bool:
        """Return whether the client is cut off from the servers."""
        return tree in self._cut

    def is_silent(self, tree: Client) -> bool:
        """Return whether the client is cut off without noticing a broken connection."""
        return self._cut.get(tree, False)

    # ------------------------------------------------------------------------------------- what clients ask servers

    def connect(self, tree: Client, session: int) -> Connection:
        """Return a new connection, which resumes the session, or begins a new one if the session has ended."""
        connection = Connection(
            tree,
            Link(lambda: self.delay(), lambda: self.is_cut(tree), self._context),
            Link(lambda: self.delay(), lambda: self.is_cut(tree) or tree.frozen, self._context),
        )
        connection.up.send(functools.partial(self._begin, connection, session))
        return connection

    def heard(self, connection: Connection) -> None:
        """Note that a message of the client arrived, so that its session lives on."""
        self._touch(self._sessions[connection.session])

    def watch(self, connection: Connection, aspect: Aspect) -> None:
        """Tell the client of the next change of this part of a node."""
        self._watches.setdefault(aspect, {})[connection] = None

    def answer(self, connection: Connection, operation: str, path: str, result: T) -> T:
        """Return the result of a write; a fault may break the connection before the client has it."""
        if self.loses_answer(operation, path):
            connection.cut()
        return result

    def end(self, session_id: int) -> None:
        """End a session, because its client asked for the end, or was silent for too long."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.stop_expiry()
            session.connection.cut()
            self.nodes.end(session_id)

    def _begin(self, connection: Connection, session_id: int) -> None:
        if not self._quorum:
            connection.cut()
            return
        session = self._sessions.get(session_id)
        if session is None:
            session = _Session(next(self._numbers), connection)
            self._sessions[session.id] = session
        elif session.connection is not connection:
            session.connection.cut()
            session.connection = connection
        connection.session = session.id
        self._touch(session)
        connection.down.send(functools.partial(connection.client.established, session.id))

    def _touch(self, session: _Session) -> None:
        session.stop_expiry()
        timeout_s = session.connection.client.timeout_s
        loop = asyncio.get_running_loop()
        session.expiry = loop.call_later(timeout_s, self.end, session.id, context=self._context)

    def _changed(self, aspect: Aspect) -> None:
        for connection in self._watches.pop(aspect, ()):
            connection.down.send(functools.partial(connection.client.changed, aspect))


class _Session:
    def __init__(self, number: int, connection: Connection) -> None:
        self.id = number
        self.connection = connection
        self.expiry: asyncio.TimerHandle | None = None

    def stop_expiry(self) -> None:
        if self.expiry is not None:
            self.expiry.cancel()
