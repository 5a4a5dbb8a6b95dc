"""Counts starts beyond limits, from nothing but a list of starts: independent of the meters of the scheduler."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from bench.scheduling.optimum import with_parents
from emq_scheduling.model import Pool

CELLS = {"second": (1, 1), "minute": (1, 60), "hour": (60, 60)}
"""Length of the cells of a limit in seconds, and how many consecutive ones are within the amount together."""

ROUNDING = 1e-6


class Start(NamedTuple):
    """One start, as the performer saw it. `at` in seconds since the epoch."""

    at: float
    kind: str
    resource: str


def overshoot(pool: Pool, starts: Iterable[Start]) -> float:
    """Return the units beyond the amounts, summed over all limits and all of their periods, wherever these begin.

    Limits per second, minute and hour are counted, of resources and of all parents.
    """
    return sum(beyond for _, beyond in overshoots(pool, starts))


def overshoots(pool: Pool, starts: Iterable[Start]) -> list[tuple[str, float]]:
    """Return the limits that were overshot, such as "acme requests/minute", and by how many units in all."""
    used: dict[tuple[str, str, str], Counter[int]] = defaultdict(Counter)
    amounts: dict[tuple[str, str, str], float] = {}
    for at, kind, resource in starts:
        costs = pool.costs(kind, resource)
        for owner in with_parents(pool, resource):
            for limit in pool.resources[owner].limits:
                if limit.per in CELLS:
                    key = owner, limit.name, limit.per
                    amounts[key] = limit.amount
                    used[key][int(at // CELLS[limit.per][0])] += costs[limit.name]  # type: ignore[assignment]
    found = []
    for (owner, name, per), cells in used.items():
        beyond = _beyond(cells, CELLS[per][1], amounts[owner, name, per])
        if beyond > 0:
            found.append((f"{owner} {name}/{per}", beyond))
    return sorted(found)


def _beyond(cells: Counter[int], length: int, amount: float) -> float:
    """Return the units beyond the amount, summed over all windows of so many consecutive cells."""
    total = beyond = 0.0
    for cell in range(min(cells), max(cells) + 1):
        total += cells.get(cell, 0) - cells.get(cell - length, 0)
        if total > amount + ROUNDING:
            beyond += total - amount
    return beyond


def work(pool: Pool, starts: Iterable[Start], since: float, until: float, unit: str = "requests") -> float:
    """Return the units of limits of that name that the starts of a time were charged."""
    return sum(pool.costs(kind, resource)[unit] for at, kind, resource in starts if since <= at < until)
