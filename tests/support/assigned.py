"""A membership whose groups the test assigns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from emq.allocation.grounds import GROUNDS, Grounds
from emq.allocation.membership import Assignment
from support.local_cluster import LocalMembership

if TYPE_CHECKING:
    from support.rig import Rig


class Assigned(LocalMembership):
    """Keeps what it was given, whatever the catalog says, under a new epoch where it was refused.

    To a host it looks as if the leader had seen no change of the catalog yet.
    """

    def __init__(self, r: Rig, name: str = "assigned") -> None:
        super().__init__(r.cluster, name)
        self._next_epoch = r.next_epoch
        self._groups: dict[str, int] = {}
        self._refused: set[str] = set()

    async def give(self, groups: Iterable[str]) -> None:
        """Assign these groups, and no others; those that it has keep their epochs, unless these were refused."""
        groups = list(groups)
        epoch = await self._next_epoch()
        kept = {g: e for g, e in self._groups.items() if g not in self._refused}
        self._refused.clear()
        self._groups = {group: kept.get(group, epoch) for group in groups}
        self.stream.assign(Assignment(dict(self._groups)))

    def fenced(self, group: str, epoch: int, bucket: str = "") -> bool:
        self._refused.add(group)
        return False

    async def join(self) -> None:
        self.stream.assign(Assignment(dict(self._groups)))

    async def offer(self, quotas: Mapping[str, float], catalog: int = 0, grounds: Grounds = GROUNDS) -> None:
        """Nothing new."""

    async def released(self, groups: Iterable[str]) -> None:
        """Nobody waits for that."""

    async def leave(self) -> None:
        """Nobody stays."""
