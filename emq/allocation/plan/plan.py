"""The plan: which host consumes which groups, by consistent hashing with bounded loads.

Consistent hashing is of Karger et al. (1997), the bound on loads of Mirrokni, Thorup and Zadimoghaddam (2016): a group
walks clockwise around a ring of hosts to the first one with room. Computed from nothing, such a plan shifts with its
bound whenever a host comes or goes; at 1,000 hosts 27 times as many groups move as need to. Here the former plan is an
input: a group stays where it is while its host is alive and within its bound. Still everything is computed in full
each time, from what is given alone, and checked whole, so nothing can drift.

1. A group that is larger than a host may be full gets a host to itself. The others share the other hosts; a host's
   fair share is in proportion to its weight.
2. A group stays with its host if that is alive and shares.
3. Groups without a host, the largest first, walk the ring: first among hosts that were below 0.90 of their fair
   share, to one that stays below 0.95, then among all, to one that stays below 1.05; after 64 hosts in vain they
   take the one that is emptiest with them.
4. A host that is still below 0.90 is filled to 0.95, from the fullest hosts, with large groups, so with few of them.
5. A host above 1.10 sheds groups, as few as bring it below, or exchanges them for smaller ones; 4 and 5 are repeated
   until nothing changes.

Between 0.90 and 1.10 a host is left alone, which is what makes moves rare.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from typing import NamedTuple

from emq.allocation.plan.levelling import SHED, Levelling, Why
from emq.allocation.plan.loads import Loads, shares_of
from emq.allocation.plan.ring import Ring
from emq.topics.model import MICRO

__all__ = ["BrokenPlan", "Plan", "Why", "effective", "plan"]

LEAST_WEIGHT = 1e-9
"""Of the largest weight; a host with less gets nothing."""
ROUNDING = 1e-9


class BrokenPlan(AssertionError):
    """A plan came out that breaks its own rules: a bug. Nothing was published; the former plan stays in force."""


class Plan(NamedTuple):
    """Attributes:
    owner: group to host; every group, unless there is no host with a weight.
    moved: why a group got another host than it had before, by group.
    max_over_mean: the load of the fullest host over its fair share of everything; 0 without hosts or groups.
    bound: the most of its fair share that a host was to have; above 1.10 only where groups are too few or too large
        to be shared more evenly.
    """

    owner: dict[str, str]
    moved: dict[str, Why]
    max_over_mean: float = 0.0
    bound: float = SHED


def plan(
    quotas: Mapping[str, float],
    weights: Mapping[str, float],
    previous: Mapping[str, str] | None = None,
    recent: Container[str] = (),
) -> Plan:
    """Assign each group to a host; deterministic in what is given, whatever the order.

    Args:
        quotas: of each group, starts a second, above 0 and finite; less than a millionth counts as one.
        weights: of each host, 0 or more and finite; one of 0 gets nothing.
        previous: group to host as it was; hosts that are gone, and groups that are, may be among them.
        recent: groups that moved last. Where a choice is left, others move, so that a host that goes and comes back
            moves each group once at most.

    Raises:
        BrokenPlan: a bug; publish nothing and keep what was.
    """
    before = previous or {}
    hosts = effective(weights)
    if not hosts or not quotas:
        return Plan({}, {})
    demand = {group: max(1, round(quotas[group] * MICRO)) for group in sorted(quotas)}
    ring = Ring(hosts)
    alone = _alone(demand, hosts, before, ring)
    shared = {group: need for group, need in demand.items() if group not in alone}
    taken = set(alone.values())
    loads = Loads(shared, shares_of(sum(shared.values()), hosts, hosts.keys() - taken))
    levelling = Levelling(loads, ring.only(loads.shares) if taken else ring, recent)
    for group in shared:
        if before.get(group) in loads.shares:
            loads.put(group, before[group])
    if shared:
        levelling.place(shared.keys() - loads.owner.keys())
        levelling.even_out()
    owner = {**loads.owner, **alone}
    bound = _checked(demand, hosts, owner, alone)
    why = {**levelling.why, **dict.fromkeys(alone, Why.ALONE)}
    moved = {group: why[group] for group, host in owner.items() if before.get(group) != host}
    return Plan(owner, moved, _max_over_mean(demand, hosts, owner), bound)


def effective(weights: Mapping[str, float]) -> dict[str, float]:
    """Hosts that take part, by name, with their weights."""
    least = LEAST_WEIGHT * max(weights.values(), default=0.0)
    return {host: weights[host] for host in sorted(weights) if weights[host] > 0 and weights[host] >= least}


def _alone(
    demand: Mapping[str, int], weights: Mapping[str, float], before: Mapping[str, str], ring: Ring
) -> dict[str, str]:
    """Groups that are larger than a host may be full, each with a host of its own; the larger, the heavier."""
    large = _large(demand, weights)
    homes = {before.get(group) for group in large}
    least = sorted(weights.values(), reverse=True)
    free = set(weights)
    owner: dict[str, str] = {}
    for rank, group in enumerate(large):
        able = {host for host in free if weights[host] >= least[rank]}
        if before.get(group) in able:
            owner[group] = before[group]
        else:
            choice = able - homes or able
            owner[group] = next(host for host in ring.way(group) if host in choice)
        free.remove(owner[group])
    return owner


def _large(demand: Mapping[str, int], weights: Mapping[str, float]) -> list[str]:
    """The largest groups, as long as each exceeds the bound of the heaviest host left for what is left."""
    groups = sorted(demand, key=lambda group: (-demand[group], group))
    heaviest = sorted(weights.values(), reverse=True)
    rest = sum(demand.values())
    for i, weight in enumerate(heaviest):
        if i == len(groups) or demand[groups[i]] <= SHED * rest * (weight / math.fsum(heaviest[i:])):
            return groups[:i]
        rest -= demand[groups[i]]
    return groups[: len(heaviest)]


def _max_over_mean(demand: Mapping[str, int], weights: Mapping[str, float], owner: Mapping[str, str]) -> float:
    shares = shares_of(sum(demand.values()), weights, weights)
    load = dict.fromkeys(weights, 0)
    for group, host in owner.items():
        load[host] += demand[group]
    return max(load[host] / shares[host] for host in weights)


def _checked(
    demand: Mapping[str, int], weights: Mapping[str, float], owner: Mapping[str, str], alone: Mapping[str, str]
) -> float:
    """The bound that the plan keeps. Raises `BrokenPlan` if it keeps none, counted anew from the result.

    Whole groups cannot always be shared out within 1.10. But while a host is fuller than 1 + n * q / total, for n hosts
    and its smallest group q, some other host would be less full with that group, since not all can be above the mean.
    """
    if owner.keys() != demand.keys():
        raise BrokenPlan(f"{len(demand.keys() ^ owner.keys())} groups are missing or too many in the plan; report it")
    load: dict[str, int] = {}
    for group, host in owner.items():
        if host not in weights:
            raise BrokenPlan(f"group {group!r} was planned for {host!r}, which takes no part; report it")
        load[host] = load.get(host, 0) + demand[group]
    for group, host in alone.items():
        if load[host] != demand[group]:
            raise BrokenPlan(f"group {group!r} was to have host {host!r} to itself and has not; report it")
    shared = [demand[group] for group in demand if group not in alone]
    if not shared:
        return SHED
    shares = shares_of(sum(shared), weights, weights.keys() - set(alone.values()))
    bound = max(SHED, 1 + len(shares) * max(shared) / sum(shared)) + ROUNDING
    fullest = max(load.get(host, 0) / share for host, share in shares.items())
    if fullest > bound:
        raise BrokenPlan(f"a host has {fullest:.3f} of its fair share, above its bound of {bound:.3f}; report it")
    return max(SHED, fullest)
