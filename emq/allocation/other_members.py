"""The other members of a cluster, read from their nodes in the tree."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Mapping

from emq.allocation import records
from emq.allocation.records import Former, Paths, Running
from emq.allocation.tree.protocol import OnChange, Tree

CLOSE_S = 0.02
"""Difference of two clocks, in seconds, below which they count as equal; a network hides smaller ones."""

MAX_SKEW_WAIT_S = 5.0
"""Most seconds of waiting for the clock of another host."""


class OtherMembers:
    """Reads the nodes of all members but one.

    Args:
        host: the member whose others these are.
        on_change: called once when a node changes that `read` has read.
    """

    def __init__(self, tree: Tree, paths: Paths, host: str, on_change: OnChange) -> None:
        self._tree = tree
        self._paths = paths
        self._host = host
        self._on_change = on_change

    async def exist(self) -> bool:
        """Return False if the host is the only member."""
        return await self._tree.children(self._paths.running) != [self._host]

    async def read(self, names: Collection[str]) -> Mapping[str, Running]:
        """Return those of the members that exist; `EVERYBODY` among the names stands for all."""
        if records.EVERYBODY in names:
            names = await self._tree.children(self._paths.running, self._on_change)
        paths = [self._paths.host(name) for name in sorted({*names} - {self._host})]
        nodes = await asyncio.gather(*(self._tree.read(path, self._on_change) for path in paths))
        return {
            path.rpartition("/")[2]: records.decode(node.data, Running, path)
            for path, node in zip(paths, nodes, strict=True)
            if node is not None
        }


def release_s(former: Former, group: str, members: Mapping[str, Running], now_s: float) -> float:
    """Return the seconds until a group is free of a former owner; infinite while the former owner holds it.

    Args:
        members: the other members as they were at `now_s`, by this host's clock.
    """
    if former.host == records.EVERYBODY:
        owners = [*members.values()]
    else:
        member = members.get(former.host)
        owners = [member] if member is not None and member.incarnation == former.incarnation else []
    if not all(owner.has_let_go(group, former.generation) for owner in owners):
        return math.inf
    # The former owner's last second, by its clock, must be over by ours, or both hosts would use that second.
    ahead_s = max((owner.released_s for owner in owners), default=now_s) - now_s
    return ahead_s if 0 < ahead_s < MAX_SKEW_WAIT_S else 0.0


def behind_s(ahead_s: float, members: Mapping[str, Running]) -> float:
    """Return the seconds to wait until a clock's present second is over for all members.

    Args:
        ahead_s: how far the clock is ahead of the cluster's time.
    """
    behind = max((ahead_s - other.ahead_s for other in members.values()), default=0.0)
    return min(behind + CLOSE_S, MAX_SKEW_WAIT_S) if behind > CLOSE_S else 0.0
