"""Reading the plan that is in force."""

from __future__ import annotations

import asyncio

from emq import errors
from emq.allocation import records
from emq.allocation.records import Entry, Paths, Pointer, Record
from emq.allocation.tree.protocol import Node, OnChange, Tree


async def read_record(tree: Tree, paths: Paths, environment: str, on_change: OnChange | None = None) -> Record | None:
    """The record of the plan; None before the first one.

    Raises:
        ForeignTree: it is not EMQ's, is damaged, or is another environment's.
    """
    return record_of(await tree.read(paths.serverlist, on_change), paths, environment)


def record_of(node: Node | None, paths: Paths, environment: str) -> Record | None:
    """What the plan's node holds; see `read_record`."""
    if node is None or not node.data:  # without data it is there as the lists' parent only
        return None
    record = records.decode(node.data, Record, paths.serverlist)
    if record.environment != environment:
        raise errors.ForeignTree(
            f"node {paths.serverlist} is of the environment {record.environment!r}, not {environment!r}; "
            "choose another chroot"
        )
    return record


async def read_list(tree: Tree, paths: Paths, host: str, pointer: Pointer) -> dict[str, Entry] | None:
    """A host's groups; None if some of its nodes are missing, as happens when another plan came into force."""
    names = [paths.list(host, pointer.generation, chunk) for chunk in range(pointer.chunks)]
    nodes = await asyncio.gather(*(tree.read(name) for name in names))
    found = [node.data for node in nodes if node is not None]
    return records.decode_list(found, paths.lists(host)) if len(found) == len(names) else None


def gone(paths: Paths, host: str) -> errors.ForeignTree:
    """A list that the plan in force names is missing."""
    return errors.ForeignTree(
        f"groups of host {host} that the plan names are not below {paths.lists(host)}: something has deleted them; "
        f"stop all hosts, delete {paths.serverlist}, and start them again"
    )
