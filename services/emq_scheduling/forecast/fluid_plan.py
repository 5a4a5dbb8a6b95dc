"""A pool for a fluid simulation: groups of similar resources, their limits, and the costs of each type there.

A group is simulated as one resource with the sum of the limits. For equal resources this changes nothing. If more than
`MOST_GROUPS` groups would be left, resources of one parent are grouped that differ only in amounts, weights and prices,
and then also parents. So a forecast of a thousand resources is cheap, and a little too good, since room of one resource
seems to serve the others of its group.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable, Mapping

from emq_scheduling.model import DEFAULT_COST, PERIODS_S, Limit, Pool, Resource
from emq_scheduling.records.snapshot import Known

MOST_GROUPS = 60
"""Number of groups above which similar resources are grouped, too."""

EQUAL, ALIKE, ALIKE_PARENTS = range(3)
"""How much the resources of a group have in common; see above."""


class Spec:
    """One limit of a group of resources.

    Attributes:
        members: the resources whose limits are added up, each with its own limit.
    """

    __slots__ = ("counts", "members", "name", "per")

    def __init__(self, limit: Limit) -> None:
        self.name, self.per, self.counts = limit.name, limit.per, limit.counts
        self.members: list[tuple[str, Limit]] = []


class Group:
    """Resources that are simulated as one.

    Attributes:
        names: of its resources.
        price: of the cheapest.
        weight: of all together.
        takes: by the index of the type: (index of the limit, units of it) for each limit of the group and its parents.
        own: indices of its own limits, without those of its parents.
        limits: indices of its own limits and of those of its parents.
    """

    __slots__ = ("limits", "names", "own", "price", "takes", "weight")

    def __init__(self, names: list[str], resources: list[Resource]) -> None:
        self.names = names
        self.price = min(each.price for each in resources)
        self.weight = sum(each.weight for each in resources)
        self.takes: dict[int, list[tuple[int, float]]] = {}
        self.own: list[int] = []
        self.limits: list[int] = []

    def taking(self, takes: dict[int, list[tuple[int, float]]]) -> Group:
        """Return the group with other costs; `takes` as the attribute."""
        made = copy.copy(self)
        made.takes = takes
        return made


class Plan:
    """The groups of a pool. It depends on the pool alone, so it serves until the pool is changed.

    Args:
        pool: has passed `emq_scheduling.pools.rules.check`.
        most_groups: see the beginning of this file.

    Attributes:
        types: names of the types, in the order of their indices.
        groups: those that take something and are not paused.
        limits: of all groups and parents.
        parents: indices of the limits that several groups share, the lowest parents first.
    """

    def __init__(self, pool: Pool, most_groups: int = MOST_GROUPS) -> None:
        self.pool = pool
        self.types = list(pool.types)
        self._index = {kind: index for index, kind in enumerate(self.types)}
        self.groups: list[Group] = []
        self.limits: list[Spec] = []
        self._named = _named_costs(pool)
        for alike in (EQUAL, ALIKE, ALIKE_PARENTS):
            classes = _classes(pool, alike)
            takers = {key: names for key, names in classes.items() if pool.resources[names[0]].takes}
            if len(takers) <= most_groups:
                break
        self._build(classes, takers)

    def _build(self, classes: dict[Hashable, list[str]], takers: dict[Hashable, list[str]]) -> None:
        pool = self.pool
        limits_of = {name: key for key, names in classes.items() for name in names}
        own: dict[Hashable, list[int]] = {}
        users: dict[int, int] = {}
        depth: dict[int, int] = {}
        for names in takers.values():
            resources = [pool.resources[name] for name in names]
            if any(each.paused for each in pool.chain(names[0])):
                continue
            group = Group(names, resources)
            for level, name in enumerate(pool.line(names[0])):
                key = limits_of[name]
                if key not in own:
                    own[key] = self._limits_of(classes[key])
                group.limits += own[key]
                for index in own[key]:
                    users[index] = users.get(index, 0) + 1
                    depth[index] = max(depth.get(index, 0), level)
            group.own = own[limits_of[names[0]]]
            group.takes = {self._index[kind]: [] for kind in pool.resources[names[0]].takes}
            self.groups.append(group)
        self.groups = self.with_costs({kind: {} for kind in self.types}, {})
        self.parents = sorted((index for index, count in users.items() if count > 1), key=lambda i: depth[i])

    def _limits_of(self, names: list[str]) -> list[int]:
        first = len(self.limits)
        specs: dict[tuple[str, str], Spec] = {}
        for name in names:
            for limit in self.pool.resources[name].limits:
                key = (limit.name, limit.per)
                if key not in specs:
                    specs[key] = Spec(limit)
                    self.limits.append(specs[key])
                specs[key].members.append((name, limit))
        return list(range(first, len(self.limits)))

    def with_costs(self, costs: Mapping[str, Known], durations: Mapping[str, float]) -> list[Group]:
        """Return the groups with the costs that tasks really have.

        Args:
            costs: what is known of them, by type; other types keep theirs.
            durations: seconds that a task takes, by type.
        """
        kinds = {self._index[kind]: kind for kind in costs if kind in self._index}
        if not kinds:
            return self.groups
        least = self._least(costs)
        return [
            group.taking(
                group.takes
                | {
                    index: self._taken(group, kind, costs[kind], durations.get(kind, 0.0), least)
                    for index, kind in kinds.items()
                    if index in group.takes
                }
            )
            for group in self.groups
        ]

    def _taken(
        self, group: Group, kind: str, known: Known, duration_s: float, least: Mapping[str, float]
    ) -> list[tuple[int, float]]:
        """Return the limits of a group that count a task of the type, and the units that they count."""
        costs, found = self.pool.costs(kind, group.names[0]), []
        for index in group.limits:
            spec = self.limits[index]
            cost = end = costs.get(spec.name, DEFAULT_COST)
            if spec.name in known:
                cost, end = known[spec.name].at_start(cost), known[spec.name].at_end(cost)
            # Unused units come back at the end: too late, if the period is over by then.
            if spec.per == "in_flight" or (end < cost and duration_s >= PERIODS_S[spec.per]) or end == cost:
                cost = _rounded(spec, cost, least.get(spec.name, DEFAULT_COST))
            else:
                cost = end
            if cost > 0:
                found.append((index, cost))
        return found

    def _least(self, costs: Mapping[str, Known]) -> dict[str, float]:
        """Return the least that a task of any type costs, by the name of the limit."""
        found: dict[str, float] = {}
        for (kind, name), cost in self._named.items():
            known = costs.get(kind, {}).get(name)
            units = cost if known is None else known.at_end(cost)
            found[name] = min(units, found.get(name, units))
        return found


def _rounded(spec: Spec, cost: float, least: float) -> float:
    """Return the part of a limit that a task takes if whole tasks cannot fill it.

    5 a second at a cost of 2 is 2 tasks. If smaller tasks may fill the rest, the cost stays.

    Args:
        least: the least cost of any task.
    """
    amount = min(limit.amount for _, limit in spec.members)
    if (
        spec.per not in ("second", "in_flight")
        or spec.counts == "bucket"
        or cost <= 0
        or amount < cost
        or cost > least * (1 + 1e-9)
    ):
        return cost
    return amount / math.floor(amount / cost + 1e-9)


def _named_costs(pool: Pool) -> dict[tuple[str, str], float]:
    """Return the least that a task of a type costs on any resource, by type and limit."""
    names = {limit.name for each in pool.resources.values() for limit in each.limits}
    found = {(kind, name): each.costs.get(name, DEFAULT_COST) for kind, each in pool.types.items() for name in names}
    for resource in pool.resources.values():
        for kind, own in resource.takes.items():
            for name, cost in own.items():
                if (kind, name) in found:
                    found[kind, name] = min(cost, found[kind, name])
    return found


def _classes(pool: Pool, alike: int) -> dict[Hashable, list[str]]:
    """Return the names of the resources by what they have in common."""
    parents = {each.parent for each in pool.resources.values()}
    found: dict[Hashable, list[str]] = {}
    keys: dict[str, Hashable] = {}

    def key_of(name: str) -> Hashable:
        if name not in keys:
            resource = pool.resources[name]
            above = None if resource.parent is None else key_of(resource.parent)
            takes = tuple(sorted((kind, tuple(sorted(costs.items()))) for kind, costs in resource.takes.items()))
            if name in parents and alike < ALIKE_PARENTS:
                keys[name] = name
            elif alike == EQUAL:
                rest = (resource.weight, resource.price, resource.calendar, resource.paused)
                keys[name] = (above, takes, resource.limits, *rest)
            else:
                shape = tuple((each.name, each.per, each.counts, each.zone) for each in resource.limits)
                keys[name] = (above, name in parents, takes, shape, resource.calendar, resource.paused)
        return keys[name]

    for name in pool.resources:
        found.setdefault(key_of(name), []).append(name)
    return found
