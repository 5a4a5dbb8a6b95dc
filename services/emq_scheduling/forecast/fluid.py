"""A fluid simulation of a pool, which counts tasks instead of running each.

A step of the simulation goes through the types in the order of the real matching (`emq_scheduling.choice.matching`):
guaranteed shares first; then by priority, and within a priority first tasks whose deadline is near, then by time of
submit. Each type starts on the resources that have room (`emq_scheduling.forecast.fluid_dealing`), as far as all limits
allow (`emq_scheduling.forecast.fluid_budgets`).

Times are seconds from the beginning of the simulation, the time of its first state. Closed resources stay closed,
arrivals go on at their rates.
"""

from __future__ import annotations

import math

from emq_scheduling.choice.window import NEAR
from emq_scheduling.forecast import fluid_times
from emq_scheduling.forecast.fluid_budgets import BucketBudget, Budget, DayBudget, FlightBudget
from emq_scheduling.forecast.fluid_dealing import LITTLE, MOST, Books, Dealing
from emq_scheduling.forecast.fluid_plan import Group, Plan, Spec
from emq_scheduling.model import PERIODS_S, TaskType
from emq_scheduling.records.snapshot import PoolState

UNKNOWN_S = 1.0
"""Assumed seconds in which the first tasks of a type came, if no others come."""


class Backlog:
    """The waiting tasks of one type, the oldest first.

    Attributes:
        first: tasks that waited at the beginning.
        gone: tasks that have started or expired since.
        waiting: tasks that wait now.
    """

    __slots__ = ("_age_s", "duration_s", "expired", "first", "gone", "kind", "rate", "waiting")

    def __init__(self, kind: TaskType, waiting: float, rate: float, duration_s: float) -> None:
        self.kind = kind
        self.first = self.waiting = waiting
        self.rate = rate
        self.duration_s = max(duration_s, 1e-6)
        self.gone = self.expired = 0.0
        # The age of the first tasks is unknown: assume that they came at the present rate.
        self._age_s = waiting / rate if rate > 0 else UNKNOWN_S

    def submitted(self, number: float) -> float:
        """Return when the task of that number was submitted: below 0 for those that waited at the beginning."""
        if number < self.first:
            return -self._age_s * (1.0 - number / self.first)
        return (number - self.first) / self.rate if self.rate > 0 else math.inf

    def order(self, now: float) -> tuple[float, int, float]:
        """Return the place of the oldest task among those of other types."""
        head = self.submitted(self.gone)
        kind = self.kind
        if kind.longest_wait_s is not None:
            deadline = head + kind.longest_wait_s
            if now >= deadline - max(self.duration_s, NEAR * kind.longest_wait_s):
                near = kind.priority if kind.near_priority is None else min(kind.priority, kind.near_priority)
                return near, 0, deadline
        return kind.priority, 1, head

    def go(self, tasks: float) -> None:
        """Let the oldest tasks go, because they start or expire."""
        self.gone += tasks
        self.waiting = max(0.0, self.waiting - tasks)

    def expire(self, now: float) -> None:
        """Let the tasks go that have waited for longer than their time to live, from the beginning on."""
        ttl_s = self.kind.ttl_s
        if ttl_s is None or now < ttl_s:
            return
        late = self.first + self.rate * (now - ttl_s) - self.gone
        if late > 0:
            late = min(late, self.waiting)
            self.expired += late
            self.go(late)


