"""Predicts waits: a forecast of a pool on a virtual clock, by counts instead of tasks.

Both functions simulate (`emq_scheduling.forecast.fluid`) from a given state of the pool.

- `predicted_waits` returns the wait of a new task of each type. It goes from event to event: until the backlog of a
  type is gone, or amounts change. It runs each second, so its steps may grow by a quarter of the simulated time.
- `forecast` runs until no task waits, with steps of a two-hundredth of the simulated time, and returns waits, starts
  and utilisation.
"""

from __future__ import annotations

import bisect
import math

import msgspec

from emq_scheduling.forecast.fluid import Fluid
from emq_scheduling.forecast.fluid_dealing import Books
from emq_scheduling.forecast.fluid_plan import Plan
from emq_scheduling.model import Pool
from emq_scheduling.records.snapshot import LOOK_AHEAD_S, PoolState

HORIZON_S = 7 * 86_400.0
"""Seconds after which a forecast ends even if tasks still wait."""

FINE = 0.005
COARSE = 0.25
"""Longest step, as a part of the time since the beginning."""

SHORTEST_S = 0.05
FIRST_S = 1.0
"""Shortest step, and the longest one at the beginning."""

PROBE = 1e-3
"""Tasks of each type that are added to measure the wait of the next one."""

MOST_GROUPS = 200
"""Most groups of resources in a forecast."""

DRAINED = 1e-3
"""Tasks of a type that count as none at the end of a forecast."""


class TypeForecast(msgspec.Struct, frozen=True):
    """The forecast of the tasks of one type: those that wait now, and those that come until its end.

    Attributes:
        mean_s, p50_s, p99_s: seconds from now, or from when a task is submitted, until it starts; of those that start.
        started: tasks that start.
        left: tasks that still wait when the forecast ends.
        expired: tasks that wait for longer than their time to live.
    """

    mean_s: float = 0.0
    p50_s: float = 0.0
    p99_s: float = 0.0
    started: float = 0.0
    left: float = 0.0
    expired: float = 0.0


class Forecast(msgspec.Struct, frozen=True):
    """The forecast of a pool in which only the calendars change.

    Attributes:
        over_s: seconds that the forecast covers.
        drained_s: seconds until no task waits any more; None if tasks still wait when the forecast ends.
        types: by name.
        starts: tasks that start, by resource.
        utilisation: the part of its own tightest limit that each resource uses, 0 to 1, by resource; without those that
            have no limits of their own, and without parents.
    """

    over_s: float
    drained_s: float | None
    types: dict[str, TypeForecast]
    starts: dict[str, float]
    utilisation: dict[str, float]


class Predictor:
    """Predicts the waits of one pool; make another one when the pool changes."""

    def __init__(self, pool: Pool) -> None:
        self._plan = Plan(pool)

    def waits(self, state: PoolState, now: float) -> dict[str, float]:
        """See `predicted_waits`."""
        fluid = Fluid(self._plan, state, now)
        found: dict[int, float] = {}
        needs = [backlog.waiting + PROBE for backlog in fluid.backlogs]
        for backlog in fluid.backlogs:
            backlog.waiting += PROBE
            backlog.first += PROBE
        rates: Books | None = None
        while len(found) < len(needs) and fluid.now < LOOK_AHEAD_S:
            began, gone = fluid.now, [backlog.gone for backlog in fluid.backlogs]
            rates = step = fluid.step(_until_next(fluid, rates or fluid.trial(FIRST_S), needs, COARSE))
            for index, need in enumerate(needs):
                if index not in found and gone[index] + step.starts[index] >= need * (1 - 1e-9) - 1e-9:
                    part = (need - gone[index]) / max(step.possible[index], 1e-12)
                    found[index] = began + step.dt * min(1.0, max(0.0, part))
                    rates = None  # the type's room goes to others, so the rates are new
        return {name: found.get(index, math.inf) for index, name in enumerate(self._plan.types)}


def predicted_waits(pool: Pool, state: PoolState, now: float) -> dict[str, float]:
    """Return, for each type, the seconds that a new task would wait; infinity if more than `LOOK_AHEAD_S`.

    A caller that asks repeatedly keeps a `Predictor`.

    Args:
        pool: has passed `emq_scheduling.pools.rules.check`.
        now: seconds since the epoch; changes since `state.at` are unknown.
    """
    return Predictor(pool).waits(state, now)


def wait_if_raised(pool: Pool, state: PoolState, now: float, task_type: str, allowed_s: float) -> float:
    """Return the predicted wait of a task whose own deadline raises it to the `near_priority` of its type.

    Assumes the same deadline for all waiting tasks of the type. Arguments as for `predicted_waits`.

    Args:
        allowed_s: seconds from its submit to its deadline.
    """
    kind = msgspec.structs.replace(pool.types[task_type], longest_wait_s=allowed_s)
    raising = msgspec.structs.replace(pool, types={**pool.types, task_type: kind})
    return predicted_waits(raising, state, now)[task_type]


