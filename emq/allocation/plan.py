"""The plan: which host consumes which groups, by consistent hashing."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

import uhashring


class Why(enum.StrEnum):
    """Why a group is where it is: what put it there last."""

    RING = "ring"
    """Its host is the first on its way around the ring."""
    WALKED = "walked"
    """The first ones on its way had no room."""
    EVENED = "evened"
    """It was moved to even out the loads."""


class Plan(NamedTuple):
    """Attributes:
    owner: group to host; every group, unless there is no host with a weight.
    moved: why a group got another host than it had before, by group.
    """

    owner: dict[str, str]
    moved: dict[str, Why]


def plan(quotas: Mapping[str, float], weights: Mapping[str, float], previous: Mapping[str, str] | None = None) -> Plan:
    """Assign each group to a host; deterministic in what is given.

    The ring is built afresh each time, since one that was changed can keep routing to hosts that are gone.

    Args:
        quotas: of each group, starts a second, above 0.
        weights: of each host, 0 or more; one of 0 gets nothing.
        previous: group to host as it was; hosts that are gone, and groups that are, may be among them.
    """
    hosts = sorted(host for host, weight in weights.items() if weight > 0)
    if not hosts:
        return Plan({}, {})
    ring = uhashring.HashRing(nodes=hosts)
    owner = {group: ring.get_node(group) for group in quotas}
    before = previous or {}
    return Plan(owner, {group: Why.RING for group, host in owner.items() if before.get(group) != host})
