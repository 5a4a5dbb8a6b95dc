"""A cluster inside one process, whose members need no tree."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, KeysView, Mapping

from emq.allocation.grounds import GROUNDS, Grounds
from emq.allocation.membership import Assignment, AssignmentStream, PlanInForce
from emq.allocation.plan import handler_sets
from emq.allocation.plan.units import NO_UNITS, Units
from emq.runtime import errors
from emq.runtime.lease import Lease


class LocalCluster:
    """A cluster inside one process, with any number of members.

    The cluster plays the leader's part. It makes a full plan at every change of members or groups. It takes groups from
    the losing members at once. It gives them to the gaining members after their release, each time under a new epoch.

    Args:
        next_epoch: returns a number above all numbers that it returned before, also before a restart.
    """

    def __init__(self, next_epoch: Callable[[], Awaitable[int]]) -> None:
        self.next_epoch = next_epoch
        self._quotas: dict[str, float] = {}
        self._units: dict[str, str] = {}
        self._members: dict[str, LocalMembership] = {}
        self._owned: dict[str, dict[str, int]] = {}
        self._releasing: dict[str, str] = {}
        self._lock = asyncio.Lock()
        self._version = 0

    def member(self, host: str) -> LocalMembership:
        return LocalMembership(self, host)

    @property
    def plan(self) -> PlanInForce | None:
        return PlanInForce(self._version, len(self._members)) if self._version else None

    @property
    def leader(self) -> str:
        return next(iter(self._members), "")

    async def change(
        self,
        *,
        joining: LocalMembership | None = None,
        leaving: LocalMembership | None = None,
        quotas: Mapping[str, float] | None = None,
        units: Units = NO_UNITS,
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
                self._quotas, self._units = dict(quotas), dict(units)
            for group in released:
                self._releasing.pop(group, None)
            # Every member hears of a change of groups. A member without groups hears of it by an empty assignment.
            await self._replan(set(self._members) if quotas is not None else set())

    async def _replan(self, changed: set[str]) -> None:
        before = {g: h for h, owned in self._owned.items() for g in owned}
        self._version += 1
        weights = dict.fromkeys(self._members, 1.0)
        target = handler_sets.plan_for({}, self._quotas, weights, before, (), self._units).owner
        for host, owned in self._owned.items():
            for group in [g for g in owned if target.get(g) != host]:
                del owned[group]
                if group in self._members[host].seen:  # a host never releases a group that it was not told of
                    self._releasing[group] = host
                changed.add(host)
        owners = {g for owned in self._owned.values() for g in owned}
        free = [g for g in target if g not in owners and g not in self._releasing]
        try:
            if free:
                epoch = await self.next_epoch()
                for group in free:
                    self._owned[target[group]][group] = epoch
                    changed.add(target[group])
        finally:  # the losing members must hear of the loss even when the database gives no epoch
            for host in changed:
                self._members[host].stream.assign(Assignment(dict(self._owned[host])))


class LocalMembership:
    """A member of a `LocalCluster`; see `Membership`.

    Attributes:
        seen: groups that the member was told of and has not released.
        stream: where the cluster puts the member's assignments.
    """

    def __init__(self, cluster: LocalCluster, host: str) -> None:
        self.host = host
        self.lease = Lease()
        self.seen: set[str] = set()
        self._cluster = cluster
        self.next_epoch = cluster.next_epoch
        self.stream = AssignmentStream()

    @property
    def plan(self) -> PlanInForce | None:
        return self._cluster.plan

    @property
    def leads(self) -> bool:
        return self._cluster.leader == self.host

    def given(self) -> KeysView[str]:
        return ({} if self.stream.current is None else self.stream.current.groups).keys()

    async def join(self) -> None:
        await self._cluster.change(joining=self)

    async def offer(self, quotas: Mapping[str, float], catalog: int = 0, grounds: Grounds = GROUNDS) -> None:
        await self._cluster.change(quotas=quotas, units=grounds.units)

    async def assignments(self) -> AsyncIterator[Assignment]:
        async for told in self.stream.tell():
            self.seen.update(told.groups)
            yield told

    async def released(self, groups: Iterable[str]) -> None:
        groups = list(groups)
        self.seen.difference_update(groups)
        await self._cluster.change(released=groups)

    def fenced(self, group: str, epoch: int, bucket: str = "") -> bool:
        """Leave the group to the host that took it: without coordination, two would take it from each other forever."""
        return False

    async def hand_over(self, timeout_s: float) -> None:
        """Return at once: `leave` frees the remaining groups without a wait."""

    async def leave(self) -> None:
        await self._cluster.change(leaving=self)


def quotas(groups: Iterable[str]) -> dict[str, float]:
    """Return the offer of these groups, 10 starts a second each."""
    return dict.fromkeys(groups, 10.0)


class Epochs:
    """Gives epochs, as a database does; none while it is `down`."""

    def __init__(self) -> None:
        self._count = itertools.count(1)
        self.down = False

    def count_from(self, epoch: int) -> None:
        """Let the next epoch be this one."""
        self._count = itertools.count(epoch)

    async def __call__(self) -> int:
        if self.down:
            raise errors.DatabaseUnavailable("no epoch today")
        return next(self._count)
