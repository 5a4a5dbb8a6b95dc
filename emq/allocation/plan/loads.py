"""Loads: who has which groups, and how much that is, while a plan is being made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping


class Loads:
    """Groups on hosts that share them, and each host's load over its fair share.

    Loads are whole millionths of a start a second, so that a sum does not depend on the order of its parts.

    Args:
        demand: quota of each group, in millionths, at least 1.
        shares: fair share of each host, in millionths, above 0.

    Attributes:
        owner: group to host, of those that have a place.
        load: host to the sum of its groups.
    """

    def __init__(self, demand: Mapping[str, int], shares: Mapping[str, float]) -> None:
        self.demand = demand
        self.shares = shares
        self.owner: dict[str, str] = {}
        self.load = dict.fromkeys(shares, 0)
        self._groups: dict[str, set[str]] = {host: set() for host in shares}

    def put(self, group: str, host: str) -> None:
        """Give the group to the host, taking it from the one that has it."""
        before = self.owner.get(group)
        if before is not None:
            self.load[before] -= self.demand[group]
            self._groups[before].discard(group)
        self.owner[group] = host
        self.load[host] += self.demand[group]
        self._groups[host].add(group)

    def by_demand(self, host: str) -> list[str]:
        """The host's groups, the smallest first."""
        return sorted(self._groups[host], key=lambda group: (self.demand[group], group))

    def ratio(self, host: str) -> float:
        """The host's load over its fair share."""
        return self.load[host] / self.shares[host]

    def ratio_with(self, host: str, demand: int) -> float:
        """What the ratio would be with a group of that demand added."""
        return (self.load[host] + demand) / self.shares[host]

    def beyond(self, ratio: float) -> list[str]:
        """Hosts above the ratio, the fullest first."""
        return sorted((h for h in self.shares if self.ratio(h) > ratio), key=lambda h: (-self.ratio(h), h))

    def below(self, ratio: float) -> list[str]:
        """Hosts below the ratio, the emptiest first."""
        return sorted((h for h in self.shares if self.ratio(h) < ratio), key=lambda h: (self.ratio(h), h))

    def emptiest_for(self, demand: int, but: str | None = None) -> str | None:
        """The host that would have the lowest ratio with such a group added; None if there is no other than `but`."""
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
