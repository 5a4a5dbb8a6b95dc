"""The leader sees every host that is there, whatever changes while it reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from emq.allocation import records
from emq.allocation.records import Running
from emq.allocation.tree.protocol import Node, OnChange
from emq.allocation.watched_records import WatchedRecords

PATHS = records.Paths("online")


class ScriptedTree:
    """Two hosts, a and b; `meanwhile` is called once, while a node is being read."""

    session = 1
    timeout_s = 6.0

    def __init__(self) -> None:
        self.changed: dict[str, Callable[[], None]] = {}
        self.meanwhile: Callable[[], None] | None = None

    async def children(self, path: str, on_change: OnChange | None = None) -> list[str]:
        return ["a", "b"] if path == PATHS.running else []

    async def read(self, path: str, on_change: OnChange | None = None) -> Node | None:
        assert on_change is not None
        self.changed[path] = on_change
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        await asyncio.sleep(0)
        return Node(records.encode(Running("x", "machine", 1, 1.0, 0.0)), 0, 1, 0.0)


async def hosts_seen(watched: WatchedRecords) -> list[str]:
    return sorted(await watched.below(PATHS.running, Running))


async def test_a_host_whose_node_changes_while_another_is_read_stays_a_member() -> None:
    tree = ScriptedTree()
    watched = WatchedRecords(tree, lambda: None)  # type: ignore[arg-type]
    assert await hosts_seen(watched) == ["a", "b"]
    tree.changed[PATHS.host("b")]()
    tree.meanwhile = tree.changed[PATHS.host("a")]
    assert await hosts_seen(watched) == ["a", "b"]
    tree.changed.clear()
    assert await hosts_seen(watched) == ["a", "b"]
    assert list(tree.changed) == [PATHS.host("a")], "what changed is read again, and nothing else"
