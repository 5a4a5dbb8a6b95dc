"""Counts starts beyond limits, from nothing but a list of starts: independent of the meters of the scheduler."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bench.scheduling.optimum import with_parents
from emq_scheduling.model import PERIODS_S, Limit, Pool

ROUNDING = 1e-6


class Start(NamedTuple):
    """One start, as the performer saw it. `at` in seconds since the epoch."""

    at: float
    kind: str
    resource: str


def overshoot(pool: Pool, starts: Iterable[Start]) -> float:
    """Return the units beyond the amounts, summed over all limits and all of their periods, wherever these begin.

    All limits with periods are counted, of resources and of all parents; days of the calendar as those of UTC.
    """
    return sum(beyond for _, beyond in overshoots(pool, starts))


def overshoots(pool: Pool, starts: Iterable[Start]) -> list[tuple[str, float]]:
    """Return the limits that were overshot, such as "acme requests/minute", and by how many units in all."""
    used: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    limits: dict[tuple[str, str, str], Limit] = {}
    for at, kind, resource in starts:
        costs = pool.costs(kind, resource)
        for owner in with_parents(pool, resource):
            for limit in pool.resources[owner].limits:
                if limit.counts is not None:
                    key = owner, limit.name, limit.per
                    limits[key] = limit
                    used[key].append((at, costs[limit.name]))
    found = []
    for (owner, name, per), units in used.items():
        beyond = _beyond(sorted(units), limits[owner, name, per])
        if beyond > 0:
            found.append((f"{owner} {name}/{per}", beyond))
    return sorted(found)


def _beyond(used: Sequence[tuple[float, float]], limit: Limit) -> float:
    """Return the units beyond a limit, of starts in their order."""
    period_s = PERIODS_S[limit.per]
    if limit.counts == "rolling":
        return _beyond_any(used, period_s, limit.amount)
    if limit.counts == "bucket":
        return _beyond_bucket(used, limit.amount / period_s, limit.at_once(limit.amount))
    return _beyond_clock(used, period_s, limit.amount)


def _beyond_any(used: Sequence[tuple[float, float]], period_s: float, amount: float) -> float:
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


def _beyond_clock(used: Iterable[tuple[float, float]], period_s: float, amount: float) -> float:
    """Return the units beyond the amount, summed over all periods of the clock."""
    periods: dict[int, float] = defaultdict(float)
    for at, units in used:
        periods[int(at // period_s)] += units
    return sum(units - amount for units in periods.values() if units > amount + ROUNDING)


def _beyond_bucket(used: Sequence[tuple[float, float]], per_s: float, burst: float) -> float:
    """Return the units that were not in a bucket, full at first, summed over all starts."""
    left, before, beyond = burst, used[0][0], 0.0
    for at, units in used:
        left, before = min(burst, left + (at - before) * per_s) - units, at
        if left < -ROUNDING:
            beyond -= left
    return beyond


def work(pool: Pool, starts: Iterable[Start], since: float, until: float, unit: str = "requests") -> float:
    """Return the units of limits of that name that the starts of a time were charged."""
    return sum(pool.costs(kind, resource)[unit] for at, kind, resource in starts if since <= at < until)
