"""The nodes and sessions of a coordination tree as rows of the database. Each function is part of one transaction.

Every change takes the next number of one counter. The counter's row stays locked until the transaction ends, so changes
happen one after the other. A client that reads the counter later sees all changes up to that number. Numbers follow the
time in microseconds, or grow by random steps if the clock is behind. So a database that lost rows gives no number
twice. Ids of sessions are random for the same reason.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import sqlalchemy as sa

from emq.allocation.tree.protocol import Conflict, Node, NodeExists, NodeMissing, split
from emq.allocation.tree.watches import Aspect
from emq.database import statements, tables
from emq.runtime import errors

MISSING = 0
"""Number of the last change of a node that does not exist."""

LARGEST_STEP = 1000
"""Largest step from one number to the next where the clock is behind the numbers."""

TOGETHER = 500
"""Most paths in one query."""

_COUNTER = {"environment": "*", "key": "tree"}
_nodes = tables.tree_nodes
_sessions = tables.tree_sessions


class SessionGone(errors.EMQError):
    """The session has ended, and its ephemeral nodes are gone; begin another session."""


class Sighting(NamedTuple):
    """A session as a look finds it.

    Attributes:
        beat: grows each time that its client writes.
    """

    id: int
    beat: int
    timeout_ms: int


class Glance(NamedTuple):
    """The result of one look at the tree.

    Attributes:
        number: the number of the last change of the whole tree.
        sessions: all sessions.
        numbers: the result of the function `numbers`; None if nothing has changed.
    """

    number: int
    sessions: list[Sighting]
    numbers: dict[str, tuple[int, int]] | None


# ------------------------------------------------------------------------------------------------------------ sessions


def begin(connection: sa.Connection, timeout_s: float, process: str) -> int:
    """Begin a session; return its id."""
    number, session = _next(connection), 1 + secrets.randbelow(1 << 62)
    row = {"id": session, "beat": number, "timeout_ms": round(timeout_s * 1000), "process": process}
    connection.execute(sa.insert(_sessions).values(row))
    return session


def renew(connection: sa.Connection, session: int) -> None:
    """Note that the session is alive. That is no change of the tree: no client has to look at its nodes again.

    Raises:
        SessionGone: the session has ended.
    """
    values = {"session": session, "step": 1 + secrets.randbelow(LARGEST_STEP)}
    if not statements.run(connection, "tree_renew", values):
        raise SessionGone(f"session {session} has ended")


def end(connection: sa.Connection, session: int, beat: int | None = None) -> None:
    """End a session and delete its nodes, unless its client has written since `beat`."""
    number = _next(connection)
    query = sa.delete(_sessions).where(_sessions.c.id == session)
    if connection.execute(query if beat is None else query.where(_sessions.c.beat == beat)).rowcount:
        paths = connection.execute(sa.select(_nodes.c.path).where(_nodes.c.session == session)).scalars().all()
        _remove(connection, paths, number)


def processes(connection: sa.Connection) -> list[tuple[int, str]]:
    """Return the id of every session, with the process of its client."""
    return [(id_, process) for id_, process in connection.execute(sa.select(_sessions.c.id, _sessions.c.process))]


def glance(connection: sa.Connection, seen: int | None, paths: Iterable[str]) -> Glance:
    """Look for changes, by one small query.

    Args:
        seen: the tree's number at the last look; None before the first look.
        paths: the nodes whose numbers to return if the tree's number has changed.
    """
    rows = statements.run(connection, "tree_glance", _COUNTER)
    number = rows[0][0] if rows else 0
    found = None if number == seen else numbers(connection, paths)
    return Glance(number, [Sighting(*row[1:]) for row in rows], found)


def numbers(connection: sa.Connection, paths: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return, for each node that exists, the numbers of its last change and of the last change of its children."""
    paths, found = list(paths), {}
    for start in range(0, len(paths), TOGETHER):
        columns = (_nodes.c.path, _nodes.c.changed, _nodes.c.children_changed)
        query = sa.select(*columns).where(_nodes.c.path.in_(paths[start : start + TOGETHER]))
        found.update({path: (node, children) for path, node, children in connection.execute(query)})
    return found


def seen(found: Mapping[str, tuple[int, int]], aspect: Aspect) -> int:
    """Return the number of the last change of a watched part of a node."""
    return found.get(aspect.path, (MISSING, MISSING))[0 if aspect.of == "node" else 1]


# --------------------------------------------------------------------------------------------------------------- nodes


