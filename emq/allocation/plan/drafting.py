"""From one plan to the next: who gets which epoch, and who waits for whom. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from emq.allocation.plan.plan import Plan
from emq.allocation.records import EVERYBODY, Entry, Former, Order, Running

NOBODY = "_nobody"
"""Host of the groups that no host may have; no real host's name begins like this."""


LATELY_S = 10.0
"""Longer than clocks may differ for caps to hold over a move."""


class Place(NamedTuple):
    """Where a group was: with which host, and as what in its list."""

    host: str
    entry: Entry


class Previous(NamedTuple):
    """The plan that is in force.

    Attributes:
        places: by group.
        incarnations: by host.
    """

    places: dict[str, Place]
    incarnations: dict[str, str]


def shares(members: Mapping[str, Running], orders: Mapping[str, Order]) -> dict[str, float]:
    """The weight of each host: what an operator wants, else what it is set to; none for one that leaves or drains."""
    weights = {}
    for host, member in members.items():
        order = orders.get(host, Order())
        weight = member.weight if order.weight is None else order.weight
        weights[host] = 0.0 if member.leaving or order.drain else weight
    return weights


def places(plan: Plan, quotas: Mapping[str, float]) -> dict[str, str]:
    """Host of each group, `NOBODY` where there is none."""
    return {group: plan.owner.get(group, NOBODY) for group in quotas}


def recent(previous: Previous | None) -> set[str]:
    """Groups that moved last."""
    places = previous.places if previous is not None else {}
    newest = max((place.entry.epoch for place in places.values()), default=0)
    return {group for group, place in places.items() if place.entry.epoch == newest}


def changed(owner: Mapping[str, str], members: Mapping[str, Running], previous: Previous | None) -> bool:
    """Whether anybody gets or loses a group, or gets one under a new epoch."""
    if previous is None or previous.places.keys() != owner.keys():
        return True
    if previous.incarnations.keys() != members.keys():
        return True  # so that hosts that are gone leave the record, and new ones know that they have nothing
    return any(
        place.host != owner[group] or not _keeps(group, place, members, previous)
        for group, place in previous.places.items()
    )


def draft(
    generation: int,
    owner: Mapping[str, str],
    why: Mapping[str, str],
    members: Mapping[str, Running],
    previous: Previous | None,
    now_s: float,
) -> dict[str, dict[str, Entry]]:
    """The lists of a new plan, by host, `NOBODY`'s too; every member has one, if an empty one.

    A group that stays where it is keeps its epoch. One that moves gets the new generation as its epoch, and after it
    come its former owner and whoever that one still waited for, as far as they may still hold it, or have let go so
    lately that by the clock of the new owner their last second may not be over.
    """
    lists: dict[str, dict[str, Entry]] = {host: {} for host in members}
    for group, host in owner.items():
        place = previous.places.get(group) if previous is not None else None
        if place is not None and place.host == host and _keeps(group, place, members, previous):
            entry = place.entry
        else:
            entry = Entry(
                generation, why.get(group, ""), _formers(group, host, generation, place, members, previous, now_s)
            )
        lists.setdefault(host, {})[group] = entry
    return lists


def _keeps(group: str, place: Place, members: Mapping[str, Running], previous: Previous | None) -> bool:
    if place.host == NOBODY:
        return True
    member = members.get(place.host)
    if member is None or previous is None or previous.incarnations.get(place.host) != member.incarnation:
        return False
    return member.fenced.get(group) != place.entry.epoch


def _formers(
    group: str,
    host: str,
    generation: int,
    place: Place | None,
    members: Mapping[str, Running],
    previous: Previous | None,
    now_s: float,
) -> tuple[Former, ...]:
    if previous is None:
        # There is no telling what hosts hold that outlived their plan.
        return (Former(EVERYBODY, "", generation),)
    if place is None:
        return ()
    formers = [*place.entry.after]
    if (incarnation := previous.incarnations.get(place.host)) is not None and place.host != host:
        formers.append(Former(place.host, incarnation, generation))
    return tuple(f for f in formers if _matters(f, group, host, members, now_s))


def _matters(former: Former, group: str, host: str, members: Mapping[str, Running], now_s: float) -> bool:
    if former.host == EVERYBODY:
        return not all(m.has_let_go(group, former.generation) for m in members.values())
    member = members.get(former.host)
    if former.host == host or member is None or member.incarnation != former.incarnation:
        return False
    return not member.has_let_go(group, former.generation) or member.released_s > now_s - LATELY_S
