"""The costs of waiting tasks, and the units that their starts count for their tenants.

A start counts for its tenant by its *dominant share*: the largest part that it takes of what the pool allows of any
limit (Dominant Resource Fairness, Ghodsi and others 2011). The pool allows of a limit what all resources together do in
a second, by their own amounts and by those of their parents.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from emq_scheduling.choice.waiting import Waiting
from emq_scheduling.model import DEFAULT_COST, PERIODS_S, Costs, Pool
from emq_scheduling.pools import keyed, rules

Allowed = tuple[str, bool]
"""The name of a limit, and whether it counts what is in flight."""


class Costing:
    """The costs of one version of a pool; computed once for each type and resource.

    Args:
        pool: has passed `emq_scheduling.pools.rules.check`.

    Attributes:
        estimates: by type and limit, the factors by which charges differ from what the pool says; see `estimate`.
    """

    def __init__(self, pool: Pool, estimates: dict[str, dict[str, float]] | None = None) -> None:
        self._pool = pool
        self.estimates = estimates or {}
        self._costs: dict[tuple[str, str], Costs] = {}
        self._units: dict[tuple[str, str], float] = {}
        self._rates = Rates()
        self.follow(pool, pool.resources)

    def follow(self, pool: Pool, changed: Iterable[str]) -> None:
        """Take over a changed pool.

        Args:
            changed: names of resources that are new, different or gone.
        """
        self._pool = pool
        self.estimates = {kind: each for kind, each in self.estimates.items() if kind in pool.types}
        self._least = keyed.least_amounts(pool)
        self._costs.clear()
        self._units.clear()
        self._allowed = self._rates.follow(pool, changed)
        self.per_s = min(self._allowed.values(), default=1.0)

    def of_type(self, kind: str, resource: str) -> Costs:
        """Return the costs of a task of a type on a resource, without costs of its own."""
        costs = self._costs.get((kind, resource))
        if costs is None:
            costs = self._pool.costs(kind, resource)
            if factors := self.estimates.get(kind):
                costs = {name: self._estimated(resource, name, cost, factors) for name, cost in costs.items()}
            self._costs[kind, resource] = costs
        return costs

    def estimate(self, kind: str, factors: dict[str, float]) -> None:
        """Charge tasks of a type by these factors from now on; those that they do not name stay at 1."""
        self.estimates[kind] = factors
        for known in (self._costs, self._units):
            for key in [key for key in known if key[0] == kind]:
                del known[key]

    def _estimated(self, resource: str, name: str, cost: float, factors: Mapping[str, float]) -> float:
        """Return the estimated charge, at most what an unused limit always allows: a larger one might never fit."""
        amounts = [
            limit.at_once(amount)
            for each in self._pool.chain(resource)
            for limit in each.limits
            if limit.name == name
            for amount in rules.amounts_of(self._pool, each, limit)
            if amount > 0
        ]
        amounts += [most for key, most in self._least.items() if most > 0 and self._pool.limits[key].unit(key) == name]
        return min(cost * factors.get(name, 1.0), max(cost, min(amounts, default=cost)))

    def of(self, waiting: Waiting, resource: str) -> Costs:
        """Return the costs of a task on a resource."""
        costs = self.of_type(waiting.task.type, resource)
        if waiting.costs is None:
            return costs
        return {name: waiting.costs.get(name, cost) for name, cost in costs.items()}

    def units(self, waiting: Waiting, resource: str, costs: Costs) -> float:
        """Return the units of a start for its tenant: its dominant share, of which all tenants get `per_s` a second.

        A task that costs 1 of the tightest limit counts 1.
        """
        key = (waiting.task.type, resource)
        units = self._units.get(key) if waiting.costs is None else None
        if units is None:
            held_s = self._pool.types[waiting.task.type].duration_s
            parts = (
                cost * taken * (self.per_s / rate)
                for in_flight, taken in ((False, 1.0), (True, held_s))
                for name, cost in costs.items()
                if (rate := self._allowed.get((name, in_flight)))
            )
            units = max(parts, default=DEFAULT_COST)
            if waiting.costs is None:
                self._units[key] = units
        return units


def rates_of(pool: Pool) -> dict[Allowed, float]:
    """Return the units a second that the pool allows of each limit; of those in flight, the units at a time.

    Limits of one name are added up over resources beside each other, and a parent allows at most its own. Limits of 0
    are left out.
    """
    return Rates().follow(pool, pool.resources)


class Rates:
    """The units a second that each resource of a pool allows of each limit, with those below it."""

    def __init__(self) -> None:
        self._rates: dict[str, dict[Allowed, float]] = {}
        self._parents: dict[str, str | None] = {}
        self._below: dict[str | None, dict[str, None]] = {}

    def follow(self, pool: Pool, changed: Iterable[str]) -> dict[Allowed, float]:
        """Take over a changed pool; return the rates of all of it, as `rates_of`.

        Args:
            changed: names of resources that are new, different or gone.
        """
        changed = list(changed)
        due = {self._parents[name] or "" for name in changed if name in self._parents}
        for name in changed:
            if name in self._parents:
                del self._below[self._parents.pop(name)][name]
            if (resource := pool.resources.get(name)) is None:
                self._rates.pop(name, None)
            else:
                self._parents[name] = resource.parent
                self._below.setdefault(resource.parent, {})[name] = None
                due.add(name)
        lines = {each for name in due if name in pool.resources for each in pool.line(name)}
        for name in sorted(lines, key=lambda name: len(pool.parents(name)), reverse=True):  # those below come first
            self._rates[name] = self._of(pool, name)
        self._below = {name: below for name, below in self._below.items() if below}
        return {key: rate for key, rate in self._added(None).items() if rate > 0}

    def _of(self, pool: Pool, name: str) -> dict[Allowed, float]:
        resource = pool.resources[name]
        found = {} if resource.takes else self._added(name)
        for key in {(limit.name, limit.per == "in_flight") for limit in resource.limits}:
            if not all(key in self._rates[each] for each in self._below.get(name, ())):
                found.pop(key, None)  # one below it has no such limit, and may use all of this one
        for limit in resource.limits:
            key = limit.name, limit.per == "in_flight"
            rate = rules.most_of(pool, resource, limit) / PERIODS_S.get(limit.per, 1.0)
            found[key] = min(rate, found.get(key, math.inf))
        return found

    def _added(self, parent: str | None) -> dict[Allowed, float]:
        found: dict[Allowed, float] = {}
        for name in self._below.get(parent, ()):
            for key, rate in self._rates[name].items():
                found[key] = found.get(key, 0.0) + rate
        return found
