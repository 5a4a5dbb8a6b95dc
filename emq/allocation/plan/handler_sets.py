"""Plans for hosts that do not all have handlers for the same topics. No I/O."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Container, Mapping

from emq.allocation.plan import plan as planning
from emq.allocation.plan.plan import Plan, Why

Serves = Mapping[str, tuple[str, ...] | None]
"""By host, patterns of the topics that it has a handler for; None for all."""


def plan_for(
    serves: Serves,
    quotas: Mapping[str, float],
    weights: Mapping[str, float],
    previous: Mapping[str, str],
    recent: Container[str],
) -> Plan:
    """As `emq.allocation.plan.plan.plan`, but a group goes to a host that has a handler for its topic, if there is one.

    Groups that the same hosts may have are planned together, each such part by itself, so that loads are even within
    each. A topic for which no host has a handler may be anywhere.
    """
    choosy = {host: _matcher(patterns) for host, patterns in serves.items() if patterns is not None and host in weights}
    if not choosy:
        return planning.plan(quotas, weights, previous, recent)
    owner: dict[str, str] = {}
    moved: dict[str, Why] = {}
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
    """Groups by the hosts that may have them."""
    everybody, serve_all = frozenset(weights), frozenset(weights.keys() - choosy.keys())
    able: dict[str, frozenset[str]] = {}
    parts: dict[frozenset[str], list[str]] = {}
    for group in quotas:
        topic = group.rpartition("/")[0]
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
