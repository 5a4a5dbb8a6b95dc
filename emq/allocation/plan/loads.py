"""Loads: each host's groups and the sum of their quotas, while the planner works."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping


class Loads:
    """The groups of each host, and each host's load over its fair share.

    Loads are whole millionths of a start a second, so that a sum does not depend on the order of its parts.

    Args:
        demand: group to its quota, in millionths, at least 1.
        shares: host to its fair share, in millionths, above 0.

    Attributes:
        owner: group to host, for groups that have a host.
        load: host to the sum of its groups' demands.
    """

    def __init__(self, demand: Mapping[str, int], shares: Mapping[str, float]) -> None:
        self.demand = demand
        self.shares = shares
        self.owner: dict[str, str] = {}
        self.load = dict.fromkeys(shares, 0)
        self._groups: dict[str, set[str]] = {host: set() for host in shares}
        self._in_order: dict[str, list[str]] = {}  # of hosts whose groups somebody asked for

    def put(self, group: str, host: str) -> None:
        """Give the group to the host; take it from its former host."""
        before = self.owner.get(group)
        if before is not None:
            self.load[before] -= self.demand[group]
            self._groups[before].discard(group)
            if (groups := self._in_order.get(before)) is not None:
                del groups[bisect.bisect_left(groups, self._rank(group), key=self._rank)]
        self.owner[group] = host
        self.load[host] += self.demand[group]
        self._groups[host].add(group)
        if (groups := self._in_order.get(host)) is not None:
            bisect.insort(groups, group, key=self._rank)

    def by_demand(self, host: str) -> list[str]:
        """Return the host's groups, the smallest first. The list follows each `put`, so that no move sorts again."""
        if host not in self._in_order:
            self._in_order[host] = sorted(self._groups[host], key=self._rank)
        return self._in_order[host]

    def _rank(self, group: str) -> tuple[int, str]:
        return self.demand[group], group

    def ratio(self, host: str) -> float:
        """Return the host's load over its fair share."""
        return self.load[host] / self.shares[host]

    def ratio_with(self, host: str, demand: int) -> float:
        """Return the host's ratio with a group of that demand added."""
        return (self.load[host] + demand) / self.shares[host]

    def beyond(self, ratio: float) -> list[str]:
        """Return the hosts above the ratio, the fullest first."""
        return sorted((h for h in self.shares if self.ratio(h) > ratio), key=lambda h: (-self.ratio(h), h))

    def below(self, ratio: float) -> list[str]:
        """Return the hosts below the ratio, the emptiest first."""
        return sorted((h for h in self.shares if self.ratio(h) < ratio), key=lambda h: (self.ratio(h), h))

    def emptiest_for(self, demand: int, but: str | None = None) -> str | None:
        """Return the host with the lowest ratio after a group of that demand is added; None if only `but` exists."""
        best, least = None, math.inf
        for host, share in self.shares.items():
            ratio = (self.load[host] + demand) / share
            if ratio < least and host != but:
                best, least = host, ratio
        return best


def shares_of(total: float, weights: Mapping[str, float], hosts: Iterable[str]) -> dict[str, float]:
    """Deal `total` out to the hosts in proportion to their weights."""
    hosts = sorted(hosts)
    whole = math.fsum(weights[host] for host in hosts)
    return {host: total * (weights[host] / whole) for host in hosts}
