"""The tasks that wait in the window, in the order in which resources take them.

A *level* holds the tasks of one priority. Within a level, tasks whose deadline is near go first, the nearest first.
Then tenants take turns by weight (`emq_scheduling.choice.shares`). Tasks of one tenant go in the order of their
submits.

A level has a *line* (`emq_scheduling.choice.lines`) for each task type, and one more for each resource to which tasks
of the type keep by their key. Tasks with costs of their own have other lines, by *size*: powers of two of their type's
costs. So small ones are found behind any number of large ones.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Set

from emq_scheduling.choice.lines import Line
from emq_scheduling.choice.shares import Shares, Spent, Turns
from emq_scheduling.choice.sums import Sums
from emq_scheduling.choice.waiting import Waiting
from emq_scheduling.model import DEFAULT_COST, Costs, TaskType

NEAR = 0.25
"""A deadline is near when this part of the time from submission to deadline is left, or less than the task takes."""

MOST_SIZE = 32
"""Largest size: tasks that cost more than 2 ** MOST_SIZE times as much as their type wait in one line."""

BACKLOG = 8
"""Number of waiting tasks in the window from which a tenant has a backlog."""

_NO_LINES: dict[int | None, Line] = {}

Order = tuple[float, float]
"""The place of a task in its level; the least is next."""


class Level:
    """The tasks of one priority.

    Attributes:
        lines: by type and the resource to which tasks keep, and by size.
        aside: lines of tasks that wait for room under a limit by key (`emq_scheduling.choice.bays`).
        count: how many there are.
    """

    def __init__(self, turns: Turns, counter: Iterator[int]) -> None:
        self._turns = turns
        self._counter = counter
        self.lines: dict[tuple[str, str | None], dict[int | None, Line]] = {}
        self.aside: dict[Line, None] = {}
        self._kept: Counter[str | None] = Counter()  # lines of tasks that keep to a resource
        self.count = 0

    def add(self, waiting: Waiting) -> None:
        self._turns.came(waiting.task.tenant, waiting.task.type)
        self.enter(waiting)
        self.count += 1

    def enter(self, waiting: Waiting) -> None:
        """Put a task of the level into its line."""
        key = (waiting.task.type, waiting.keeps_to)
        lines = self.lines.get(key)
        if lines is None:
            lines = self.lines[key] = {}
            self._kept[waiting.keeps_to] += 1
        line = lines.get(waiting.size)
        if line is None:
            line = lines[waiting.size] = self.line(waiting.size)
        line.add(waiting)

    def leave(self, waiting: Waiting) -> None:
        """Take a task of the level out of its line, or out of its bay."""
        if waiting.bay is not None:
            waiting.bay.drop(waiting)
            return
        key = (waiting.task.type, waiting.keeps_to)
        lines = self.lines[key]
        line = lines[waiting.size]
        line.count -= 1
        if not line.count:
            del lines[waiting.size]
            if not lines:
                del self.lines[key]
                self._kept[waiting.keeps_to] -= 1
                if not self._kept[waiting.keeps_to]:
                    del self._kept[waiting.keeps_to]

    def line(self, size: int | None) -> Line:
        """Return a new line of the level."""
        return Line(self, self._counter, size)

    def lines_for(self, types: Set[str], resource: str | None) -> Iterator[tuple[Line, str]]:
        """Yield the lines of these types whose tasks may start on a resource, with their types; None for any."""
        if len(self.lines) < len(types):
            for (kind, keeps_to), lines in self.lines.items():
                if kind in types and (keeps_to is None or keeps_to == resource):
                    for line in lines.values():
                        yield line, kind
            return
        for kind in types:
            for keeps_to in (None, resource) if resource is not None else (None,):
                if (found := self.lines.get((kind, keeps_to))) is not None:
                    for line in found.values():
                        yield line, kind

    def keeps(self, types: Set[str], resource: str) -> bool:
        """Return whether tasks of these types keep to a resource."""
        return resource in self._kept and any((kind, resource) in self.lines for kind in types)

    def order(self, waiting: Waiting) -> Order:
        """Return the place of a waiting task among those of all lines."""
        if waiting.is_near and waiting.deadline is not None:
            return -1.0, waiting.deadline
        return self._turns.at(waiting.task.tenant), float(waiting.order)

    def next_for(self, types: Set[str], resource: str | None) -> Waiting | None:
        """Return the next task of these types on a resource; None if there is none."""
        best: tuple[tuple[float, float, int], Waiting] | None = None
        for kind in types:  # as `lines_for`; this is the inner loop
            for line in self.lines.get((kind, None), _NO_LINES).values():
                head = line.head()
                if head is not None and (best is None or head[0] < best[0]):
                    best = head
        if resource in self._kept:
            for line, _ in self.lines_for(types, resource):
                head = line.head()
                if head is not None and (best is None or head[0] < best[0]):
                    best = head
        return None if best is None else best[1]

    def take(self, waiting: Waiting, spent: Spent | None) -> None:
        """Take a task out; `spent`: what its start counts for its tenant, or None if it does not start."""
        self.leave(waiting)
        self.count -= 1
        self._turns.went(waiting.task.tenant, waiting.task.type, spent)

    def turn(self, tenant: str) -> float:
        """Return the turn of a tenant with waiting tasks."""
        return self._turns.at(tenant)

    def reweigh(self, grown: Mapping[str, float]) -> None:
        """Let changed weights count for the turns.

        Args:
            grown: by tenant, the factor of its weight's growth.
        """
        kinds: dict[str, set[str]] = {}
        found: list[Line] = []
        for line in self.all():
            if tenants := line.those_of(grown):
                kind = next(line.waiting()).task.type
                for tenant in tenants:
                    kinds.setdefault(tenant, set()).add(kind)
                found.append(line)
        self._turns.reweigh(grown, kinds)
        for line in found:
            line.reorder(grown)

    def backlog(self, tenant: str) -> int:
        """Return how many tasks of a tenant wait."""
        return self._turns.backlog(tenant)

    def all(self) -> Iterator[Line]:
        """Yield all lines, also those aside; each has tasks of one type."""
        for lines in self.lines.values():
            yield from lines.values()
        yield from self.aside


class Window:
    """All tasks that wait for a resource on this host.

    Attributes:
        count: how many there are.
        sums: how many of each type and tenant, and what they cost.
    """

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._counter = itertools.count()
        self._levels: dict[int, Level] = {}
        self._nearing: list[tuple[float, int, Waiting]] = []
        self.count = 0
        self.sums = Sums()

    def __len__(self) -> int:
        return self.count

    def add(self, waiting: Waiting, near_level: int, duration_s: float) -> None:
        """Add a task.

        Args:
            near_level: the level at which it competes once its deadline is near.
            duration_s: time that it will take.
        """
        self.count += 1
        waiting.near_level = near_level
        self.sums.add(waiting.task)
        self._level(waiting.level).add(waiting)
        if waiting.deadline is not None:
            left_s = waiting.deadline - waiting.task.submitted_us / 1e6
            at = waiting.deadline - max(duration_s, NEAR * left_s)
            heapq.heappush(self._nearing, (at, next(self._counter), waiting))

    def take(self, waiting: Waiting, spent: Spent | None = None) -> None:
        """Take a task out of the window; `spent` as for `Level.take`."""
        level = self._levels[waiting.level]
        waiting.is_gone = True
        level.take(waiting, spent)
        self.count -= 1
        self.sums.take(waiting.task)
        if len(self._nearing) > 2 * self.count + 64:  # most of them have started
            self._nearing = [entry for entry in self._nearing if not entry[2].is_gone]
            heapq.heapify(self._nearing)

    def raised(self, now: float) -> list[Waiting]:
        """Raise the tasks whose deadline has become near; return them."""
        found = []
        while self._nearing and (self._nearing[0][2].is_gone or self._nearing[0][0] <= now):
            waiting = heapq.heappop(self._nearing)[2]
            if not waiting.is_gone:
                self._levels[waiting.level].take(waiting, None)
                waiting.is_near, waiting.level = True, min(waiting.near_level, waiting.level)
                self._level(waiting.level).add(waiting)
                found.append(waiting)
        return found

    def release(self, waiting: Waiting) -> None:
        """Let a task that kept to a resource go to any."""
        level = self._levels[waiting.level]
        level.leave(waiting)
        waiting.keeps_to = None
        level.enter(waiting)

    def move(self, waiting: Waiting, level: int) -> None:
        """Let a task compete at another priority."""
        self._levels[waiting.level].take(waiting, None)
        waiting.level = level
        self._level(level).add(waiting)

    def reweigh(self, grown: Mapping[str, float]) -> None:
        """Let changed weights of tenants count at once; `grown` as for `Level.reweigh`."""
        for level in self._levels.values():
            level.reweigh(grown)

    def all(self) -> list[Waiting]:
        """Return all tasks, in no order."""
        return [each for level in self._levels.values() for line in level.all() for each in line.waiting()]

    def standing(self, waiting: Waiting) -> float:
        """Return the level at which room is kept from a task, or for it.

        A tenant with a backlog leaves room to those of the same level without one, as to more urgent tasks. So a tenant
        that asks for little does not wait behind the others' backlogs.
        """
        tenant = waiting.task.tenant
        if tenant and self._levels[waiting.level].backlog(tenant) >= BACKLOG:
            return waiting.level + 0.5
        return waiting.level

    def next_raise(self) -> float | None:
        """Return when the next deadline becomes near; None if none does."""
        while self._nearing and self._nearing[0][2].is_gone:
            heapq.heappop(self._nearing)
        return self._nearing[0][0] if self._nearing else None

    def levels(self) -> list[tuple[int, Level]]:
        """Return the levels that have tasks, the most urgent first."""
        return sorted((number, level) for number, level in self._levels.items() if level.count)

    def level(self, number: int) -> Level | None:
        """Return a level; None if it never had a task."""
        return self._levels.get(number)

    def _level(self, number: int) -> Level:
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = Level(Turns(number, self._shares), self._counter)
        return level


def size_of(costs: Costs, kind: TaskType) -> int:
    """Return the size of a task by its own costs: 0 for those of its type, 1 up to twice as much, and so on."""
    parts = (own / usual for name, own in costs.items() if (usual := kind.costs.get(name, DEFAULT_COST)) > 0)
    largest = max(2.0**-MOST_SIZE, min(2.0**MOST_SIZE, max(parts, default=1.0)))
    return math.ceil(math.log2(largest))


def near_level(kind: TaskType) -> int:
    """Return the priority at which tasks of a type compete once their deadline is near."""
    return kind.priority if kind.near_priority is None else kind.near_priority
