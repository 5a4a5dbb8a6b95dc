"""The cluster view: a cluster as the coordination tree shows it, for readers that are not members."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import functools
from collections.abc import AsyncIterator
from typing import NamedTuple

from emq.allocation import published_plan, records
from emq.allocation.plan import drafting
from emq.allocation.plan.drafting import DROPPED, NOBODY
from emq.allocation.records import EVERYBODY, Entry, Order, Paths, Record, Running
from emq.allocation.tree.protocol import SessionState, Tree
from emq.runtime import errors

OPEN_S = 10.0
"""Seconds that a reader waits for an ensemble to answer; a host waits without limit."""

TRIES = 20
AGAIN_S = 0.1


class Holding(enum.StrEnum):
    """The progress of a group towards the host that the plan gives the group to."""

    HELD = "held"
    """Its host has the group, or takes it at this moment."""
    WAITING = "waiting"
    """A former owner has not let go of the group yet."""
    UNSEEN = "unseen"
    """Its host has not read the plan that gives it the group."""
    FENCED = "fenced"
    """Somebody outside of the cluster took the group, and its host asks for a new epoch."""
    ORPHANED = "orphaned"
    """Its host is gone, and there is no newer plan yet."""
    NOBODYS = "nobody's"
    """No host has a weight."""


class Owned(NamedTuple):
    """A group's entry in the plan, and the host that the plan gives the group to; `NOBODY` for no host."""

    host: str
    entry: Entry


@dataclasses.dataclass(frozen=True)
class View:
    """A cluster at nearly one moment: members may have moved on a little after the read of the plan.

    Attributes:
        record: the plan in force; None before the first plan.
        members: host to its announcement.
        orders: host to the operator's order; the host need not be a member.
        groups: every group of the plan.
        leader: the host that leads; empty if no host leads.
    """

    environment: str
    record: Record | None
    members: dict[str, Running]
    orders: dict[str, Order]
    groups: dict[str, Owned]
    leader: str

    @property
    def generation(self) -> int:
        """The number of the plan; 0 before the first plan."""
        return 0 if self.record is None else self.record.generation

    @property
    def hosts(self) -> list[str]:
        """Every host that is a member, has groups by the plan, or has an order with an effect; sorted by name."""
        ordered = {host for host, order in self.orders.items() if order != Order()}
        return sorted((self.members.keys() | self._by_host.keys() | ordered) - {NOBODY})

    @functools.cached_property
    def weights(self) -> dict[str, float]:
        """Member to its effective weight; see `drafting.shares`."""
        return drafting.shares(self.members, self.orders)

    @property
    def owners(self) -> dict[str, str]:
        """Group to host; the host may be `NOBODY`."""
        return {group: owned.host for group, owned in self.groups.items()}

    def of(self, host: str) -> dict[str, Entry]:
        """Return the groups that the plan gives to a host."""
        return self._by_host.get(host, {})

    @functools.cached_property
    def _by_host(self) -> dict[str, dict[str, Entry]]:
        found: dict[str, dict[str, Entry]] = {}
        for group, owned in self.groups.items():
            found.setdefault(owned.host, {})[group] = owned.entry
        return found

    def is_planned(self, host: str) -> bool:
        """Return whether the plan knows the present incarnation of a member."""
        member = self.members.get(host)
        pointer = None if self.record is None else self.record.lists.get(host)
        return member is not None and pointer is not None and pointer.incarnation == member.incarnation

    def holding(self, group: str) -> Holding:
        """Return the progress of a group of the plan."""
        host, entry = self.groups[group]
        member = self.members.get(host)
        if host == NOBODY:
            return Holding.NOBODYS
        if member is None or not self.is_planned(host):
            return Holding.ORPHANED
        if member.fenced.get(group) == entry.epoch:
            return Holding.FENCED
        if self.awaited(group):
            return Holding.WAITING
        return Holding.HELD if member.generation >= entry.epoch else Holding.UNSEEN

    def awaited(self, group: str) -> list[str]:
        """Return the hosts that may still hold a group of another owner, sorted by name."""
        owner, entry = self.groups[group]
        found: set[str] = set()
        for former in entry.after:
            everybody = former.host == EVERYBODY
            if everybody and former.generation <= self._all_let_go:
                continue
            for host in self.members if everybody else (former.host,):
                member = self.members.get(host)
                if member is None or host == owner or not (everybody or member.incarnation == former.incarnation):
                    continue
                if not member.has_let_go(group, former.generation):
                    found.add(host)
        return sorted(found)

    @functools.cached_property
    def _all_let_go(self) -> int:
        """The newest generation that every member has fully followed; spares most groups a look at each member."""
        return min((0 if m.draining else m.generation for m in self.members.values()), default=0)

    def has_let_go(self, host: str) -> bool:
        """Return whether a host holds only the groups that the plan gives it."""
        member = self.members.get(host)
        return member is None or (member.generation >= self.generation and not member.draining)


