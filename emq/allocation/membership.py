"""What a host asks of the cluster: to be a member, and to be told which groups are its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from emq.allocation.plan.plan import plan
from emq.loops.lease import Lease


class Assignment(NamedTuple):
    """The groups that a member may consume now, whole at every change.

    Attributes:
        groups: group name to epoch. A group that was there before under the same epoch has not moved. A group that
            is gone is to be released: stop, drain, checkpoint, then `Membership.released`.
        era: counts the times that the membership was lost. What was owned in an earlier one belongs to others: it is
            forgotten at once, not released.
        catalog: version of the catalog that the groups are of, at least; 0 where that does not matter.
    """

    groups: dict[str, int]
    era: int = 0
    catalog: int = 0


class Membership(Protocol):
    """One host's membership in a cluster. A group is assigned to a member only when its former owner let go of it.

    Attributes:
        host: the member's name, unique in its cluster.
        lease: until when it may go on without hearing from the cluster.
    """

    host: str
    lease: Lease

    async def join(self) -> None:
        """Become a member. Raises `HostConflict` where the place is taken."""

    async def offer(self, quotas: Mapping[str, float], catalog: int = 0) -> None:
        """Say which groups version `catalog` of the catalog has, and their quotas.

        Every member may; only the leader's word counts.
        """

    def assignments(self) -> AsyncIterator[Assignment]:
        """Yield the current assignment, then each new one. Missed intermediate ones are left out."""

    async def released(self, groups: Iterable[str]) -> None:
        """Say that these groups are drained and checkpointed, and are no longer consumed here."""

    def fenced(self, group: str, epoch: int) -> None:
        """Say that a store has refused the group's epoch, and that it was forgotten here."""

    async def hand_over(self, timeout_s: float) -> None:
        """Have others take over what is assigned here, in good order; the assignments shrink meanwhile.

        Returns when nothing is assigned any more, when there is nobody to take over, or after `timeout_s` seconds.
        """

    async def leave(self) -> None:
        """Stop being a member; what is still assigned goes to others."""


class LocalCluster:
    """A cluster inside one process: the embedded default (one member), and many members in simulations.

    It plays the leader's part: at every change of members or groups it plans anew, in full; takes groups from losing
    members at once, and gives them to the gaining ones when they are released, each time under a new epoch.

    Args:
        next_epoch: returns a number above all it returned before, also before a restart.
    """

    def __init__(self, next_epoch: Callable[[], Awaitable[int]]) -> None:
        self._next_epoch = next_epoch
        self._quotas: dict[str, float] = {}
        self._members: dict[str, LocalMembership] = {}
        self._owned: dict[str, dict[str, int]] = {}
        self._releasing: dict[str, str] = {}
        self._lock = asyncio.Lock()

    def member(self, host: str) -> LocalMembership:
        return LocalMembership(self, host)

    async def change(
        self,
        *,
        joining: LocalMembership | None = None,
        leaving: LocalMembership | None = None,
        quotas: Mapping[str, float] | None = None,
        released: Iterable[str] = (),
    ) -> None:
        async with self._lock:
            if joining is not None:
                self._members[joining.host] = joining
                self._owned[joining.host] = {}
            if leaving is not None and self._members.get(leaving.host) is leaving:
                del self._members[leaving.host], self._owned[leaving.host]
                self._releasing = {g: h for g, h in self._releasing.items() if h != leaving.host}
            if quotas is not None:
                self._quotas = dict(quotas)
            for group in released:
                self._releasing.pop(group, None)
            # Everybody hears of a change of groups, even who gets none: an empty assignment is an answer too.
            await self._replan(set(self._members) if quotas is not None else set())

    async def _replan(self, changed: set[str]) -> None:
        before = {g: h for h, owned in self._owned.items() for g in owned}
        target = plan(self._quotas, dict.fromkeys(self._members, 1.0), before).owner
        for host, owned in self._owned.items():
            for group in [g for g in owned if target.get(g) != host]:
                del owned[group]
                if group in self._members[host].seen:  # otherwise it will never say that it let go
                    self._releasing[group] = host
                changed.add(host)
        owners = {g for owned in self._owned.values() for g in owned}
        free = [g for g in target if g not in owners and g not in self._releasing]
        try:
            if free:
                epoch = await self._next_epoch()
                for group in free:
                    self._owned[target[group]][group] = epoch
                    changed.add(target[group])
        finally:  # who loses groups must hear of it also when the database gives no epoch to the winners
            for host in changed:
                self._members[host].assign(Assignment(dict(self._owned[host])))


class LocalMembership:
    """A member of a `LocalCluster`; see `Membership`.

    Attributes:
        seen: groups that it was told of and has not released.
    """

    def __init__(self, cluster: LocalCluster, host: str) -> None:
        self.host = host
        self.lease = Lease()
        self.seen: set[str] = set()
        self._cluster = cluster
        self._current = Assignment({})
        self._changed = asyncio.Event()

    async def join(self) -> None:
        await self._cluster.change(joining=self)

    async def offer(self, quotas: Mapping[str, float], catalog: int = 0) -> None:
        await self._cluster.change(quotas=quotas)

    async def assignments(self) -> AsyncIterator[Assignment]:
        while True:
            await self._changed.wait()
            self._changed.clear()
            self.seen.update(self._current.groups)
            yield self._current

    async def released(self, groups: Iterable[str]) -> None:
        groups = list(groups)
        self.seen.difference_update(groups)
        await self._cluster.change(released=groups)

    def fenced(self, group: str, epoch: int) -> None:
        """Left to the one who took it: without coordination, two would take it from each other for ever."""

    async def hand_over(self, timeout_s: float) -> None:
        """There is nothing to wait for: `leave` frees what is left, at once."""

    async def leave(self) -> None:
        await self._cluster.change(leaving=self)

    def assign(self, assignment: Assignment) -> None:
        self._current = assignment
        self._changed.set()
