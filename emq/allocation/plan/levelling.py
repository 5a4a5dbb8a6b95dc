"""Levelling places groups that have no host, and makes the few moves that keep every host near its fair share."""

from __future__ import annotations

import bisect
import enum
import heapq
import math
from collections.abc import Container, Iterable, Iterator

from emq.allocation.plan.loads import Loads
from emq.allocation.plan.ring import Ring

SHED = 1.10
"""Load over fair share above which a host gives groups away."""
AIM = 1.05
"""Largest load over fair share of a host that takes a group; below `SHED`, so that a falling mean makes few shed."""
LOW = 0.90
"""Load over fair share below which a host is filled: it has joined, or its weight was raised."""
ENOUGH = 0.95
"""Load over fair share up to which a low host is filled."""
WALK = 64
"""Number of hosts that a group asks on its way around the ring, before it takes the host with the most room."""

VAIN = 256
"""Number of failed walks among low hosts after which full hosts leave the ring of low hosts."""


class PlacementReason(enum.StrEnum):
    """The reason for which a group last got its host."""

    RING = "ring"
    """The host is the first on the group's way around the ring."""
    WALKED = "walked"
    """The first hosts on the group's way had no room."""
    EVENED = "evened"
    """The planner moved the group to even out the loads."""
    ALONE = "alone"
    """The group is larger than a host's fair share, and has a host to itself."""
    BUDGET = "budget"
    """The group went where the budget of its topic is counted."""


