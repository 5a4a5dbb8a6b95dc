"""Functions that read the plan in force from the tree."""

from __future__ import annotations

import asyncio

from emq.allocation import records
from emq.allocation.records import Entry, Paths, Pointer, Record
from emq.allocation.tree.protocol import Node, OnChange, Tree
from emq.runtime import errors


async def read_record(tree: Tree, paths: Paths, environment: str, on_change: OnChange | None = None) -> Record | None:
    """Return the record of the plan; None before the first plan.

    Raises:
        ForeignTree: the record is not EMQ's, is damaged, or belongs to another environment.
    """
    return record_of(await tree.read(paths.serverlist, on_change), paths, environment)


def record_of(node: Node | None, paths: Paths, environment: str) -> Record | None:
    """Return the record in the plan's node; see `read_record`."""
    if node is None or not node.data:  # a node without data is only the lists' parent
        return None
    record = records.decode(node.data, Record, paths.serverlist)
    if record.environment != environment:
        raise errors.ForeignTree(
            f"node {paths.serverlist} is of the environment {record.environment!r}, not {environment!r}; "
            "choose another chroot"
        )
    return record


class OwnList:
    """A host's list of groups in the plan in force; read again only when the plan names another list."""

    def __init__(self, tree: Tree, paths: Paths, environment: str, host: str) -> None:
        self._tree = tree
        self._paths = paths
        self._environment = environment
        self._host = host
        self._pointer: Pointer | None = None
        self._entries: dict[str, Entry] = {}

    async def read(self, record: Record, incarnation: str) -> dict[str, Entry] | None:
        """Return the host's groups; None if another plan came into force meanwhile.

        Args:
            record: the plan in force.
            incarnation: of the host; a list for another one is not its own.

        Raises:
            ForeignTree: the list is missing or damaged.
        """
        pointer = record.lists.get(self._host)
        if pointer is None or pointer.incarnation != incarnation:
            return {}
        if pointer != self._pointer:
            entries = await read_list(self._tree, self._paths, self._host, pointer)
            if entries is None:
                again = await read_record(self._tree, self._paths, self._environment)
                if again is not None and again.generation != record.generation:
                    return None
                raise gone(self._paths, self._host)
            self._entries, self._pointer = entries, pointer
        return self._entries

    def forget(self) -> None:
        """Read the list again next time."""
        self._pointer, self._entries = None, {}


async def read_list(tree: Tree, paths: Paths, host: str, pointer: Pointer) -> dict[str, Entry] | None:
    """Return a host's groups; None if a node of its list is missing, because another plan came into force."""
    names = [paths.list(host, pointer.generation, chunk) for chunk in range(pointer.chunks)]
    nodes = await asyncio.gather(*(tree.read(name) for name in names))
    found = [node.data for node in nodes if node is not None]
    return records.decode_list(found, paths.lists(host)) if len(found) == len(names) else None


def gone(paths: Paths, host: str) -> errors.ForeignTree:
    """Return the error for a missing list that the plan in force names."""
    return errors.ForeignTree(
        f"groups of host {host} that the plan names are not below {paths.lists(host)}: something has deleted them; "
        f"stop all hosts, delete {paths.serverlist}, and start them again"
    )
