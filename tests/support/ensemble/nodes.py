"""The nodes of the coordination tree that the ensemble in memory serves."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from emq.allocation.tree.protocol import Conflict, Node, NodeExists, NodeMissing, check, join, split
from emq.allocation.tree.watches import Aspect


@dataclass(eq=False)
class _Entry:
    data: bytes
    session: int
    written_s: float
    version: int = 0
    children: set[str] = field(default_factory=set)
    numbers: Iterator[int] = field(default_factory=itertools.count)


class MemoryNodes:
    """Nodes by path. Each method is atomic.

    Args:
        on_change: called after a change, once for each aspect that the change touches.
    """

    def __init__(self, now_s: Callable[[], float], on_change: Callable[[Aspect], None]) -> None:
        self._now_s = now_s
        self._on_change = on_change
        self._entries = {"/": _Entry(b"", 0, now_s())}

    def create(self, path: str, data: bytes = b"", *, session: int = 0, sequence: bool = False) -> str:
        """Create a node and its missing parents; return the node's path. `session` is 0 for a lasting node."""
        check(path, data)
        parent, name = split(path)
        if not sequence and path in self._entries:
            raise NodeExists(f"node {path} is there already; read it, or choose another name")
        if parent not in self._entries:
            self.create(parent)
        above = self._entries[parent]
        if sequence:
            name = f"{name}{next(above.numbers):010d}"
            path = join(parent, name)
        above.children.add(name)
        self._entries[path] = _Entry(data, session, self._now_s())
        self._changed(path, existence=True)
        return path

    def read(self, path: str) -> Node | None:
        entry = self._entries.get(path)
        return None if entry is None else Node(entry.data, entry.version, entry.session, entry.written_s)

    def children(self, path: str) -> list[str]:
        entry = self._entries.get(path)
        return [] if entry is None else sorted(entry.children)

    def write(self, path: str, data: bytes, version: int) -> int:
        check(path, data)
        entry = self._entries.get(path)
        if entry is None:
            raise NodeMissing(f"there is no node {path}; create it")
        if version not in (-1, entry.version):
            raise Conflict(f"node {path} has version {entry.version}, not {version}; read it again")
        entry.data, entry.written_s = data, self._now_s()
        entry.version += 1
        self._changed(path, existence=False)
        return entry.version

    def delete(self, path: str) -> None:
        """Delete a node and all nodes below it, the lowest first."""
        entry = self._entries.get(path)
        if entry is None:
            return
        for name in sorted(entry.children):
            self.delete(join(path, name))
        parent, name = split(path)
        del self._entries[path]
        self._entries[parent].children.discard(name)
        self._changed(path, existence=True)

    def end(self, session: int) -> None:
        """Delete the ephemeral nodes of a session."""
        for path in [path for path, entry in self._entries.items() if entry.session == session]:
            self.delete(path)

    def _changed(self, path: str, existence: bool) -> None:
        self._on_change(Aspect(path, "node"))
        if existence:
            self._on_change(Aspect(path, "children"))
            self._on_change(Aspect(split(path)[0], "children"))