class Levelling:
    """Places and moves groups among the hosts of `loads`; see `emq.allocation.plan.plan` for the algorithm.

    A move leaves the new host less full than the old host was. So each move makes the fullest hosts fewer or less full,
    and levelling ends. A second levelling changes nothing.

    Attributes:
        why: group to the reason for its host, for groups that were placed or moved.
    """

    def __init__(self, loads: Loads, ring: Ring, recent: Container[str] = ()) -> None:
        self.why: dict[str, PlacementReason] = {}
        self._loads = loads
        self._ring = ring
        self._recent = recent

    def place(self, groups: Iterable[str]) -> None:
        """Give each group a host: first hosts that are low, then any host with room."""
        loads = self._loads
        low = set(loads.below(LOW))
        near = self._ring.only(low) if 0 < len(low) < len(loads.shares) else self._ring
        order = sorted(groups, key=lambda g: (-loads.demand[g], g))
        vain = 0
        for group in order:
            host = self._walk(near, group, ENOUGH) if low else None
            vain += host is None
            if low and vain == VAIN:  # drop full hosts from the ring, so that walks do not lead past them
                low = {host for host in low if loads.ratio_with(host, loads.demand[order[-1]]) <= ENOUGH}
                near, vain = near.only(low), 0
            host = host or self._walk(self._ring, group, AIM) or loads.emptiest_for(loads.demand[group])
            assert host is not None
            loads.put(group, host)
            self.why[group] = PlacementReason.RING if host == next(self._ring.way(group)) else PlacementReason.WALKED

    def even_out(self) -> None:
        """Move groups until no host is low or beyond its bound, as far as whole groups allow."""
        loads = self._loads
        while any([*map(self._fill, loads.below(LOW))]) or any([*map(self._relieve, loads.beyond(SHED))]):
            pass

    def _walk(self, ring: Ring, group: str, limit: float, but: str | None = None) -> str | None:
        """Return the first host on the group's way whose ratio with the group is at most `limit`."""
        demand = self._loads.demand[group]
        for host, _ in zip(ring.way(group), range(WALK), strict=False):
            if host != but and self._loads.ratio_with(host, demand) <= limit:
                return host
        return None

    def _move(self, group: str, host: str) -> None:
        self._loads.put(group, host)
        self.why[group] = PlacementReason.EVENED

    def _fill(self, host: str) -> bool:
        """Fill a host from the fullest hosts in turn, each time with the largest group that fits: the fewest moves."""
        loads, moved = self._loads, False
        fullest = [(-loads.ratio(giver), giver) for giver in loads.shares if loads.ratio(giver) > LOW]
        heapq.heapify(fullest)
        gifts: dict[str, Iterator[str]] = {}
        while fullest and loads.ratio(host) < ENOUGH:
            _, giver = heapq.heappop(fullest)
            if giver not in gifts:
                gifts[giver] = self._gifts(giver, host)
            group = next(gifts[giver], None)
            if group is not None:
                self._move(group, host)
                moved = True
                heapq.heappush(fullest, (-loads.ratio(giver), giver))
        return moved

    def _gifts(self, giver: str, host: str) -> Iterator[str]:
        """Yield groups that the giver can spare and the host can take, the largest first.

        Among equal groups, those that meet the host first on the ring come first. Groups that moved last come after
        all others. A group that is too large stays too large: with each gift the host has less room and the giver less
        to spare.
        """
        loads = self._loads
        recent, groups = self._recent, loads.by_demand(giver)
        for group in sorted(groups, key=lambda g: (g in recent, -loads.demand[g], self._ring.distance(g, host), g)):
            demand = loads.demand[group]
            after = loads.ratio_with(host, demand)
            if after <= 1 and after < loads.ratio(giver) and loads.ratio_with(giver, -demand) >= LOW:
                yield group

    def _relieve(self, host: str) -> bool:
        """Move groups away until the host is within its bound, or no move would help; return whether a group moved.

        A group goes to a host that stays within the bound. If there is no such host, the host exchanges a group for a
        smaller one. If no exchange helps, a group goes to a host that stays less full than this one was.
        """
        loads, moved = self._loads, False
        while loads.ratio(host) > SHED:
            now = math.nextafter(loads.ratio(host), 0)
            moves = self._relief(host, SHED) or self._exchange(host) or self._relief(host, now)
            for group, to in moves:
                self._move(group, to)
            if not moves:
                break
            moved = True
        return moved

    def _relief(self, host: str, limit: float) -> list[tuple[str, str]]:
        """Return the group to move and its new host: the smallest sufficient group, else the largest that fits."""
        loads = self._loads
        groups = loads.by_demand(host)
        if self._taker(host, groups[0], limit) is None:  # then nobody takes a larger one
            return []
        excess = loads.load[host] - SHED * loads.shares[host]
        enough = min(bisect.bisect_left(groups, excess, key=loads.demand.__getitem__), len(groups) - 1)
        moves = ((groups[i], self._taker(host, groups[i], limit)) for i in range(enough, -1, -1))
        return next([(group, to)] for group, to in moves if to is not None)

    def _taker(self, host: str, group: str, limit: float) -> str | None:
        """Return a host whose ratio with a group of `host` is at most `limit`; None if there is none."""
        loads, demand = self._loads, self._loads.demand[group]
        to = self._walk(self._ring, group, AIM, but=host) or loads.emptiest_for(demand, but=host)
        return to if to is not None and loads.ratio_with(to, demand) <= limit else None

    def _exchange(self, host: str) -> list[tuple[str, str]]:
        """Return the best exchange of two groups with one of the emptiest hosts: the fuller one ends least full."""
        loads = self._loads
        best, moves = loads.ratio(host), list[tuple[str, str]]()
        mine = loads.by_demand(host)
        for other in loads.below(loads.ratio(host))[:WALK]:
            theirs = loads.by_demand(other)
            needs = [loads.demand[group] for group in theirs]
            even = (loads.ratio(host) - loads.ratio(other)) / (1 / loads.shares[host] + 1 / loads.shares[other])
            for group in mine:
                near = bisect.bisect(needs, loads.demand[group] - even)
                for back in theirs[max(0, near - 1) : near + 1]:
                    surplus = loads.demand[group] - loads.demand[back]
                    after = max(loads.ratio_with(host, -surplus), loads.ratio_with(other, surplus))
                    if after < best:
                        best, moves = after, [(group, other), (back, host)]
        return moves
