"""The coordination tree: the few operations of ZooKeeper on which allocation is built.

`emq.allocation.zookeeper` implements them over a real ensemble, `emq.allocation.tree.database` in tables of the SQL
database, for hosts without an ensemble. Simulations have an ensemble in one process, `tests/support/ensemble/`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple, Protocol

from emq.runtime import errors

OnChange = Callable[[], None]

LARGEST = 1_000_000
"""Bytes of data in one node. A ZooKeeper server breaks the connection off at a request above 1 MiB."""


class SessionState(enum.Enum):
    """States of a session, and what causes each.

    CONNECTED: a server answers. The first reply causes this state, also after SUSPENDED or LOST.
    SUSPENDED: the connection broke, or no server answered for two thirds of the time-out. The session may still be
        alive on the servers; the client cannot know.
    LOST: the servers say that the session has expired. All its ephemeral nodes are gone. The client begins a new
        session by itself.
    """

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


class Node(NamedTuple):
    """Attributes:
    data: at most 1 MB.
    version: counts the writes, from 0.
    session: the id of the session that an ephemeral node lives with; 0 for a lasting node.
    written_s: time of the last write, by the clock of the servers, in seconds since 1970.
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

    The tree calls `on_change` once, at the next change of the node or children that were read. After an interruption
    of the connection, the tree calls all outstanding functions, since it may have missed a change. A function that is
    handed in twice before its call is called once. A read can watch a missing node, too.

    Attributes:
        session: id of the current session, never 0; 0 before the first session, and from LOST to CONNECTED.
        timeout_s: the session's negotiated time-out in seconds.
    """

    session: int
    timeout_s: float

    async def open(self, on_session: Callable[[SessionState], None]) -> None:
        """Connect; return once a server has answered, and wait for that without limit.

        The client logs each reason for which no server can be used, and logs it again from time to time.

        Raises:
            InvalidSettings: the credentials or the certificate were refused; correct them.
        """

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        """Create a node, and lasting parents where they are missing; return the node's path.

        Args:
            ephemeral: whether the node goes when the session ends.
            sequence: whether to append a number of ten digits that grows with each sequence node of the parent.

        Raises:
            NodeExists: the node exists already.
        """

    async def read(self, path: str, on_change: OnChange | None = None) -> Node | None:
        """Return the node, or None if it is missing; call `on_change` when it is created, written or deleted."""

    async def children(self, path: str, on_change: OnChange | None = None) -> list[str]:
        """Return the sorted names of a node's children, empty for a missing node.

        The tree calls `on_change` when a child is created or deleted.
        """

    async def write(self, path: str, data: bytes, version: int) -> int:
        """Write the node if its version is `version` (any version if -1); return the new version.

        Raises:
            NodeMissing, Conflict: nothing was written.
        """

    async def prove(self, path: str) -> None:
        """Prove by a write that the session is alive: to one of its own nodes, or to less where that proves as much.

        Raises:
            NodeMissing: the node is gone, and most likely the session, too.
        """
        await self.write(path, b"", -1)

    async def delete(self, path: str) -> None:
        """Delete the node and all nodes below it. Do nothing if the node is missing."""

    async def close(self) -> None:
        """End the session; its ephemeral nodes go at once if a server is reachable. Safe to repeat."""


def check(path: str, data: bytes) -> None:
    """Refuse a path or data that no tree takes.

    Raises:
        ValueError: the path does not begin with "/", or ends with it; a bug.
        NodeTooLarge: the data has more than `LARGEST` bytes.
    """
    if not path.startswith("/") or path.endswith("/"):
        raise ValueError(f'path {path!r} must begin with "/" and not end with it')
    if len(data) > LARGEST:
        raise NodeTooLarge(f"{len(data)} bytes for node {path} are above {LARGEST}; store them in chunks")


def split(path: str) -> tuple[str, str]:
    """Return the path of a node's parent, and the node's own name."""
    parent, _, name = path.rpartition("/")
    return parent or "/", name


def join(parent: str, name: str) -> str:
    """Return the path of a child."""
    return f"/{name}" if parent == "/" else f"{parent}/{name}"
