"""Budgets with topics that ask for starts as the dispatcher does, in a time of their own."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Mapping

from emq.quota.budget import Budget
from emq.quota.charge import BudgetedCounter, Charge
from emq.quota.counter import WindowCounter
from emq.topics.model import Topic, TopicOptions, split

GRID_S = 1 / 256
"""Parked groups wake on this grid, as in `emq.dispatch.parking`."""

VISIT = 64


class Guard:
    """The first group of a root."""

    stopping = False


def topic(name: str, qps: float = 10_000, budget: str | None = None, share: float = 1.0) -> Topic:
    """Return a topic as the catalog would make it."""
    return split(Topic(name, qps, options=TopicOptions(budget=budget, share=share)))


class Unit:
    """The budgets of one unit, of which the first is the root, on the host that owns the root's first group."""

    def __init__(self, budgets: Mapping[str, Topic], now: float = 0.0) -> None:
        self.guard = Guard()
        self.budgets: dict[str, Budget] = {}
        for name, its in budgets.items():
            budget = self.budgets[name] = Budget(name)
            parent = its.options.budget
            budget.follow(its, None if parent is None else self.budgets[parent], now)
            if parent is None:
                budget.begin(self.guard, now)

    def counter(self, its: Topic, own: WindowCounter | None = None, now: float = 0.0) -> BudgetedCounter:
        """Return the counter of a group of the topic."""
        if (budget := self.budgets.get(its.name)) is not None:
            return BudgetedCounter(own or WindowCounter(its.qps, now), Charge(budget, budget.own))
        budget = self.budgets[its.options.budget or ""]
        member = budget.member_of(its)
        return BudgetedCounter(own or WindowCounter(its.qps, now), Charge(budget, member))


class Asking:
    """Topics that ask as the dispatcher does: again after a grant, at the counter's next time after a refusal.

    Attributes:
        backlog: messages that wait, by topic; infinity for a backlog that never ends.
        starts: number of starts by topic and second.
        started_at: the times of the starts of each topic.
    """

    def __init__(self, counters: Mapping[str, BudgetedCounter]) -> None:
        self.counters = counters
        self.backlog: dict[str, float] = dict.fromkeys(counters, math.inf)
        self.starts: Counter[tuple[str, int]] = Counter()
        self.started_at: dict[str, list[float]] = {name: [] for name in counters}
        self._turns: list[tuple[float, int, str]] = []
        self._order = itertools.count()
        self._parked: set[str] = set()

    def publish(self, name: str, n: int, at: float) -> None:
        """Let `n` messages come at a time."""
        heapq.heappush(self._turns, (at, next(self._order), f"{n} {name}"))

    def run(self, since: float, until: float) -> None:
        """Ask for starts from `since` until `until`."""
        for name in self.counters:
            if self.backlog[name] and name not in self._parked:
                self._turn(name, since)
        while self._turns and self._turns[0][0] < until:
            now, _, name = heapq.heappop(self._turns)
            if " " in name:
                n, _, name = name.partition(" ")
                self.backlog[name] += int(n)
                if name in self._parked:
                    continue
            else:
                self._parked.discard(name)
            self._visit(name, now)

    def _visit(self, name: str, now: float) -> None:
        counter, backlog = self.counters[name], self.backlog[name]
        if not backlog:
            return
        granted = counter.reserve(int(min(VISIT, backlog)), now)
        if not granted:
            at = max(math.ceil(counter.next_at(now) / GRID_S) * GRID_S, now + GRID_S)
            self._turn(name, at)
            return
        self.backlog[name] -= granted
        self.starts[name, int(now)] += granted
        self.started_at[name] += [now] * granted
        if self.backlog[name]:
            self._turn(name, now)

    def _turn(self, name: str, at: float) -> None:
        if at < math.inf:
            self._parked.add(name)
            heapq.heappush(self._turns, (at, next(self._order), name))

    def of(self, name: str) -> int:
        """Return the number of starts of a topic."""
        return sum(n for (its, _), n in self.starts.items() if its == name)

    def in_second(self, second: int) -> int:
        """Return the number of starts of all topics in a second."""
        return sum(n for (_, its), n in self.starts.items() if its == second)
