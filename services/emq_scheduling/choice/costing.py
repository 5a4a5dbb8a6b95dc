"""The costs of waiting tasks, and the units that their starts count for their tenants."""

from __future__ import annotations

from emq_scheduling.choice.waiting import Waiting
from emq_scheduling.model import DEFAULT_COST, PERIODS_S, Costs, Pool


class Costing:
    """The costs of one version of a pool; computed once for each type and resource.

    Args:
        pool: has passed `emq_scheduling.pools.rules.check`.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._costs: dict[tuple[str, str], Costs] = {}
        self._units: dict[tuple[str, str], float] = {}

    def of_type(self, kind: str, resource: str) -> Costs:
        """Return the costs of a task of a type on a resource, without costs of its own."""
        costs = self._costs.get((kind, resource))
        if costs is None:
            costs = self._costs[kind, resource] = self._pool.costs(kind, resource)
        return costs

    def of(self, waiting: Waiting, resource: str) -> Costs:
        """Return the costs of a task on a resource."""
        costs = self.of_type(waiting.task.type, resource)
        if waiting.costs is None:
            return costs
        return {name: waiting.costs.get(name, cost) for name, cost in costs.items()}

    def units(self, waiting: Waiting, resource: str, costs: Costs) -> float:
        """Return the units of a start for its tenant: its dominant share of the limits of the resource and its parents.

        This is the largest part that it takes of any limit, in units of one request under the tightest limit.
        """
        key = (waiting.task.type, resource)
        units = self._units.get(key) if waiting.costs is None else None
        if units is None:
            limits = [limit for each in self._pool.chain(resource) for limit in each.limits if limit.amount > 0]
            rates = [(limit.name, limit.amount / PERIODS_S.get(limit.per, 1.0)) for limit in limits]
            largest = max((costs[name] / rate for name, rate in rates), default=DEFAULT_COST)
            units = largest * min((rate for _, rate in rates), default=1.0)
            if waiting.costs is None:
                self._units[key] = units
        return units
