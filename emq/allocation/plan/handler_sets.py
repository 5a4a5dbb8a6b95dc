"""Plans for hosts that do not all have handlers for the same topics. No I/O."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Container, Mapping

from emq.allocation.plan import plan as planning
from emq.allocation.plan import units
from emq.allocation.plan.plan import PlacementReason, Plan
from emq.allocation.plan.units import NO_UNITS, United, Units
from emq.topics import buckets

Serves = Mapping[str, tuple[str, ...] | None]
"""Host to the patterns of the topics that have a handler there; None for all topics."""


def plan_for(
    serves: Serves,
    quotas: Mapping[str, float],
    weights: Mapping[str, float],
    previous: Mapping[str, str],
    recent: Container[str],
    of_budgets: Units = NO_UNITS,
) -> Plan:
    """Plan as `emq.allocation.plan.plan.plan`, but give a group to a host with a handler for its topic, if possible.

    All groups of a unit, which share a budget, get one host: a host with handlers for the most of the unit's topics.
    Groups and units with the same possible hosts form a part. Each part is planned by itself, so loads are even within
    it. A topic for which no host with a weight has a handler may go to any host. A bucket goes to a host with a handler
    for its whole family, if possible, else to one with a handler for some of its topics.

    Args:
        of_budgets: topic to its unit, for topics that share a budget.
    """
    united = units.united(quotas, previous, of_budgets)
    choosy = {host: _Served(patterns) for host, patterns in serves.items() if patterns is not None and host in weights}
    if not choosy:
        return units.expanded(planning.plan(united.quotas, weights, united.previous, recent), united, previous)
    owner: dict[str, str] = {}
    moved: dict[str, PlacementReason] = {}
    fullest = bound = 0.0
    for hosts, groups in sorted(_parts(choosy, united, weights).items(), key=lambda part: sorted(part[0])):
        its = {group: united.quotas[group] for group in groups}
        part = planning.plan(its, {h: weights[h] for h in hosts}, united.previous, recent)
        owner |= part.owner
        moved |= part.moved
        fullest, bound = max(fullest, part.max_over_mean), max(bound, part.bound)
    return units.expanded(Plan(owner, moved, fullest, bound), united, previous)


def _parts(
    choosy: Mapping[str, _Served], united: United, weights: Mapping[str, float]
) -> dict[frozenset[str], list[str]]:
    """Return the parts: the set of hosts that may have a group or unit, to all groups with that set."""
    able: dict[frozenset[str], frozenset[str]] = {}
    parts: dict[frozenset[str], list[str]] = {}
    for group in united.quotas:
        topics = united.topics(group)
        hosts = able.get(topics)
        if hosts is None:
            hosts = able[topics] = _able(choosy, topics, weights)
        parts.setdefault(hosts, []).append(group)
    return parts


def _able(choosy: Mapping[str, _Served], topics: frozenset[str], weights: Mapping[str, float]) -> frozenset[str]:
    """Return the hosts with handlers for the most of these topics: for all of them, if there is such a host."""
    served = {
        host: sum(map(its.part, topics)) if (its := choosy.get(host)) is not None else len(topics) for host in weights
    }
    most = max((n for host, n in served.items() if weights[host] > 0), default=0)
    return frozenset(host for host, n in served.items() if n >= most)


class _Served:
    """The topics that have a handler on a host."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._matcher = re.compile("|".join(map(fnmatch.translate, patterns)) or r"(?!)")
        self._heads = [(_WILDCARD.split(pattern, maxsplit=1)[0], pattern) for pattern in patterns]

    def part(self, topic: str) -> float:
        """Return the part that is served: 1 or 0 of a topic, and 1/2 of a family of which some topics may be."""
        family = buckets.family_of(topic)
        if self._matcher.match(family or topic):
            return 1.0
        prefix = "" if family is None else family[:-1]
        return 0.5 if prefix and any(_overlap(prefix, head, pattern) for head, pattern in self._heads) else 0.0


_WILDCARD = re.compile(r"[*?[]")


def _overlap(prefix: str, head: str, pattern: str) -> bool:
    return head.startswith(prefix) or (head != pattern and prefix.startswith(head))
