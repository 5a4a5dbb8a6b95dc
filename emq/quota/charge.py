"""The budgets that each start of a topic is charged to, and the counters of its groups."""

from __future__ import annotations

from typing import NamedTuple

from emq.quota.budget import Budget, Member
from emq.quota.counter import Counter, LimitedCounter, own_counter
from emq.quota.throttle import Throttle, ThrottledCounter

HELD_S = 1.0
"""Seconds for which a topic counts as held by a budget after a refusal."""


class Charge(NamedTuple):
    """The nearest budget above a topic, and the topic's member there."""

    budget: Budget
    member: Member

    def held_by(self, now: float) -> str | None:
        """Return the name of the highest budget that holds the topic back now, or None."""
        budget, member = self
        name = None
        while member.refused_at > now - HELD_S:
            name = budget.name
            if budget.parent is None:
                break
            budget, member = budget.parent, budget.member
        return name


class BudgetedCounter(LimitedCounter):
    """A group's counter below the budgets of its topic: a start counts in all of them or in none."""

    __slots__ = ("_budget", "_member")

    def __init__(self, counter: Counter, charge: Charge) -> None:
        super().__init__(counter)
        self._budget, self._member = charge

    def reserve(self, n: int, now: float) -> int:
        wanted = min(n, self.counter.available(now))
        if wanted <= 0:
            return 0
        granted = self.counter.reserve(self._budget.room(self._member, wanted, now), now)
        if granted:
            self._budget.take(self._member, granted, now)
        return granted

    def available(self, now: float) -> int:
        own = self.counter.available(now)
        return min(own, self._budget.available(self._member, now)) if own > 0 else 0

    def release(self, n: int, at: float) -> None:
        self.counter.release(n, at)
        self._budget.give_back(self._member, n, at)

    def valid_until(self, now: float) -> float:
        return min(self.counter.valid_until(now), float(int(now) + 1))

    def next_at(self, now: float) -> float:
        if self.counter.available(now) <= 0:
            self._budget.note_waiting(self._member, now)
            return self.counter.next_at(now)
        return self._budget.next_at(self._member, now)


def limited(counter: Counter, charge: Charge | None, throttle: Throttle | None) -> Counter:
    """Return the group's own counter below the budgets and the throttle of its topic, if the topic has any."""
    counter = own_counter(counter)
    if charge is not None:
        counter = BudgetedCounter(counter, charge)
    return counter if throttle is None else ThrottledCounter(counter, throttle)
