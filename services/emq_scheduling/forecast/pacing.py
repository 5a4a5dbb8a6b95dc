"""How long tasks put off those behind them: a rough figure that costs microseconds.

A submit adds it to the prediction of the pool's host, for the tasks that the host has not seen yet.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from emq_scheduling.model import PERIODS_S, Costs, Pool
from emq_scheduling.pools import rules
from emq_scheduling.records.snapshot import Known

MOST_SHAPES = 8
"""Most different resources that are looked at; of more, every second, third and so on stands for those beside it."""

MOST_GAIN = 1e6
"""Largest factor by which tasks may start faster than by the pool's costs."""

_NOTHING: Mapping[str, float] = {}


class _Allowed(NamedTuple):
    """One limit: the units that it allows in a second, and the pool's cost of a task."""

    name: str
    per_s: float
    cost: float


class Pace:
    """The rate of the resources that take a type, each by its own limits and its parents'.

    Where a calendar changes limits, its largest amounts count. Resources whose limits let nothing start are left out.

    Attributes:
        is_able: whether some resource can start tasks of the type.
    """

    def __init__(self, pool: Pool, task_type: str) -> None:
        duration_s = max(pool.types[task_type].duration_s, 1e-3)
        shapes: Counter[tuple[_Allowed, ...]] = Counter()
        for name in pool.able(task_type):
            costs = pool.costs(task_type, name)
            allowed = tuple(
                _Allowed(
                    limit.name,
                    rules.most_of(pool, each, limit) / PERIODS_S.get(limit.per, duration_s),
                    costs[limit.name],
                )
                for each in pool.chain(name)
                for limit in each.limits
            )
            if all(each.per_s > 0 or not each.cost for each in allowed):
                shapes[allowed] += 1
        self.is_able = bool(shapes)
        step = max(1, math.ceil(len(shapes) / MOST_SHAPES))
        some = sorted(shapes.items())[(step - 1) // 2 :: step]
        count = sum(each for _, each in some)
        self._shapes = [(each, number * shapes.total() / count) for each, number in some]

    def per_s(self, own: Costs | None = None, known: Known | None = None) -> float:
        """Return about how many such tasks all resources together start in a second; infinity if nothing limits them.

        Args:
            own: costs that each task brings itself.
            known: what is known of the costs of the type.
        """
        brought = own or _NOTHING
        used = {name: each.used for name, each in known.items()} if known else _NOTHING
        settled = {name: each.own_used for name, each in known.items()} if known else _NOTHING

        def units(name: str, cost: float) -> float:
            if name in brought:
                return brought[name] * settled.get(name, 1.0)
            return cost * used.get(name, 1.0)

        return self._rate(units)

    def gain(self, known: Known) -> float:
        """Return how many times as fast as by the pool's costs the waiting tasks start: 1, 2, 4 and so on."""
        said = self.per_s()
        rate = self._rate(lambda name, cost: known[name].at_end(cost) if name in known else cost)
        return 2.0 ** math.floor(math.log2(min(rate / said, MOST_GAIN))) if 0 < said < rate else 1.0

    def _rate(self, units: Callable[[str, float], float]) -> float:
        total = 0.0
        for allowed, count in self._shapes:
            rates = (per_s / cost for name, per_s, said in allowed if (cost := units(name, said)) > 0)
            total += min(rates, default=math.inf) * count
        return total


class Unseen:
    """The tasks that this process has submitted since the latest snapshot of a pool's host."""

    def __init__(self) -> None:
        self._paces: dict[str, Pace] = {}
        self._able: set[str] = set()
        self._known: Mapping[str, Known] = {}
        self._usual_s: dict[str, float] = {}  # seconds for a task without costs of its own
        self._counts: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}

    def follow(self, pool: Pool) -> None:
        """Take over a changed pool."""
        self._paces = {kind: Pace(pool, kind) for kind in pool.types}
        self._able = {kind for kind, pace in self._paces.items() if pace.is_able}
        self._usual_s.clear()

    def look(self, known: Mapping[str, Known], *, is_new: bool) -> None:
        """Take over what a snapshot knows of the tasks' costs, by type.

        Args:
            is_new: it has seen the tasks that were submitted before.
        """
        self._known = known
        self._usual_s.clear()
        if is_new:
            self._counts.clear()
            self._seconds.clear()

    def add(self, task_type: str, own: Costs | None) -> None:
        """Count a task; `own`: the costs that it brings."""
        each_s = None if own else self._usual_s.get(task_type)
        if each_s is None:
            each_s = 1 / max(self._paces[task_type].per_s(own, self._known.get(task_type)), 1e-9)
            if not own:
                self._usual_s[task_type] = each_s
        self._counts[task_type] += 1
        self._seconds[task_type] = self._seconds.get(task_type, 0.0) + each_s

    def count(self, task_type: str) -> int:
        """Return the number of tasks of a type."""
        return self._counts[task_type]

    def seconds(self, task_type: str) -> float:
        """Return the seconds that the resources need for these tasks."""
        return self._seconds.get(task_type, 0.0)

    def gain(self, task_type: str) -> float:
        """Return the gain of a type; see `Pace.gain`."""
        known = self._known.get(task_type)
        return self._paces[task_type].gain(known) if known and task_type in self._paces else 1.0

    def is_able(self, task_type: str) -> bool:
        """Return whether some resource can start tasks of the type."""
        return task_type in self._able
