"""Membership: a host joins the cluster, and the cluster tells the host which groups are its own."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, KeysView, Mapping
from typing import NamedTuple, Protocol

from emq.allocation.plan import handler_sets
from emq.allocation.plan.units import NO_UNITS, Units
from emq.allocation.tree.protocol import Tree
from emq.clock import Clock
from emq.loops.lease import Lease


@dataclasses.dataclass(frozen=True, slots=True)
class Seat:
    """A host's place in its cluster: its name, the tree in which it meets the others, and its clock.

    Attributes:
        tree: the coordination tree in which the hosts meet.
        environment: the environment whose groups the hosts share.
        host: a name that is unique in the cluster.
        next_generation: takes a lower bound; returns a number at least as large, and above all that it returned before.
        clock: the host's clock.
    """

    tree: Tree
    environment: str
    host: str
    next_generation: Callable[[int], Awaitable[int]]
    clock: Clock


class Assignment(NamedTuple):
    """All groups that a member may consume now; every change yields a new, whole assignment.

    Attributes:
        groups: group name to epoch. A group that was there before under the same epoch has not moved. The host releases
            a group that is gone: stop, drain, checkpoint, then call `Membership.released`.
        era: how often the membership was lost. Groups owned in an earlier era belong to others: the host forgets them
            at once and does not release them.
        catalog: the lowest version of the catalog that knows these groups; 0 where the version does not matter.
    """

    groups: dict[str, int]
    era: int = 0
    catalog: int = 0


class AssignmentStream:
    """A member's assignments: the current one, and who waits for the next.

    Attributes:
        current: None before the first.
    """

    def __init__(self) -> None:
        self.current: Assignment | None = None
        self._changed = asyncio.Event()
        self._error: BaseException | None = None

    def assign(self, assignment: Assignment) -> None:
        self.current = assignment
        self._changed.set()

    def end(self, task: asyncio.Task[None]) -> None:
        """Let the reader raise the error of a loop that broke for good, so that the host ends."""
        if not task.cancelled():
            self._error = task.exception()
            self._changed.set()

    async def tell(self) -> AsyncIterator[Assignment]:
        """Yield the current assignment, then each new one that is not out of date when the reader asks."""
        told: Assignment | None = None
        while True:
            if self._error is not None:
                raise self._error
            if self.current is None or self.current is told:
                self._changed.clear()
                await self._changed.wait()
            else:
                told = self.current
                yield told


class PlanInForce(NamedTuple):
    """Attributes:
    version: number of the plan; grows with each plan.
    hosts: number of hosts that the plan knows.
    """

    version: int
    hosts: int


class Membership(Protocol):
    """One host's membership in a cluster. A group is assigned to a member only when its former owner let go of it.

    Attributes:
        host: the member's name, unique in its cluster.
        lease: the time until which the member may go on without hearing from the cluster.
    """

    host: str
    lease: Lease

    @property
    def plan(self) -> PlanInForce | None:
        """The plan that the member follows; None before the first."""

    @property
    def leads(self) -> bool:
        """True for one member of the cluster, as a rule: for work that one member should do."""

    def given(self) -> KeysView[str]:
        """Return the groups that the plan gives to this member, also those that their former owners still hold."""

    async def join(self) -> None:
        """Become a member. Raises `HostConflict` if another host has the name."""

    async def offer(self, quotas: Mapping[str, float], catalog: int = 0, units: Units = NO_UNITS) -> None:
        """Tell the cluster the groups of version `catalog` of the catalog, with their quotas.

        Every member may call this; only the leader's offer counts.

        Args:
            quotas: group to its quota, in starts a second.
            catalog: version of the catalog.
            units: topic to its unit, whose groups must be on one host, for topics that share a budget.
        """

    def assignments(self) -> AsyncIterator[Assignment]:
        """Yield the current assignment, then each new one. A slow reader misses assignments that are out of date.

        Each call begins with the current assignment, so that a reader that broke has missed nothing.
        """

    async def released(self, groups: Iterable[str]) -> None:
        """Tell the cluster that this host drained and checkpointed these groups and no longer consumes them."""

    def fenced(self, group: str, epoch: int) -> None:
        """Tell the cluster that a store refused the group's epoch, and that this host forgot the group."""

    async def hand_over(self, timeout_s: float) -> None:
        """Let other members take over this host's groups in good order; the assignments shrink meanwhile.

        Returns when this host has no group left, when there is no other member, or after `timeout_s` seconds.
        """

    async def leave(self) -> None:
        """Stop being a member; the groups that are still assigned go to others."""


class LocalCluster:
    """A cluster inside one process: the embedded default (one member), and many members in simulations.

    The cluster plays the leader's part. It makes a full plan at every change of members or groups. It takes groups from
    the losing members at once. It gives them to the gaining members after their release, each time under a new epoch.

    Args:
        next_epoch: returns a number above all numbers that it returned before, also before a restart.
    """

    def __init__(self, next_epoch: Callable[[], Awaitable[int]]) -> None:
        self._next_epoch = next_epoch
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
                epoch = await self._next_epoch()
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

    async def offer(self, quotas: Mapping[str, float], catalog: int = 0, units: Units = NO_UNITS) -> None:
        await self._cluster.change(quotas=quotas, units=units)

    async def assignments(self) -> AsyncIterator[Assignment]:
        async for told in self.stream.tell():
            self.seen.update(told.groups)
            yield told

    async def released(self, groups: Iterable[str]) -> None:
        groups = list(groups)
        self.seen.difference_update(groups)
        await self._cluster.change(released=groups)

    def fenced(self, group: str, epoch: int) -> None:
        """Leave the group to the host that took it: without coordination, two would take it from each other forever."""

    async def hand_over(self, timeout_s: float) -> None:
        """Return at once: `leave` frees the remaining groups without a wait."""

    async def leave(self) -> None:
        await self._cluster.change(leaving=self)
