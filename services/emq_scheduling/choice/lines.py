"""A line of waiting tasks: the nearest deadline first, then tenants in turns; see `emq_scheduling.choice.window`."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Container, Iterable, Iterator
from typing import Protocol

from emq_scheduling.choice.waiting import Waiting


class Tenants(Protocol):
    """The tenants of a level: `emq_scheduling.choice.window.Level`."""

    def turn(self, tenant: str) -> float: ...

    def backlog(self, tenant: str) -> int: ...


class Line:
    """Tasks of one type and size in one level, for any resource or for one.

    Attributes:
        size: of its tasks; None for those without costs of their own.
        count: how many there are.
    """

    __slots__ = ("_count", "_entries", "_level", "_near", "_tasks", "_turns", "count", "size")

    def __init__(self, level: Tenants, counter: Iterator[int], size: int | None) -> None:
        self._level = level
        self.size = size
        self._count = counter
        self._near: list[tuple[float, int, Waiting]] = []
        self._tasks: dict[str, list[tuple[int, int, Waiting]]] = {}
        self._turns: list[tuple[float, int, str]] = []
        self._entries = 0  # in `_near` and `_tasks`, with those of tasks that are not here any more
        self.count = 0

    def add(self, waiting: Waiting) -> None:
        self.count += 1
        waiting.ticket = next(self._count)
        self._entries += 1
        if self._entries > 2 * self.count + 64:
            self._forget()
        if waiting.is_near and waiting.deadline is not None:
            heapq.heappush(self._near, (waiting.deadline, waiting.ticket, waiting))
            return
        tenant = waiting.task.tenant
        tasks = self._tasks.get(tenant)
        if tasks is None:
            tasks = self._tasks[tenant] = []
            heapq.heappush(self._turns, (self._level.turn(tenant), next(self._count), tenant))
        heapq.heappush(tasks, (waiting.order, waiting.ticket, waiting))

    def head(self) -> tuple[tuple[float, float, int], Waiting] | None:
        """Return the next task and its place in the order among the heads of all lines; None without tasks."""
        near = self._near
        while near and _is_stale(near[0]):
            heapq.heappop(near)
            self._entries -= 1
        if near:
            return (-1.0, near[0][0], near[0][1]), near[0][2]
        turns = self._turns
        while turns:
            at, _, tenant = turns[0]
            tasks = self._tasks[tenant]
            if not tasks or _is_stale(tasks[0]):
                tasks = self._fresh(tenant)
            if not tasks:
                heapq.heappop(turns)
                del self._tasks[tenant]
                continue
            now_at = self._level.turn(tenant)
            if now_at != at:  # it has started tasks of another type meanwhile
                heapq.heapreplace(turns, (now_at, next(self._count), tenant))
                continue
            return (now_at, float(tasks[0][0]), tasks[0][1]), tasks[0][2]
        return None

    def behind(self, most: int) -> Iterator[Waiting]:
        """Yield up to `most` tasks that are soon next, in no exact order, to fill a gap.

        They are of as many tenants as possible, since room may be kept from some. Of tasks with equal costs, one of
        each tenant is enough.
        """
        self.head()  # brings the tenant in front up to date
        each = 1 if self.size is None else most // min(most, max(1, len(self._turns)))
        for _, _, tenant in self._turns[:most]:
            for entry in self._fresh(tenant)[:each]:  # a heap begins with its smallest items
                if not _is_stale(entry):
                    yield entry[2]

    def _fresh(self, tenant: str) -> list[tuple[int, int, Waiting]]:
        """Return the tasks of a tenant, a heap, without stale ones in front."""
        tasks = self._tasks[tenant]
        while tasks and _is_stale(tasks[0]):
            heapq.heappop(tasks)
            self._entries -= 1
        return tasks

    def those_of(self, tenants: Iterable[str]) -> list[str]:
        """Return which of these tenants have tasks here."""
        near = {waiting.task.tenant for _, _, waiting in self._near if not waiting.is_gone}
        return [tenant for tenant in tenants if tenant in near or (tenant in self._tasks and self._fresh(tenant))]

    def reorder(self, tenants: Container[str]) -> None:
        """Order tenants again, after their turns have changed."""
        turn, backlog = self._level.turn, self._level.backlog
        self._turns = [
            (turn(tenant) if tenant in tenants and backlog(tenant) else at, number, tenant)
            for at, number, tenant in self._turns
        ]
        heapq.heapify(self._turns)

    def waiting(self) -> Iterator[Waiting]:
        """Yield the tasks, in no order."""
        for entry in itertools.chain(self._near, *self._tasks.values()):
            if not _is_stale(entry):
                yield entry[2]

    def _forget(self) -> None:
        """Drop stale entries; `head` drops only those that come to the front."""
        self._near = [entry for entry in self._near if not _is_stale(entry)]
        heapq.heapify(self._near)
        kept: dict[str, list[tuple[int, int, Waiting]]] = {}
        for tenant, tasks in self._tasks.items():
            if left := [entry for entry in tasks if not _is_stale(entry)]:
                heapq.heapify(left)
                kept[tenant] = left
        self._tasks = kept
        self._turns = [entry for entry in self._turns if entry[2] in kept]
        heapq.heapify(self._turns)
        self._entries = 1 + len(self._near) + sum(map(len, kept.values()))


def _is_stale(entry: tuple[float, int, Waiting]) -> bool:
    """Return whether a task has gone, or waits elsewhere or in another entry now."""
    return entry[2].is_gone or entry[1] != entry[2].ticket
