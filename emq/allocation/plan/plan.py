"""The plan gives each group to a host, by consistent hashing with bounded loads.

Consistent hashing is from Karger et al. (1997), the bound on loads from Mirrokni, Thorup and Zadimoghaddam (2016): a
group walks clockwise around a ring of hosts to the first host with room. A plan made from nothing shifts whenever a
host comes or goes, since its bound does; at 1,000 hosts, 27 times as many groups move as must. Here the former plan is
an input: a group stays where it is while its host is alive and within its bound. The planner still computes the full
plan each time, from its arguments alone, and checks the whole plan, so that errors cannot add up.

1. A group that is larger than a host's bound gets a host to itself. The other groups share the other hosts; a host's
   fair share is in proportion to its weight.
2. A group stays with its host if the host is alive and has no group to itself.
3. Groups without a host, the largest first, walk the ring. They look first among hosts that were below 0.90 of their
   fair share for one that stays at 0.95 or below; then among all hosts for one that stays at 1.05 or below. After 64
   hosts in vain, a group takes the host that is emptiest with the group added.
4. A host that is still below 0.90 is filled to 0.95 from the fullest hosts, with few large groups.
5. A host above 1.10 sheds the fewest groups that bring it below, or exchanges groups for smaller ones. The planner
   repeats 4 and 5 until nothing changes.

The planner leaves a host between 0.90 and 1.10 alone, so moves are rare.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from typing import NamedTuple

from emq.allocation.plan.levelling import SHED, Levelling, PlacementReason
from emq.allocation.plan.loads import Loads, shares_of
from emq.allocation.plan.ring import Ring
from emq.runtime import plurals
from emq.topics.model import MICRO

__all__ = ["BrokenPlan", "Plan", "PlacementReason", "effective", "plan"]

LEAST_WEIGHT = 1e-9
"""Share of the largest weight; a host with less gets no groups."""
ROUNDING = 1e-9


class BrokenPlan(AssertionError):
    """The planner made a plan that breaks its own rules: a bug. The former plan stays in force; report the error."""


class Plan(NamedTuple):
    """Attributes:
    owner: group to host; every group, unless no host has a weight.
    moved: group to the reason for its new host, for groups that changed hosts.
    max_over_mean: the load of the fullest host over its fair share of all quotas; 0 without hosts or groups.
    bound: the largest load over fair share that a host may have; above 1.10 only where groups are too few or too large
        for an even plan.
    """

    owner: dict[str, str]
    moved: dict[str, PlacementReason]
    max_over_mean: float = 0.0
    bound: float = SHED


def plan(
    quotas: Mapping[str, float],
    weights: Mapping[str, float],
    previous: Mapping[str, str] | None = None,
    recent: Container[str] = (),
) -> Plan:
    """Assign each group to a host; the same arguments in any order give the same plan.

    Args:
        quotas: group to its quota in starts a second, above 0 and finite; less than a millionth counts as a millionth.
        weights: host to its weight, 0 or more and finite; a host of weight 0 gets no groups.
        previous: group to host in the former plan; may name hosts and groups that are gone.
        recent: groups that moved last. Where there is a choice, other groups move, so that a host that goes and comes
            back moves each group once at most.

    Raises:
        BrokenPlan: a bug; publish nothing and keep the former plan.
    """
    before = previous or {}
    hosts = effective(weights)
    if not hosts or not quotas:
        return Plan({}, {})
    if len(hosts) == 1:  # as in most apps, some of which have very many groups
        owner = dict.fromkeys(quotas, next(iter(hosts)))
        return Plan(owner, {g: PlacementReason.RING for g, host in owner.items() if before.get(g) != host}, 1.0)
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
    why = {**levelling.why, **dict.fromkeys(alone, PlacementReason.ALONE)}
    moved = {group: why[group] for group, host in owner.items() if before.get(group) != host}
    return Plan(owner, moved, _max_over_mean(demand, hosts, owner), bound)


def effective(weights: Mapping[str, float]) -> dict[str, float]:
    """Return the hosts that take part, sorted by name, with their weights."""
    least = LEAST_WEIGHT * max(weights.values(), default=0.0)
    return {host: weights[host] for host in sorted(weights) if weights[host] > 0 and weights[host] >= least}


def _alone(
    demand: Mapping[str, int], weights: Mapping[str, float], before: Mapping[str, str], ring: Ring
) -> dict[str, str]:
    """Give each group that exceeds a host's bound a host of its own; larger groups get hosts of larger weight."""
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
    """Return the largest groups, while each exceeds the bound of the heaviest remaining host for the remaining load."""
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
    """Return the bound that the plan keeps, counted again from the result. Raises `BrokenPlan` if it keeps no bound.

    Whole groups cannot always be shared out within 1.10. But if a host with smallest group q is fuller than 1 + n * q /
    total, for n hosts, some other host would be less full with that group, since not all are above the mean.
    """
    if owner.keys() != demand.keys():
        wrong = len(demand.keys() ^ owner.keys())
        raise BrokenPlan(
            f"{plurals.count(wrong, 'group')} {plurals.are(wrong)} missing or too many in the plan; report it"
        )
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
