"""Deals the tasks of a type out to resources in a step of a fluid simulation.

The cheapest resources go first; those of equal price get tasks in proportion to their weights, as far as all limits
allow.
"""

from __future__ import annotations

from collections.abc import Sequence

from emq_scheduling.forecast.fluid_plan import Group

LITTLE = 1e-9
"""Tasks, or units, that count as none."""

MOST = 1e15
"""Tasks that a resource without limits starts in a step at most."""

PASSES = 4
"""Passes in which the rest is dealt out again; what then remains is too little to matter."""


class Books:
    """The tasks that a step of `dt` seconds has dealt out so far.

    Args:
        left: units by the index of the limit; dealing takes from them.
        even: of these, the units that tasks may use which others are more urgent than; dealing takes from them, too.
        held: by the index of the type: the part of the tasks starting in the step that still run at its end.

    Attributes:
        starts: tasks that start, by type.
        possible: tasks that could start were there more of them, by type; the same as `starts` under a backlog.
        started: tasks that start, by group.
        flights: units in flight that are taken, by limit and type.
    """

    __slots__ = ("dt", "even", "flights", "held", "left", "possible", "started", "starts")

    def __init__(self, dt: float, left: list[float], even: list[float], held: list[float], groups: int) -> None:
        self.dt = dt
        self.left = left
        self.even = even
        self.held = held
        self.starts = [0.0] * len(held)
        self.possible = [0.0] * len(held)
        self.started = [0.0] * groups
        self.flights: dict[tuple[int, int], float] = {}


class Dealing:
    """The rules of dealing of a pool.

    Args:
        priorities: of the types.
        parents: indices of the limits that several groups share, the lowest parents first.
        in_flight: indices of the limits in flight.
    """

    def __init__(
        self, groups: Sequence[Group], priorities: Sequence[int], parents: Sequence[int], in_flight: frozenset[int]
    ) -> None:
        self._groups = groups
        self._priorities = priorities
        self._most_urgent: dict[int, int] = {}
        for group in groups:
            for kind, costs in group.takes.items():
                for limit, _ in costs:
                    self._most_urgent[limit] = min(priorities[kind], self._most_urgent.get(limit, priorities[kind]))
        self._parents = parents
        self._in_flight = in_flight
        self._tiers = [self._tiers_of(kind) for kind in range(len(priorities))]

    def fill(self, kind: int, want: float, books: Books) -> None:
        """Start tasks of a type, `want` at most."""
        for tier in self._tiers[kind]:
            for _ in range(PASSES):
                caps = self._caps(kind, tier, books)
                total = sum(caps)
                books.possible[kind] += total
                if total <= LITTLE:
                    break
                if want < total:
                    caps = dealt(want, caps, [self._groups[index].weight for index in tier])
                for index, tasks in zip(tier, caps, strict=True):
                    if tasks > 0:
                        self._start(kind, index, tasks, books)
                tasks = min(want, total)
                books.starts[kind] += tasks
                want -= tasks
                if want <= LITTLE:
                    return

    def _tiers_of(self, kind: int) -> list[list[int]]:
        """Return the groups that take a type, by price."""
        tiers: dict[float, list[int]] = {}
        for index, group in enumerate(self._groups):
            if kind in group.takes:
                tiers.setdefault(group.price, []).append(index)
        return [tiers[price] for price in sorted(tiers)]

    def _start(self, kind: int, group: int, tasks: float, books: Books) -> None:
        left, even = books.left, books.even
        books.started[group] += tasks
        for index, cost in self._groups[group].takes[kind]:
            units = tasks * cost
            if index in self._in_flight:
                books.flights[index, kind] = books.flights.get((index, kind), 0.0) + units
                units *= books.held[kind]
            left[index] = max(0.0, left[index] - units)
            even[index] = max(0.0, even[index] - units)

    def _caps(self, kind: int, tier: list[int], books: Books) -> list[float]:
        """Return how many tasks each group could start, all of them together."""
        in_flight, held = self._in_flight, books.held[kind]
        caps = []
        for index in tier:
            cap = MOST
            for limit, cost in self._groups[index].takes[kind]:
                if limit in in_flight:
                    cost *= held
                room = self._room(kind, limit, books) / cost
                if room < cap:
                    cap = room
            caps.append(cap)
        if len(tier) > 1:
            for parent in self._parents:
                self._fit_under(parent, kind, tier, caps, books)
        return caps

    def _room(self, kind: int, limit: int, books: Books) -> float:
        """Return the units of a limit that tasks of a type may use."""
        left = books.left[limit]
        return left if self._priorities[kind] <= self._most_urgent[limit] else min(left, books.even[limit])

    def _fit_under(self, parent: int, kind: int, tier: list[int], caps: list[float], books: Books) -> None:
        """Lower the caps of the groups below a limit, so that they fit together."""
        below = [
            (position, cost)
            for position, group in enumerate(tier)
            if caps[position] > 0 and (cost := self._cost(group, kind, parent)) > 0
        ]
        if len(below) < 2:
            return
        scale = books.held[kind] if parent in self._in_flight else 1.0
        units = [caps[position] * cost * scale for position, cost in below]
        room = self._room(kind, parent, books)
        if sum(units) <= room:
            return
        weights = [self._groups[tier[position]].weight * cost for position, cost in below]
        for (position, cost), each in zip(below, dealt(room, units, weights), strict=True):
            caps[position] = each / (cost * scale)

    def _cost(self, group: int, kind: int, limit: int) -> float:
        return next((cost for index, cost in self._groups[group].takes[kind] if index == limit), 0.0)


def dealt(amount: float, most: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Deal an amount out in proportion to the weights, within each one's maximum."""
    found = [0.0] * len(most)
    weight = sum(weights)
    for index in sorted(range(len(most)), key=lambda i: most[i] / weights[i]):
        found[index] = min(most[index], amount * weights[index] / weight if weight > 0 else amount)
        amount = max(0.0, amount - found[index])
        weight -= weights[index]
    return found
