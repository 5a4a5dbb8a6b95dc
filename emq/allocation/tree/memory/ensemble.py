"""A ZooKeeper ensemble inside one process and its event loop, for simulations: deterministic, with faults on demand."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import itertools
from collections.abc import Callable

from emq.allocation.tree.memory.client import MemoryTree
from emq.allocation.tree.memory.connection import Connection, Link
from emq.allocation.tree.memory.nodes import Aspect, MemoryNodes
from emq.clock import Clock

__all__ = ["MemoryEnsemble", "MemoryTree"]


class MemoryEnsemble:
    """The servers: nodes, watches, and sessions that expire on the loop's time.

    A session lives for its time-out from the last word of its client that arrived. It goes on living while there is
    no quorum; when that is back, it has its full time-out again. What the servers do runs in the context (see
    `contextvars`) in which they were made, not in that of the client who asked; so clients can be told apart by it.

    Args:
        clock: of the servers; `Node.written_s` is read from it.

    Attributes:
        delay: seconds that a message between a client and the servers takes, asked for each; the messages of one
            connection stay in order.
        loses_answer: asked after each write that was applied, with its operation ("create", "write" or "delete") and
            its path; if it says yes, the connection breaks instead of answering.
        nodes: to look at, or to damage.
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
        self._cut: dict[MemoryTree, bool] = {}

    def tree(self, timeout_s: float = 10.0) -> MemoryTree:
        """A client, not connected yet. `timeout_s`: after so much silence its session ends."""
        return MemoryTree(self, timeout_s)

    @property
    def now_s(self) -> float:
        """The servers' time, in seconds since the epoch."""
        return self._clock.now()

    @property
    def sessions(self) -> frozenset[int]:
        """Ids of the sessions that are alive."""
        return frozenset(self._sessions)

    # -------------------------------------------------------------------------------------------------- for faults

    @property
    def quorum(self) -> bool:
        """Whether a majority of the servers is up; set it to lose or restore that. Without it nobody is connected."""
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

    def partition(self, tree: MemoryTree, *, silent: bool = False) -> None:
        """Keep a client and the servers apart.

        Args:
            silent: messages are held up, and the client notices when it has heard nothing for two thirds of its
                time-out; else its connection breaks at once.
        """
        self._cut[tree] = silent
        if not silent:
            tree.break_connection()

    def heal(self, tree: MemoryTree) -> None:
        """Let a client reach the servers again; what was held up arrives if the connection still stands."""
        self._cut.pop(tree, None)
        tree.flow()

    def is_cut(self, tree: MemoryTree) -> bool:
        """Whether it is kept apart from the servers."""
        return tree in self._cut

    def is_silent(self, tree: MemoryTree) -> bool:
        """Whether it is kept apart so that it does not even notice a broken connection."""
        return self._cut.get(tree, False)

    # ------------------------------------------------------------------------------------- what clients ask servers

    def connect(self, tree: MemoryTree, session: int) -> Connection:
        """A connection over which the session is resumed, or a new one begun if it is gone."""
        connection = Connection(
            tree,
            Link(lambda: self.delay(), lambda: self.is_cut(tree), self._context),
            Link(lambda: self.delay(), lambda: self.is_cut(tree) or tree.frozen, self._context),
        )
        connection.up.send(functools.partial(self._begin, connection, session))
        return connection

    def heard(self, connection: Connection) -> None:
        """A client has said something: its session lives on."""
        self._touch(self._sessions[connection.session])

    def watch(self, connection: Connection, aspect: Aspect) -> None:
        """Tell the client of the next change of this."""
        self._watches.setdefault(aspect, {})[connection] = None

    def end(self, session_id: int) -> None:
        """End a session, because its client asks or because it was silent for too long."""
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