def create(connection: sa.Connection, session: int, path: str, data: bytes, *, ephemeral: bool, sequence: bool) -> str:
    number = _change(connection, session)
    parent, _ = split(path)
    if not sequence and _is_there(connection, path):
        raise NodeExists(f"node {path} is there already; read it, or choose another name")
    _make_parents(connection, parent, number)
    if sequence:
        update = sa.update(_nodes).where(_nodes.c.path == parent).values(numbers=_nodes.c.numbers + 1)
        path = f"{path}{connection.execute(update.returning(_nodes.c.numbers)).scalar_one():010d}"
    _insert(connection, path, data, session if ephemeral else 0, number)
    return path


def read(connection: sa.Connection, path: str) -> tuple[Node | None, int]:
    """Return the node, and the number of its last change."""
    c = _nodes.c
    query = sa.select(c.data, c.version, c.session, c.written_ms, c.changed).where(c.path == path)
    row = connection.execute(query).one_or_none()
    if row is None:
        return None, MISSING
    return Node(bytes(row.data), row.version, row.session, row.written_ms / 1000), row.changed


def children(connection: sa.Connection, path: str) -> tuple[list[str], int]:
    """Return the names of the children, and the number of the last change of the list of children."""
    # One query, or a child could come between the number and the names.
    query = sa.select(_nodes.c.path, _nodes.c.parent, _nodes.c.children_changed).where(
        sa.or_(_nodes.c.parent == path, _nodes.c.path == path)
    )
    rows = connection.execute(query).all()
    names = sorted(split(row.path)[1] for row in rows if row.parent == path and row.path != path)
    return names, next((row.children_changed for row in rows if row.path == path), MISSING)


def write(connection: sa.Connection, session: int, path: str, data: bytes, version: int) -> int:
    number = _change(connection, session)
    found = connection.execute(sa.select(_nodes.c.version).where(_nodes.c.path == path)).scalar()
    if found is None:
        raise NodeMissing(f"node {path} does not exist; create it")
    if version not in (-1, found):
        raise Conflict(f"node {path} has version {found}, not {version}; read it again")
    values = {"data": data, "version": found + 1, "written_ms": _now_ms(connection), "changed": number}
    connection.execute(sa.update(_nodes).where(_nodes.c.path == path).values(values))
    return int(found) + 1


def delete(connection: sa.Connection, session: int, path: str) -> None:
    number = _change(connection, session)
    level, paths = [path] if _is_there(connection, path) else [], []
    while level:
        paths += level
        level = list(connection.execute(sa.select(_nodes.c.path).where(_nodes.c.parent.in_(level))).scalars())
    _remove(connection, paths, number)


def _change(connection: sa.Connection, session: int) -> int:
    """Begin a change of the tree in the name of a session, which is alive by that; return the change's number."""
    number = _next(connection)
    renew(connection, session)
    return number


def _next(connection: sa.Connection) -> int:
    values = {**_COUNTER, "step": 1 + secrets.randbelow(LARGEST_STEP)}
    return int(connection.execute(statements.catalog(connection, "tree_next"), values).scalar_one())


def _now_ms(connection: sa.Connection) -> sa.ColumnElement[int] | int:
    """Return the time by the database's clock, in ms; SQLite uses the machine's clock."""
    if connection.dialect.name == "sqlite":
        return time.time_ns() // 1_000_000
    return sa.cast(sa.extract("epoch", sa.func.clock_timestamp()) * 1000, sa.BigInteger)


def _is_there(connection: sa.Connection, path: str) -> bool:
    return connection.execute(sa.select(sa.literal(1)).where(_nodes.c.path == path)).scalar() is not None


def _make_parents(connection: sa.Connection, path: str, number: int) -> None:
    if _is_there(connection, path):
        return
    if path != "/":
        _make_parents(connection, split(path)[0], number)
    _insert(connection, path, b"", 0, number)


def _insert(connection: sa.Connection, path: str, data: bytes, session: int, number: int) -> None:
    parent = split(path)[0] if path != "/" else ""
    row = {"path": path, "parent": parent, "data": data, "version": 0, "session": session, "numbers": -1}
    row |= {"written_ms": _now_ms(connection), "changed": number, "children_changed": number}
    connection.execute(sa.insert(_nodes).values(row))
    _children_changed(connection, {parent}, number)


def _remove(connection: sa.Connection, paths: Iterable[str], number: int) -> None:
    paths = list(paths)
    for start in range(0, len(paths), TOGETHER):
        connection.execute(sa.delete(_nodes).where(_nodes.c.path.in_(paths[start : start + TOGETHER])))
    _children_changed(connection, {split(path)[0] for path in paths}, number)


def _children_changed(connection: sa.Connection, parents: Iterable[str], number: int) -> None:
    parents = list(parents)
    for start in range(0, len(parents), TOGETHER):
        some = _nodes.c.path.in_(parents[start : start + TOGETHER])
        connection.execute(sa.update(_nodes).where(some).values(children_changed=number))
