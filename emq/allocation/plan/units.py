"""Units: groups that must be on one host, since they share a budget (`emq.topics.budgets`). No I/O.

A unit goes by the name of its root's first group. The planner places this one group, with the load of them all, and
then gives the others to the same host.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from emq.allocation.plan.levelling import PlacementReason
from emq.allocation.plan.plan import Plan
from emq.storage.names import topic_of

Units = Mapping[str, str]
"""Topic to its root, for the topics of units. A group of any other topic is allocated by itself."""

NO_UNITS: Units = MappingProxyType({})


class United(NamedTuple):
    """What the planner places.

    Attributes:
        quotas, previous: of the groups that stand for units, and of groups outside of units.
        members: group that stands for a unit, to all groups of that unit.
    """

    quotas: Mapping[str, float]
    previous: Mapping[str, str]
    members: Mapping[str, list[str]]

    def topics(self, group: str) -> frozenset[str]:
        """Return the topics whose groups go where this group goes."""
        members = self.members.get(group)
        return frozenset((topic_of(group),)) if members is None else frozenset(map(topic_of, members))


def united(quotas: Mapping[str, float], previous: Mapping[str, str], units: Units) -> United:
    """Return the groups with one group for each unit.

    The former host of a unit is that of its first group, or else of the next group by name. So the first group, without
    which no other one starts anything, moves last.
    """
    if not units:
        return United(quotas, previous, {})
    alone: dict[str, float] = {}
    members: dict[str, list[str]] = {}
    for group, quota in quotas.items():
        root = units.get(topic_of(group))
        if root is None:
            alone[group] = quota
        else:
            members.setdefault(f"{root}/0", []).append(group)
    before = dict(previous)
    for first, groups in members.items():
        alone[first] = sum(sorted(quotas[group] for group in groups))
        if first not in before:
            found = min((group for group in groups if group in before), default=None)
            if found is not None:
                before[first] = before[found]
    return United(alone, before, members)


def expanded(made: Plan, of: United, previous: Mapping[str, str]) -> Plan:
    """Return the plan for all groups, from the plan for those that stand for units."""
    if not of.members:
        return made
    owner, moved = dict(made.owner), dict(made.moved)
    for first, groups in of.members.items():
        host = owner.pop(first, None)
        if host is None:
            continue  # no host has a weight
        why = moved.pop(first, PlacementReason.BUDGET)
        for group in groups:
            owner[group] = host
            if previous.get(group) != host:
                moved[group] = why if group == first else PlacementReason.BUDGET
    return made._replace(owner=owner, moved=moved)
