"""Plans for hosts that do not all have handlers for the same topics. No I/O."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Container, Mapping

from emq.allocation.plan import plan as planning
from emq.allocation.plan.plan import PlacementReason, Plan
from emq.storage.names import topic_of

Serves = Mapping[str, tuple[str, ...] | None]
"""Host to the patterns of the topics that have a handler there; None for all topics."""


def plan_for(
    serves: Serves,
    quotas: Mapping[str, float],
    weights: Mapping[str, float],
    previous: Mapping[str, str],
    recent: Container[str],
) -> Plan:
    """Plan as `emq.allocation.plan.plan.plan`, but give a group to a host with a handler for its topic, if possible.

    Groups that the same hosts may have form a part. The function plans each part by itself, so that loads are even
    within each part. A topic for which no host with a weight has a handler may go to any host.
    """
    choosy = {host: _matcher(patterns) for host, patterns in serves.items() if patterns is not None and host in weights}
    if not choosy:
        return planning.plan(quotas, weights, previous, recent)
    owner: dict[str, str] = {}
    moved: dict[str, PlacementReason] = {}
    fullest = bound = 0.0
    for hosts, groups in sorted(_parts(choosy, quotas, weights).items(), key=lambda part: sorted(part[0])):
        part = planning.plan({g: quotas[g] for g in groups}, {h: weights[h] for h in hosts}, previous, recent)
        owner |= part.owner
        moved |= part.moved
        fullest, bound = max(fullest, part.max_over_mean), max(bound, part.bound)
    return Plan(owner, moved, fullest, bound)


def _parts(
    choosy: Mapping[str, re.Pattern[str]], quotas: Mapping[str, float], weights: Mapping[str, float]
) -> dict[frozenset[str], list[str]]:
    """Return the parts: the set of hosts that may have a group, to all groups with that set."""
    everybody, serve_all = frozenset(weights), frozenset(weights.keys() - choosy.keys())
    able: dict[str, frozenset[str]] = {}
    parts: dict[frozenset[str], list[str]] = {}
    for group in quotas:
        topic = topic_of(group)
        hosts = able.get(topic)
        if hosts is None:
            hosts = serve_all | {host for host, matcher in choosy.items() if matcher.match(topic)}
            if not any(weights[host] > 0 for host in hosts):
                hosts = everybody
            able[topic] = hosts
        parts.setdefault(hosts, []).append(group)
    return parts


def _matcher(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(fnmatch.translate, patterns)) or r"(?!)")
