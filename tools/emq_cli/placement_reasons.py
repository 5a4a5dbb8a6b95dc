"""Explains in words why a group has its host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from emq.allocation.plan.levelling import AIM, LOW
from emq.allocation.plan.loads import shares_of
from emq.allocation.plan.plan import PlacementReason, Plan, effective
from emq.allocation.plan.ring import Ring
from emq.runtime import errors

_REASONS = {
    PlacementReason.RING: "it was the first on the way around the ring when the group came",
    PlacementReason.WALKED: "those before it on the way had no room, or others needed filling first",
    PlacementReason.EVENED: "it was moved there to even out the loads",
    PlacementReason.ALONE: "it is larger than a host's fair share and has the host to itself",
    PlacementReason.BUDGET: "it went where the budget of its topic is counted",
}


class Stop(NamedTuple):
    """A host on a group's way around the ring.

    Attributes:
        load: the host's load over its fair share, under the present plan.
        with_group: the load with the group added; the same as `load` for the owner.
    """

    host: str
    load: float
    with_group: float


def way(
    group: str, quotas: Mapping[str, float], weights: Mapping[str, float], made: Plan, first: int = 5
) -> list[Stop]:
    """Return the first hosts on the group's way around the ring: at most `first` hosts, up to the owner.

    Raises:
        UnknownTopic: no such group in `quotas`; correct the name.
    """
    if group not in quotas:
        raise errors.UnknownTopic(f"there is no group {group!r}; a group is named TOPIC/NUMBER, such as 'orders/0'")
    hosts = effective(weights)
    if not hosts:
        return []
    shares = shares_of(sum(quotas.values()), hosts, hosts)
    load = dict.fromkeys(hosts, 0.0)
    for other, host in made.owner.items():
        load[host] += quotas[other]
    stops: list[Stop] = []
    for host, _ in zip(Ring(hosts).way(group), range(first), strict=False):
        owns = made.owner.get(group) == host
        more = 0.0 if owns else quotas[group]
        stops.append(Stop(host, load[host] / shares[host], (load[host] + more) / shares[host]))
        if owns:
            break
    return stops


def explain(
    group: str, quotas: Mapping[str, float], weights: Mapping[str, float], made: Plan, first: int = 5
) -> list[str]:
    """Return lines of plain text: the group's host, the reason, and the first hosts on its way around the ring.

    The loads are those of the present plan; they may have been different when the group got its host.

    Args:
        made: a plan for these quotas and weights.
        first: most hosts of the way to show.

    Raises:
        UnknownTopic: no such group in `quotas`; correct the name.
    """
    stops = way(group, quotas, weights, made, first)
    owner = made.owner.get(group)
    if owner is None:
        return [f"{group} has no host: no host has a weight. Start a host, or give one a weight."]
    why = made.moved.get(group)
    reason = _REASONS[why] if why else "it was there before, and stays while its host is within its bounds"
    return [f"{group} ({quotas[group]:g} a second) is on {owner}: {reason}.", *(_line(stop, owner) for stop in stops)]


def _line(stop: Stop, owner: str) -> str:
    if stop.host == owner:
        said = "its host"
    elif stop.with_group > AIM:
        said = f"no room: would have {stop.with_group:.2f} with it, more than {AIM:.2f}"
    elif stop.load < LOW:
        said = "has room, but no group can be moved there without leaving another host low"
    else:
        said = "has room, but is full enough, and a move would cost a pause"
    return f"  {stop.host}: {stop.load:.2f} of its fair share; {said}"