@contextlib.asynccontextmanager
async def opened(tree: Tree, servers: str, timeout_s: float = OPEN_S) -> AsyncIterator[Tree]:
    """Open the tree for the length of a block.

    Args:
        tree: a tree that is not open yet.
        servers: first words of the error's text: "no ZooKeeper server of ...".
        timeout_s: most seconds to wait for a server.

    Raises:
        ClusterUnavailable: no server answered; start the ensemble, or correct `cluster`.
        InvalidSettings: the ensemble refused the credentials or the certificate; correct them.
    """
    try:
        try:
            async with asyncio.timeout(timeout_s):
                await tree.open(_ignore)
        except TimeoutError:
            raise errors.ClusterUnavailable(
                f"{servers} answered within {timeout_s:g} s; see whether it runs, or correct the setting"
            ) from None
        yield tree
    finally:
        await tree.close()


async def read(tree: Tree, environment: str) -> View:
    """Return the cluster as it is now; read again while a new plan comes into force.

    Raises:
        ClusterUnavailable: no server answers; try again later.
        ForeignTree: EMQ did not write a node, or a node is missing; the text names the node.
    """
    paths = Paths(environment)
    missing = ""
    for _ in range(TRIES):
        record = await published_plan.read_record(tree, paths, environment)
        pointers = {} if record is None else record.lists
        lists = await asyncio.gather(*(published_plan.read_list(tree, paths, host, p) for host, p in pointers.items()))
        members, orders, leader = await asyncio.gather(
            _children(tree, paths.running, Running), _children(tree, paths.operator, Order), _leader(tree, paths)
        )
        if await published_plan.read_record(tree, paths, environment) != record:
            continue
        gone = [host for host, entries in zip(pointers, lists, strict=True) if entries is None]
        if not gone:
            found = [(host, entries) for host, entries in zip(pointers, lists, strict=True) if host != DROPPED]
            groups = {g: Owned(host, entry) for host, entries in found for g, entry in (entries or {}).items()}
            return View(environment, record, members, orders, groups, leader)
        missing = paths.lists(gone[0])
        await asyncio.sleep(AGAIN_S)
    if not missing:
        raise errors.ClusterUnavailable("the plan changed each time that it was read; try again later")
    raise errors.ForeignTree(
        f"a list that the plan names is not below {missing} any more; stop whatever else deletes nodes there"
    )


async def _children(tree: Tree, parent: str, kind: type[records.Kind]) -> dict[str, records.Kind]:
    names = await tree.children(parent)
    nodes = await asyncio.gather(*(tree.read(f"{parent}/{name}") for name in names))
    return {
        name: records.decode(node.data, kind, f"{parent}/{name}")
        for name, node in zip(names, nodes, strict=True)
        if node is not None
    }


async def _leader(tree: Tree, paths: Paths) -> str:
    for name in await tree.children(paths.leader):
        if (node := await tree.read(f"{paths.leader}/{name}")) is not None:
            return node.data.decode(errors="replace")
    return ""


def _ignore(state: SessionState) -> None:
    """Ignore the session's states: without a connection, each call raises its own error."""
