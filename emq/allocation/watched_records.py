"""Records of many nodes of the coordination tree, each read again only after its node has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from emq.allocation import records
from emq.allocation.tree.protocol import Node, Tree


class WatchedRecords:
    """Reads the records in the children of nodes, and watches the children.

    Args:
        on_change: called when a child is created, written or deleted.
    """

    def __init__(self, tree: Tree, on_change: Callable[[], None]) -> None:
        self._tree = tree
        self._on_change = on_change
        self._nodes: dict[str, Node | None] = {}
        self._watchers: dict[str, Callable[[], None]] = {}
        self._outdated: set[str] = set()

    def forget(self) -> None:
        """Forget all records, since the tree may have missed changes."""
        self._nodes.clear()

    async def below(self, parent: str, kind: type[records.Kind]) -> dict[str, records.Kind]:
        """Return the records of a node's children by name; read only those again that changed.

        Raises:
            ClusterUnavailable: no server answers; try again later.
            ForeignTree: EMQ did not write a node; the text names the node.
        """
        names = await self._tree.children(parent, self._on_change)
        paths = [f"{parent}/{name}" for name in names]
        # A copy: a node that changes during the reads leaves `_nodes`, but its host is still a member.
        known = {path: self._nodes[path] for path in paths if path in self._nodes}
        unread = [path for path in paths if path not in known]
        self._outdated.difference_update(unread)
        nodes = await asyncio.gather(*(self._tree.read(path, self._watcher(path)) for path in unread))
        read = dict(zip(unread, nodes, strict=True))
        self._nodes.update(read)
        known.update(read)
        gone = [path for path in self._nodes if path.startswith(parent) and path not in paths]
        for path in gone:
            del self._nodes[path]
            self._watchers.pop(path, None)
            self._outdated.discard(path)
        found = {}
        for name, path in zip(names, paths, strict=True):
            if (node := known[path]) is not None:
                found[name] = records.decode(node.data, kind, path)
            if path in self._outdated:  # the node changed during the reads
                self._nodes.pop(path, None)
        return found

    def _watcher(self, path: str) -> Callable[[], None]:
        """Return the watch function of a path, the same one each time, so that watches do not pile up."""

        def changed() -> None:
            self._nodes.pop(path, None)
            self._outdated.add(path)
            self._on_change()

        return self._watchers.setdefault(path, changed)