class Fluid:
    """A simulation of one pool.

    Args:
        state: waiting and running tasks and used units at the beginning.
        now: the beginning; seconds since the epoch.

    Attributes:
        now: seconds since the beginning.
        backlogs: by the index of the type.
        groups: those with a resource that is open.
        starts: tasks started by each group.
    """

    def __init__(self, plan: Plan, state: PoolState, now: float) -> None:
        pool = plan.pool
        self.plan = plan
        self.now = 0.0
        self._at = now
        self._durations = {name: state.durations.get(name, kind.duration_s) for name, kind in pool.types.items()}
        self.backlogs = [
            Backlog(
                kind,
                max(0, state.waiting.get(name, 0) - state.held.get(name, 0)),
                state.arrivals.get(name, 0.0),
                self._durations[name],
            )
            for name, kind in pool.types.items()
        ]
        closed = {name for name in pool.resources if any(up in state.closed for up in pool.line(name))}
        self._active = {name: state.factors.get(name, 1.0) for name in pool.resources if name not in closed}
        groups = plan.with_costs(state.costs, self._durations)
        self.groups = [group for group in groups if any(name in self._active for name in group.names)]
        self.starts = [0.0] * len(self.groups)
        self.budgets = [self._budget(spec, state) for spec in plan.limits]
        in_flight = frozenset(i for i, each in enumerate(self.budgets) if isinstance(each, FlightBudget))
        self._dealing = Dealing(self.groups, [each.kind.priority for each in self.backlogs], plan.parents, in_flight)
        self._calendar = fluid_times.Changes(pool)
        self._look_at_calendars()

    def parts(self, group: Group) -> dict[str, float]:
        """Return the part of the starts of a group that each of its resources has."""
        sizes = {name: self._active[name] for name in group.names if name in self._active}
        for index in group.own[:1]:
            amounts = {name: limit.amount for name, limit in self.plan.limits[index].members}
            sizes = {name: size * amounts[name] for name, size in sizes.items()}
        total = sum(sizes.values())
        return {name: size / total if total > 0 else 1.0 / len(sizes) for name, size in sizes.items()}

    def next_change(self) -> float:
        """Return when amounts or hours change next; a step must not go beyond it."""
        return self._change - self._at

    def step(self, dt: float) -> Books:
        """Go on by `dt` seconds, which must not go beyond `next_change`."""
        before = self._left(dt)
        books = self._dealt(dt, [each.waiting + each.rate * dt for each in self.backlogs], before)
        for (index, kind), units in books.flights.items():
            flight = self.budgets[index]
            assert isinstance(flight, FlightBudget)
            flight.start(self.now, dt, units, self.backlogs[kind].duration_s)
        for budget, had, has in zip(self.budgets, before, books.left, strict=True):
            budget.use(self.now, dt, had - has)
        for index, tasks in enumerate(books.started):
            self.starts[index] += tasks
        self.now += dt
        for backlog, tasks in zip(self.backlogs, books.starts, strict=True):
            backlog.waiting += backlog.rate * dt
            backlog.go(min(tasks, backlog.waiting))
            backlog.expire(self.now)
        if self._at + self.now >= self._change - fluid_times.MARGIN_S:
            self._look_at_calendars()
        return books

    def trial(self, dt: float) -> Books:
        """Return the starts of a step with endless backlogs; changes nothing."""
        wants = [MOST if each.waiting > LITTLE else each.rate * dt for each in self.backlogs]
        return self._dealt(dt, wants, self._left(dt))

    def _left(self, dt: float) -> list[float]:
        return [budget.left(self.now, dt) for budget in self.budgets]

    def _dealt(self, dt: float, wants: list[float], before: list[float]) -> Books:
        held = [min(1.0, each.duration_s / dt) for each in self.backlogs]
        books = Books(dt, before.copy(), [each.even(dt) for each in self.budgets], held, len(self.groups))
        order = sorted(
            (kind for kind, want in enumerate(wants) if want > 0 and self._allowed[kind]),
            key=lambda kind: self.backlogs[kind].order(self.now),
        )
        for kind in order:
            if (share := self.backlogs[kind].kind.share) > 0:
                left, part = books.left, [each * share for each in before]
                books.left = part.copy()
                self._dealing.fill(kind, wants[kind], books)
                used = zip(left, part, books.left, strict=True)
                books.left = [max(0.0, each - (had - has)) for each, had, has in used]
        for kind in order:
            self._dealing.fill(kind, wants[kind] - books.starts[kind], books)
        return books

    # ------------------------------------------------------------------------------------------------- beginning

    def _budget(self, spec: Spec, state: PoolState) -> Budget:
        key = f"{spec.name}/{spec.per}"
        used = sum(state.used.get(name, {}).get(key, 0.0) for name, _ in spec.members if name in self._active)
        if spec.counts == "bucket":
            return BucketBudget(PERIODS_S[spec.per], 0.0, used)
        if spec.counts == "calendar" and spec.per == "day":
            return DayBudget(0.0, used)
        if spec.per != "in_flight":
            return Budget(PERIODS_S[spec.per], 0.0, used)
        kinds = {kind for name, _ in spec.members for kind in self.plan.pool.resources[name].takes} or self._durations
        usual_s = sum(self._durations[kind] for kind in kinds) / len(kinds)
        return FlightBudget(0.0, used, usual_s)

    def _look_at_calendars(self) -> None:
        """Take over the amounts and hours of this moment, and start another day for limits per day at midnight."""
        now = self._at + self.now
        for spec, budget in zip(self.plan.limits, self.budgets, strict=True):
            members = [(name, limit) for name, limit in spec.members if name in self._active]
            amounts = [self._calendar.amount(name, limit, now) for name, limit in members]
            parts = [1.0 if limit.per == "day" else self._active[name] for name, limit in members]
            budget.amount = sum(amount * part for amount, part in zip(amounts, parts, strict=True))
            if isinstance(budget, BucketBudget):
                budget.most = sum(limit.at_once(each) for (_, limit), each in zip(members, amounts, strict=True))
            if isinstance(budget, DayBudget) and self.now > 0 and self._calendar.is_midnight(*spec.members[0], now):
                budget.midnight()
        self._allowed = [self._calendar.allows(name, now) for name in self.plan.types]
        self._change = self._calendar.next_at(now)
