"""The most work that a pool can do in a second, as the optimum of a linear program.

The variables are x[type, resource], starts a second of a type on a resource that takes it. Each limit of a resource
and of each parent is one row: the units that all x below it use in a second, at most the amount divided by the period.
Of all x that respect these rows, the program finds those with the most charged units a second. It knows no priorities,
no whole tasks and no whole seconds, so nothing can do more for long.
"""

from __future__ import annotations

from collections import defaultdict

from emq_scheduling.model import DEFAULT_COST, PERIODS_S, Pool


def most_work(pool: Pool, unit: str = "requests") -> float:
    """Return the most units of limits of the name `unit` that the tasks of all types together can be charged a second.

    Args:
        pool: has passed `rules.check`. Each task is charged once, whatever the number of nested limits.
    """
    from scipy.optimize import linprog

    columns = [(kind, name) for name, resource in pool.resources.items() for kind in resource.takes]
    rows: dict[tuple[str, str, str], dict[int, float]] = defaultdict(dict)
    rates: dict[tuple[str, str, str], float] = {}
    for column, (kind, name) in enumerate(columns):
        costs = pool.costs(kind, name)
        for owner in with_parents(pool, name):
            for limit in pool.resources[owner].limits:
                row = owner, limit.name, limit.per
                held_s = pool.types[kind].duration_s if limit.per == "in_flight" else 1.0
                rows[row][column] = costs[limit.name] * held_s
                rates[row] = limit.amount / PERIODS_S.get(limit.per, 1.0)
    found = linprog(
        [-pool.costs(kind, name).get(unit, DEFAULT_COST) for kind, name in columns],
        A_ub=[[row.get(column, 0.0) for column in range(len(columns))] for row in rows.values()],
        b_ub=[rates[row] for row in rows],
        bounds=(0, None),
    )
    if not found.success:
        raise RuntimeError(f"the linear program has no optimum: {found.message}")
    return float(-found.fun)


def with_parents(pool: Pool, name: str) -> list[str]:
    """Return the names of the resource and of its parents, the nearest first."""
    found = []
    at: str | None = name
    while at is not None:
        found.append(at)
        at = pool.resources[at].parent
    return found
