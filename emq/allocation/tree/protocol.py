"""The coordination tree: the few operations of ZooKeeper on which allocation is built.

`emq.allocation.zookeeper` implements them over a real ensemble, `emq.allocation.tree.database` in tables of the SQL
database, for hosts without an ensemble, and `emq.allocation.tree.memory.ensemble` inside one process and in virtual
time, for simulations.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple, Protocol

from emq import errors

OnChange = Callable[[], None]

LARGEST = 1_000_000
"""Bytes of data in one node. A ZooKeeper server breaks the connection off at a request above 1 MiB."""


class SessionState(enum.Enum):
    """States of a session, and what causes each.

    CONNECTED: a server answers; entered at first and again after SUSPENDED or LOST.
    SUSPENDED: the connection broke, or nothing was heard for two thirds of the time-out. The session may still be
        alive on the servers; nobody can tell from here.
    LOST: the servers say that it has expired; every ephemeral node of it is gone. A new one is begun by itself.
    """

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


class Node(NamedTuple):
    """Attributes:
    data: at most 1 MB.
    version: counts the writes, from 0.
    session: of an ephemeral node, the id of the session that it lives with; else 0.
    written_s: when it was last written, by the clock of the servers, in seconds since the epoch.
    """

    data: bytes
    version: int
    session: int
    written_s: float


class NodeTooLarge(errors.EMQError, ValueError):
    """More data than a node may hold; nothing was written. Store it in chunks."""


class NodeExists(errors.EMQError):
    """There is a node of that name already; read it, or choose another name."""


class NodeMissing(errors.EMQError):
    """There is no such node."""


class Conflict(errors.EMQError):
    """The node was written by somebody else since it was read; read it again."""


class Tree(Protocol):
    """A tree of small nodes that many processes share, with sessions.

    Every method but `close` raises `ClusterUnavailable` when no server answers; whether a write happened is then
    unknown. Paths begin with "/" and do not end with it. Safe to use from many tasks of one event loop; all
    callbacks come on that loop.

    `on_change` is called once, at the next change of what was read, or earlier: after an interruption of the
    connection all that are outstanding are called, since a change may have been missed. Handing in the same function
    again before it was called makes no second call. A node that is missing can be watched, too.

    Attributes:
        session: id of the current session, never 0; 0 before there is one, and from LOST to CONNECTED.
        timeout_s: of the session, as negotiated.
    """

    session: int
    timeout_s: float

    async def open(self, on_session: Callable[[SessionState], None]) -> None:
        """Connect; returns once a server has answered, however long that takes.

        It says in the log what it tries and why it fails, and says it again every now and then.

        Raises:
            InvalidSettings: the credentials or the certificate were refused; correct them.
        """

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        """Create a node, and lasting parents where they are missing; answers its path.

        Args:
            ephemeral: it goes when the session ends.
            sequence: append a number of ten digits that grows with each such node of the parent.

        Raises:
            NodeExists: there is one already.
        """

    async def read(self, path: str, on_change: OnChange | None = None) -> Node | None:
        """The node, or None if there is none. `on_change`: it was created, written or deleted."""

    async def children(self, path: str, on_change: OnChange | None = None) -> list[str]:
        """Names of a node's children, sorted; none of a missing one. `on_change`: one was created or deleted."""

    async def write(self, path: str, data: bytes, version: int) -> int:
        """Write the node if its version is `version` (any if -1); answers the new version.

        Raises:
            NodeMissing, Conflict: nothing was written.
        """

    async def delete(self, path: str) -> None:
        """Delete the node with all below it. Does nothing if it is missing."""

    async def close(self) -> None:
        """End the session; its ephemeral nodes go at once if a server can be told. Safe to repeat."""


def check(path: str, data: bytes) -> None:
    """Refuse what no tree takes.

    Raises:
        ValueError: the path does not begin with "/", or ends with it; a bug.
        NodeTooLarge: the data has more than `LARGEST` bytes.
    """
    if not path.startswith("/") or path.endswith("/"):
        raise ValueError(f'path {path!r} must begin with "/" and not end with it')
    if len(data) > LARGEST:
        raise NodeTooLarge(f"{len(data)} bytes for node {path} are above {LARGEST}; store them in chunks")


def split(path: str) -> tuple[str, str]:
    """The path of a node's parent, and the node's own name."""
    parent, _, name = path.rpartition("/")
    return parent or "/", name


def join(parent: str, name: str) -> str:
    """The path of a child."""
    return f"/{name}" if parent == "/" else f"{parent}/{name}"
