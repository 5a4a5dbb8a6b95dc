"""Counts starts beyond limits, from nothing but a list of starts: independent of the meters of the scheduler."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bench.scheduling.optimum import with_parents
from emq_scheduling.model import Pool

PERIODS_S = {"minute": 60.0, "hour": 3600.0}
"""Periods of which each is within the amount, wherever it begins. Limits per second count the clock's seconds."""

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
    used: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    amounts: dict[tuple[str, str, str], float] = {}
    for at, kind, resource in starts:
        costs = pool.costs(kind, resource)
        for owner in with_parents(pool, resource):
            for limit in pool.resources[owner].limits:
                if limit.per in PERIODS_S or limit.per == "second":
                    key = owner, limit.name, limit.per
                    amounts[key] = limit.amount
                    used[key].append((at, costs[limit.name]))
    found = []
    for (owner, name, per), units in used.items():
        amount = amounts[owner, name, per]
        beyond = _beyond(sorted(units), PERIODS_S[per], amount) if per in PERIODS_S else _beyond_seconds(units, amount)
        if beyond > 0:
            found.append((f"{owner} {name}/{per}", beyond))
    return sorted(found)


def _beyond(used: Sequence[tuple[float, float]], period_s: float, amount: float) -> float:
    """Return the units beyond the amount at each start, counting back one period, summed up."""
    total = beyond = 0.0
    first = 0
    for at, units in used:
        total += units
        while used[first][0] <= at - period_s:
            total -= used[first][1]
            first += 1
        if total > amount + ROUNDING:
            beyond += total - amount
    return beyond


def _beyond_seconds(used: Iterable[tuple[float, float]], amount: float) -> float:
    """Return the units beyond the amount, summed over all seconds of the clock."""
    seconds: dict[int, float] = defaultdict(float)
    for at, units in used:
        seconds[int(at)] += units
    return sum(units - amount for units in seconds.values() if units > amount + ROUNDING)


def work(pool: Pool, starts: Iterable[Start], since: float, until: float, unit: str = "requests") -> float:
    """Return the units of limits of that name that the starts of a time were charged."""
    return sum(pool.costs(kind, resource)[unit] for at, kind, resource in starts if since <= at < until)
