"""Membership: a host joins the cluster, and the cluster tells the host which groups are its own."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, KeysView, Mapping, Set
from typing import NamedTuple, Protocol

from emq.allocation.grounds import GROUNDS, Grounds
from emq.allocation.tree.protocol import Tree
from emq.runtime.clock import Clock
from emq.runtime.lease import Lease


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

    async def next_epoch(self) -> int:
        """Return an epoch above all others. Raises `DatabaseUnavailable`: try again later."""
        return await self.next_generation(self.clock.now_us())


class Assignment(NamedTuple):
    """All groups that a member may consume now; every change yields a new, whole assignment.

    Attributes:
        groups: group name to epoch. A group that was there before under the same epoch has not moved. The host releases
            a group that is gone: stop, drain, checkpoint, then call `Membership.released`.
        era: how often the membership was lost. Groups owned in an earlier era belong to others: the host forgets them
            at once and does not release them.
        catalog: the lowest version of the catalog that knows these groups; 0 where the version does not matter.
        first: groups new to this member that no member had before. Nobody has started anything of them in this second.
        changed: the groups that came, went or got another epoch since the assignment before; None for any.
    """

    groups: dict[str, int]
    era: int = 0
    catalog: int = 0
    first: frozenset[str] = frozenset()
    changed: frozenset[str] | None = None


class AssignmentStream:
    """A member's assignments: the current one, and who waits for the next.

    Attributes:
        current: None before the first.
    """

    def __init__(self) -> None:
        self.current: Assignment | None = None
        self._changed = asyncio.Event()
        self._again = False
        self._error: BaseException | None = None

    def again(self) -> None:
        """Tell the current assignment again."""
        self._again = True
        self._changed.set()

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
            if self.current is None or (self.current is told and not self._again):
                self._changed.clear()
                await self._changed.wait()
            else:
                told, self._again = self.current, False
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
        next_epoch: returns an epoch above all others. Raises `DatabaseUnavailable`: try again later.
        stream: the assignments; `again` lets `assignments` yield the current one once more.
    """

    host: str
    lease: Lease
    next_epoch: Callable[[], Awaitable[int]]
    stream: AssignmentStream

    @property
    def plan(self) -> PlanInForce | None:
        """The plan that the member follows; None before the first."""

    @property
    def leads(self) -> bool:
        """True for one member of the cluster, as a rule: for work that one member should do."""

    def given(self) -> Set[str]:
        """Return the groups that the plan gives to this member, also those that their former owners still hold."""

    async def join(self) -> None:
        """Become a member. Raises `HostConflict` if another host has the name."""

    async def offer(self, quotas: Mapping[str, float], catalog: int = 0, grounds: Grounds = GROUNDS) -> None:
        """Tell the cluster the groups of version `catalog` of the catalog, with their quotas.

        Every member may call this; only the leader's offer counts.

        Args:
            quotas: group to its quota, in starts a second.
            catalog: version of the catalog.
            grounds: what else the plan goes by.
        """

    def assignments(self) -> AsyncIterator[Assignment]:
        """Yield the current assignment, then each new one. A slow reader misses assignments that are out of date.

        Each call begins with the current assignment, so that a reader that broke has missed nothing.
        """

    async def released(self, groups: Iterable[str]) -> None:
        """Tell the cluster that this host drained and checkpointed these groups and no longer consumes them."""

    def fenced(self, group: str, epoch: int, bucket: str = "") -> bool:
        """Tell the cluster that a store refused the group's epoch, and that this host forgot the group.

        Args:
            bucket: the group's bucket, if it has one: then the caller finds another epoch for the group.

        Returns:
            True if a host may take the group back again and again.
        """

    async def hand_over(self, timeout_s: float) -> None:
        """Let other members take over this host's groups in good order; the assignments shrink meanwhile.

        Returns when this host has no group left, when there is no other member, or after `timeout_s` seconds.
        """

    async def leave(self) -> None:
        """Stop being a member; the groups that are still assigned go to others."""


_NOTHING: Collection[str] = ()


class LoneMembership:
    """The membership of a host that consumes alone: every group that is offered is its own.

    States of a group: *owned* (the host was given the group under an epoch), *releasing* (it was offered no longer, and
    the host still drains it). A group that is offered again meanwhile is owned again only once it was released.

    Args:
        next_epoch: returns a number above all numbers that it returned before, also before a restart.
    """

    def __init__(self, host: str, next_epoch: Callable[[], Awaitable[int]]) -> None:
        self.host = host
        self.lease = Lease()
        self.leads = False  # until it joins
        self.next_epoch = next_epoch
        self._offered: Collection[str] = _NOTHING
        self._has_begun = False  # it owns what was offered at the beginning, which an earlier process may have had
        self._owned: dict[str, int] = {}
        self._seen: set[str] = set()  # the host was told of these, and has not released them
        self.stream = AssignmentStream()
        self._lock = asyncio.Lock()
        self._version = 0

    @property
    def plan(self) -> PlanInForce | None:
        return PlanInForce(self._version, int(self.leads)) if self._version else None

    def given(self) -> KeysView[str]:
        return self._owned.keys()

    async def join(self) -> None:
        async with self._lock:
            self.leads = True
            await self._assign(tell=False)

    async def offer(self, quotas: Mapping[str, float], catalog: int = 0, grounds: Grounds = GROUNDS) -> None:
        async with self._lock:
            self._offered = dict.fromkeys(quotas)
            await self._assign(tell=True)  # the host hears of every offer, also of none

    async def assignments(self) -> AsyncIterator[Assignment]:
        async for told in self.stream.tell():
            self._seen.update(told.groups)
            yield told

    async def released(self, groups: Iterable[str]) -> None:
        async with self._lock:
            self._seen.difference_update(groups)
            await self._assign(tell=False)

    def fenced(self, group: str, epoch: int, bucket: str = "") -> bool:
        """Leave the group to the host that took it: without coordination, two would take it from each other forever."""
        return False

    async def hand_over(self, timeout_s: float) -> None:
        """Return at once: there is no other member."""

    async def leave(self) -> None:
        async with self._lock:
            self.leads = False
            self._owned.clear()
            self._seen.clear()

    async def _assign(self, *, tell: bool) -> None:
        """Own the groups that are offered and not releasing. The host hears of its losses even if there is no epoch."""
        self._version += 1
        kept = {group: epoch for group, epoch in self._owned.items() if group in self._offered}
        tell |= len(kept) < len(self._owned)
        self._owned = kept
        free = [group for group in self._offered if group not in kept and group not in self._seen]
        first = frozenset[str]()
        try:
            if self.leads and free:
                self._owned |= dict.fromkeys(free, await self.next_epoch())
                tell, first = True, frozenset(free) if self._has_begun else first
            self._has_begun = self.leads and self._offered is not _NOTHING
        finally:
            if self.leads and tell:
                self.stream.assign(Assignment(dict(self._owned), first=first))
