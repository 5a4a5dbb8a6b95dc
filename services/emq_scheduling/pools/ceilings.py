"""The most that tasks may ever cost, so that one which could never start is refused, or put back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from emq_scheduling.model import Costs, Pool
from emq_scheduling.pools import rules


class Over(NamedTuple):
    """A limit that never has room for a task.

    Attributes:
        unit: the name of the units.
        units: of the task.
        most: units that the limit ever allows at once.
        limit: the name of a limit by key, whose account of the task this is; None if no able resource allows more.
    """

    unit: str
    units: float
    most: float
    limit: str | None = None


class Ceilings:
    """The most that tasks may cost, by one version of a pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._most: dict[str, list[tuple[tuple[str, float], ...]]] = {}

    def above(self, kind: str, costs: Costs, tenant: str, keys: Mapping[str, str] | None) -> Over | None:
        """Return a limit that never has room for a task with costs of its own; None if the task may start some day.

        Limits of 0 count as those that may be raised. If no resource takes the type, only limits by key count.
        """
        for name, limit in self._pool.limits.items():
            if limit.counts_type(kind):
                amount, unit = limit.amount_of(limit.key_of(tenant, keys)), limit.unit(name)
                most, units = limit.limit(name, amount).at_once(amount), costs.get(unit, 0.0)
                if 0 < most < units:
                    return Over(unit, units, most, name)
        found: Over | None = None
        for amounts in self._of(kind):
            over = [Over(name, units, most) for name, most in amounts if (units := costs.get(name, 0.0)) > most]
            if not over:
                return None
            if found is None or over[0].most > found.most:
                found = over[0]
        return found

    def _of(self, kind: str) -> list[tuple[tuple[str, float], ...]]:
        """Return the most units of each limit, for each resource that takes the type; equal ones once."""
        found = self._most.get(kind)
        if found is None:
            found = self._most[kind] = _most_on_able(self._pool, kind)
        return found


def _most_on_able(pool: Pool, kind: str) -> list[tuple[tuple[str, float], ...]]:
    """Return the most units of each limit that a task may cost, for each resource that takes the type.

    The limits of its parents are among them. Resources with the same amounts count once.
    """
    found: dict[tuple[tuple[str, float], ...], None] = {}
    for name in pool.able(kind):
        chain = pool.chain(name)
        amounts = tuple(
            (limit.name, limit.at_once(rules.most_of(pool, each, limit))) for each in chain for limit in each.limits
        )
        found[amounts] = None
    return list(found)
