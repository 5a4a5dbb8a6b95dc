"""What tasks cost of late: the costs that they bring themselves, and the units that they have really used.

Each figure is a mean over about the last `LATEST` tasks of a type. The pool's own costs count as the first `PRIOR` of
them, so that a single odd task moves nothing by much.

The mean use of tasks without costs of their own is the *estimate* of their type: `TaskType.learns` says whether they
are charged by it. It stays within `MOST` times what the pool says, whatever performers report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from emq_scheduling.choice.costing import Costing
from emq_scheduling.choice.matching import Matching
from emq_scheduling.choice.sums import Part
from emq_scheduling.model import DEFAULT_COST, Costs, Pool, TaskType
from emq_scheduling.records.snapshot import Known, TypeCost

LATEST = 100
PRIOR = 10
"""Number of tasks in a mean, and of those that the pool's costs count for."""

MOST = 10.0
"""Largest factor, up or down, by which an estimate differs from what the pool says."""

MOVED = 0.05
"""The part by which an estimate must move before tasks are charged by it: then costs are computed again."""

ODD = 100.0
"""Largest part of the present mean that one report counts as, so that an odd one is soon forgotten."""

UTMOST = 1e6
"""Largest factor, up or down, by which forecasts believe that use differs from what was said."""


class _Use:
    """The mean use of tasks, and what was said before: by the task itself, or by the pool."""

    __slots__ = ("_count", "_said", "_used")

    def __init__(self, said: float, factor: float = 1.0) -> None:
        self._count = PRIOR
        self._said, self._used = said, said * factor

    def add(self, said: float, used: float) -> None:
        self._count = min(LATEST, self._count + 1)
        self._said += (said - self._said) / self._count
        believed = min(max(used, said / UTMOST), said * UTMOST, self._used * ODD)
        self._used += (believed - self._used) / self._count

    @property
    def factor(self) -> float:
        return self._used / self._said


class _Brought:
    """The costs that tasks of a type bring themselves."""

    __slots__ = ("_count", "_means")

    def __init__(self, means: dict[str, list[float]] | None = None) -> None:
        """Begin with these means: by limit, the fields of a `Part`."""
        self._count = PRIOR if means else 0
        self._means = means or {}

    def add(self, costs: Costs, limits: Iterable[str]) -> None:
        self._count = min(LATEST, self._count + 1)
        for name in limits:
            mean, units = self._means.get(name), costs.get(name)
            if mean is None:
                if units is None:
                    continue
                mean = self._means[name] = [0.0, 0.0]
            mean[0] += ((units is not None) - mean[0]) / self._count
            mean[1] += ((units or 0.0) - mean[1]) / self._count

    def keep(self, limits: Set[str]) -> None:
        self._means = {name: mean for name, mean in self._means.items() if name in limits}

    def parts(self) -> dict[str, Part]:
        return {name: Part(named, units) for name, (named, units) in self._means.items()}


