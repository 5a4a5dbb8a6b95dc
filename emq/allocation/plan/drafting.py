"""Drafting turns a plan into lists: it sets each group's epoch and the former owners to wait for. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from emq.allocation.plan import handler_sets
from emq.allocation.plan.plan import Plan
from emq.allocation.plan.units import Units
from emq.allocation.records import EVERYBODY, Entry, Former, Order, Running

NOBODY = "_nobody"
"""Name that stands for no host; no real host's name begins with an underscore."""

DROPPED = "_dropped"
"""Name of the list of groups that belong to no topic any more, and whose last owners may still hold them."""

NO_HOSTS = frozenset({NOBODY, DROPPED})

LET_GO = "let go"
"""Value of `Entry.why` in the list `DROPPED`: all former owners have let go, as the plan of the entry's epoch found."""

LATELY_S = 10.0
"""Seconds for which a former owner that let go still counts; longer than the clocks of hosts may differ."""


class Place(NamedTuple):
    """A group's host in the former plan, and the group's entry in that host's list."""

    host: str
    entry: Entry


class Previous(NamedTuple):
    """The plan that is in force.

    Attributes:
        places: group to its host and entry.
        incarnations: host to the incarnation that the plan knows.
        dropped: groups of deleted topics, with the owners that may still hold them.
    """

    places: dict[str, Place]
    incarnations: dict[str, str]
    dropped: Mapping[str, Entry] = MappingProxyType({})

    def place(self, group: str) -> Place | None:
        """Return the host and entry of a group, also of a dropped one; None for a group that is new."""
        if (entry := self.dropped.get(group)) is not None:
            return Place(DROPPED, entry)
        return self.places.get(group)


def previous(lists: Mapping[str, Mapping[str, Entry]], incarnations: dict[str, str]) -> Previous:
    """Return the plan that these lists make up, by host."""
    places = {g: Place(host, e) for host, entries in lists.items() if host != DROPPED for g, e in entries.items()}
    return Previous(places, incarnations, lists.get(DROPPED, {}))


def by_host(previous: Previous | None) -> dict[str, dict[str, Entry]]:
    """Return the lists that make up this plan, by host."""
    lists: dict[str, dict[str, Entry]] = {}
    if previous is not None:
        for group, place in previous.places.items():
            lists.setdefault(place.host, {})[group] = place.entry
        lists[DROPPED] = {**previous.dropped}
    return lists


def shares(members: Mapping[str, Running], orders: Mapping[str, Order]) -> dict[str, float]:
    """Return each host's weight: the operator's, else the host's own; 0 for a host that leaves or drains."""
    weights = {}
    for host, member in members.items():
        order = orders.get(host, Order())
        weight = member.weight if order.weight is None else order.weight
        weights[host] = 0.0 if member.leaving or order.drain else weight
    return weights


def places(plan: Plan, quotas: Mapping[str, float]) -> dict[str, str]:
    """Return the host of each group; `NOBODY` for a group without a host."""
    return {group: plan.owner.get(group, NOBODY) for group in quotas}


def recent(previous: Previous | None) -> set[str]:
    """Return the groups that moved last."""
    places = previous.places if previous is not None else {}
    newest = max((place.entry.epoch for place in places.values()), default=0)
    return {group for group, place in places.items() if place.entry.epoch == newest}


def planned(
    quotas: Mapping[str, float],
    units: Units,
    weights: Mapping[str, float],
    members: Mapping[str, Running],
    previous: Previous | None,
) -> tuple[Plan, dict[str, str], bool]:
    """Return the new plan, the host of each group, and whether anything moves."""
    before = {g: p.host for g, p in previous.places.items()} if previous is not None else {}
    made = handler_sets.plan_for(
        {h: m.serves for h, m in members.items()}, quotas, weights, before, recent(previous), units
    )
    owner = places(made, quotas)
    return made, owner, changed(owner, members, previous)


def changed(owner: Mapping[str, str], members: Mapping[str, Running], previous: Previous | None) -> bool:
    """Return whether a host gets or loses a group or gets a new epoch, or a host came or went."""
    if previous is None or previous.places.keys() != owner.keys():
        return True
    if previous.incarnations.keys() != members.keys():
        return True  # hosts that are gone leave the record, and new hosts learn that they have no groups
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
    """Return the lists of a new plan by host, with those of `NO_HOSTS`; every member has a list, which may be empty.

    A group that stays where it is keeps its epoch. A group that moves gets the new generation as its epoch. Its new
    owner waits for the former owner, and for the owners that the former owner still waited for. The entry names those
    that may still hold the group, or that let go in the last `LATELY_S` seconds: by the clock of the new owner, their
    last second may not be over.

    A group without a topic stays in the list `DROPPED` until that time, since a topic of its name may come again. The
    hosts tell only when they let go last, of whatever group. So the group is also forgotten `LATELY_S` seconds after
    the plan that first found it let go.
    """
    lists: dict[str, dict[str, Entry]] = {host: {} for host in members}
    for group, host in owner.items():
        place = previous.place(group) if previous is not None else None
        if place is not None and place.host == host and _keeps(group, place, members, previous):
            entry = place.entry
        else:
            formers = _formers(group, host, generation, place, members, previous, now_s)
            entry = Entry(generation, why.get(group, ""), formers, previous is not None and place is None)
        lists.setdefault(host, {})[group] = entry
    if previous is not None:
        for group in (*previous.dropped, *previous.places):
            if group not in owner and (
                after := _formers(group, DROPPED, generation, previous.place(group), members, previous, now_s)
            ):
                entry = Entry(generation, LET_GO if all(_is_let_go(f, group, members) for f in after) else "", after)
                before = previous.dropped.get(group, entry)
                if (before.why, before.after) == (entry.why, after):
                    entry = before
                if not (entry.why and entry.epoch < generation - LATELY_S * 1e6):
                    lists.setdefault(DROPPED, {})[group] = entry
    return lists


def _is_let_go(former: Former, group: str, members: Mapping[str, Running]) -> bool:
    return former.host != EVERYBODY and members[former.host].has_let_go(group, former.generation)


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
        # Without a former plan, any live host may hold any group.
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