def forecast(pool: Pool, state: PoolState, horizon_s: float = HORIZON_S) -> Forecast:
    """Return the forecast of the tasks that wait now, and of those that come until all have started.

    Args:
        pool: has passed `emq_scheduling.pools.rules.check`.
        horizon_s: end of the forecast if tasks still wait then, in seconds.
    """
    fluid = Fluid(Plan(pool, most_groups=MOST_GROUPS), state, state.at)
    waits = [_Waits() for _ in fluid.backlogs]
    step: Books | None = None
    while fluid.now < horizon_s:
        if all(each.waiting <= DRAINED for each in fluid.backlogs) and step is not None:
            break
        began, gone = fluid.now, [each.gone for each in fluid.backlogs]
        dt = _until_next(fluid, step, [each.first for each in fluid.backlogs], FINE)
        step = fluid.step(min(dt, horizon_s - fluid.now))
        for backlog, first, tasks, note in zip(fluid.backlogs, gone, step.starts, waits, strict=True):
            note.add(backlog.first, backlog.rate, (first, first + tasks), (began, fluid.now))
    drained = all(each.waiting <= DRAINED for each in fluid.backlogs)
    starts, utilisation = _by_resource(fluid)
    return Forecast(
        over_s=fluid.now,
        drained_s=fluid.now if drained else None,
        types={
            name: note.forecast(backlog.waiting, backlog.expired)
            for name, note, backlog in zip(pool.types, waits, fluid.backlogs, strict=True)
        },
        starts=starts,
        utilisation=utilisation,
    )


def _until_next(fluid: Fluid, last: Books | None, needs: list[float], part: float) -> float:
    """Return the length of the next step: until a type's tasks have started, or amounts change, at most a part of the
    time since the beginning."""
    dt = max(FIRST_S, fluid.now * part)
    if last is not None:
        for backlog, starts in zip(fluid.backlogs, last.starts, strict=True):
            faster = starts / last.dt - backlog.rate
            if backlog.waiting > 0 and faster > 0:
                dt = min(dt, max(backlog.waiting / faster, SHORTEST_S))
        for backlog, starts, need in zip(fluid.backlogs, last.starts, needs, strict=True):
            if starts > 0 and need > backlog.gone:
                dt = min(dt, max((need - backlog.gone) * last.dt / starts, SHORTEST_S))
    return min(dt, max(fluid.next_change() - fluid.now, SHORTEST_S / 100))


class _Waits:
    """Waits of the tasks of one type, as ranges in which they lie evenly."""

    def __init__(self) -> None:
        self._ranges: list[tuple[float, float, float]] = []  # from, to, tasks

    def add(self, first: float, rate: float, numbers: tuple[float, float], times: tuple[float, float]) -> None:
        """Note that the tasks of these numbers started evenly between these times."""
        begin, end = numbers
        if end - begin <= 1e-9:
            return
        pace = (times[1] - times[0]) / (end - begin)
        if begin < first:
            tasks = min(first, end) - begin
            self._ranges.append((times[0], times[0] + tasks * pace, tasks))
        if end > first and rate > 0:
            since = max(first, begin)
            waits = [max(0.0, times[0] + (number - begin) * pace - (number - first) / rate) for number in (since, end)]
            self._ranges.append((min(waits), max(waits), end - since))

    def forecast(self, left: float, expired: float) -> TypeForecast:
        count = sum(tasks for _, _, tasks in self._ranges)
        if count <= 0:
            return TypeForecast(left=left, expired=expired)
        mean_s = sum((low + high) / 2 * tasks for low, high, tasks in self._ranges) / count
        return TypeForecast(mean_s, self._quantile(0.5, count), self._quantile(0.99, count), count, left, expired)

    def _quantile(self, part: float, count: float) -> float:
        """Return the wait that this part of the tasks does not exceed."""
        edges = sorted({edge for low, high, _ in self._ranges for edge in (low, high)})
        at = bisect.bisect_left(edges, part * count, key=self._below)
        if at == 0:
            return edges[0]
        before, after = self._below(edges[at - 1]), self._below(edges[min(at, len(edges) - 1)])
        upper = edges[min(at, len(edges) - 1)]
        if after <= before:
            return upper
        return edges[at - 1] + (upper - edges[at - 1]) * min(1.0, max(0.0, (part * count - before) / (after - before)))

    def _below(self, wait: float) -> float:
        return sum(
            tasks if high <= wait else tasks * (wait - low) / (high - low)
            for low, high, tasks in self._ranges
            if low < wait or high <= wait
        )


def _by_resource(fluid: Fluid) -> tuple[dict[str, float], dict[str, float]]:
    starts = {name: 0.0 for name, resource in fluid.plan.pool.resources.items() if resource.takes}
    used: dict[str, float] = {}
    for group, tasks in zip(fluid.groups, fluid.starts, strict=True):
        parts = [budget.total / budget.possible for index in group.own if (budget := fluid.budgets[index]).possible > 0]
        for name, part in fluid.parts(group).items():
            starts[name] = tasks * part
            if parts:
                used[name] = min(1.0, max(parts))
    return starts, used


__all__ = ["Forecast", "Predictor", "TypeForecast", "forecast", "predicted_waits", "wait_if_raised"]