class Estimates:
    """What is known of the costs of a pool's types: one entry for each type and limit at most."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._brought: dict[str, _Brought] = {}
        self._used: dict[str, dict[tuple[str, bool], _Use]] = {}  # by type; by limit and whether tasks bring the cost

    def restore(self, costs: Mapping[str, Known]) -> None:
        """Begin with what the pool's former host knew, by type."""
        for kind, known in costs.items():
            if kind in self._pool.types:
                usual = self._pool.types[kind].costs
                self._used[kind] = {
                    (name, brought): _Use(said, factor)
                    for name, each in known.items()
                    for brought, said, factor in (
                        (False, usual.get(name, DEFAULT_COST), each.used),
                        (True, each.own / each.named if each.named else 0.0, each.own_used),
                    )
                    if said > 0 and factor > 0
                }
                if means := {name: [each.named, each.own] for name, each in known.items() if each.named}:
                    self._brought[kind] = _Brought(means)

    def follow(self, pool: Pool) -> None:
        """Take over a changed pool: forget limits that are gone, and types whose costs have changed."""
        limits = {limit.name for each in pool.resources.values() for limit in each.limits}
        for kind in {*self._brought, *self._used}:
            before, now = self._pool.types.get(kind), pool.types.get(kind)
            if before is None or now is None or before.costs != now.costs:
                self._brought.pop(kind, None)
                self._used.pop(kind, None)
        for means in self._brought.values():
            means.keep(limits)
        for kind, uses in self._used.items():
            self._used[kind] = {key: use for key, use in uses.items() if key[0] in limits}
        self._pool = pool

    def started(self, kind: str, own: Costs | None, limits: Iterable[str]) -> None:
        """Note a start; `own`: the costs that the task brought, `limits`: the names of all limits that count it."""
        found = self._brought.get(kind)
        if found is None:
            if own is None:
                return
            found = self._brought[kind] = _Brought()
        found.add(own or {}, limits)

    def ended(self, kind: str, resource: str, own: Costs | None, used: Costs) -> None:
        """Note what a task that is done has used of some limits."""
        if kind not in self._pool.types or resource not in self._pool.resources:
            return
        uses = self._used.setdefault(kind, {})
        for name, said in self._pool.costs(kind, resource).items():
            brought = own is not None and name in own
            said = own[name] if own is not None and brought else said
            if name in used and said > 0:
                if (name, brought) not in uses:
                    uses[name, brought] = _Use(said)
                uses[name, brought].add(said, used[name])

    def apply(self, costing: Costing) -> None:
        """Let tasks be charged by the present estimates, where these have moved."""
        for kind in {*self._used, *costing.estimates} & self._pool.types.keys():
            now, before = self.factors(kind), costing.estimates.get(kind, {})
            if any(abs(now.get(name, 1.0) / before.get(name, 1.0) - 1.0) > MOVED for name in {*now, *before}):
                costing.estimate(kind, now)

    def factors(self, kind: str) -> dict[str, float]:
        """Return the factors by which the charges of a type differ from what the pool says, by limit."""
        least, most = bounds_of(self._pool.types[kind])
        uses = self._used.get(kind, {})
        found = {name: min(most, max(least, use.factor)) for (name, brought), use in uses.items() if not brought}
        return {name: factor for name, factor in found.items() if factor != 1.0}

    def costs(self, kind: str, waiting: Mapping[str, int], matching: Matching) -> dict[str, TypeCost]:
        """Return what is known of the costs of a type, by limit.

        Args:
            waiting: tasks by tenant, in the store and on this host.
        """
        late = found.parts() if (found := self._brought.get(kind)) is not None else {}
        here = dict(matching.window.sums.tenants(kind))
        counts = {name: max(waiting.get(name, 0), each.count) for name, each in here.items()}
        others = sum(waiting.values()) - sum(waiting.get(name, 0) for name in here)
        parts = _together(counts, {tenant: each.parts() for tenant, each in here.items()}, others, late)
        charged = matching.costing.estimates.get(kind, {})
        uses = self._used.get(kind, {})
        made = {}
        for name in {*parts, *(name for name, _ in uses)}:
            own, other = uses.get((name, True)), uses.get((name, False))
            named, units = parts.get(name, Part())
            made[name] = TypeCost(
                named,
                units,
                1.0 if own is None else own.factor,
                charged.get(name, 1.0),
                charged.get(name, 1.0) if other is None else other.factor,
            )
        return made


def bounds_of(kind: TaskType) -> tuple[float, float]:
    """Return the least and the largest factor by which a type's estimate differs from what the pool says."""
    return (1.0 / MOST if kind.learns == "both" else 1.0), (1.0 if kind.learns == "no" else MOST)


def _together(
    waiting: Mapping[str, int], parts: Mapping[str, Mapping[str, Part]], others: int, late: Mapping[str, Part]
) -> Mapping[str, Part]:
    """Return the costs that all tasks of a type bring, by limit.

    Tasks of a tenant that are still in the store count as those that the host has; those of the other tenants, of which
    it has none, as the latest ones.
    """
    total = others + sum(waiting.values())
    if not total or not (late or any(parts.values())):
        return late
    found: dict[str, Part] = {}
    for count, each in (*((count, parts[tenant]) for tenant, count in waiting.items()), (others, late)):
        for name, part in each.items():
            named, units = found.get(name, Part())
            found[name] = Part(named + part.named * count / total, units + part.units * count / total)
    return found
