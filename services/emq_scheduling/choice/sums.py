"""Sums over the tasks that wait in the window: how many there are of each type and tenant, and what they cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from emq_scheduling.model import Costs
from emq_scheduling.tasks import Task


class Part(NamedTuple):
    """Costs of one limit that tasks bring themselves.

    Attributes:
        named: the part of the tasks that bring one, 0 to 1.
        units: of these costs, on average over all the tasks.
    """

    named: float = 0.0
    units: float = 0.0


class Sum:
    """The waiting tasks of one type and tenant.

    Attributes:
        count: how many there are.
    """

    __slots__ = ("_own", "count")

    def __init__(self) -> None:
        self.count = 0
        self._own: dict[str, list[float]] = {}  # by limit: tasks with costs of their own, and their units

    def add(self, costs: Costs | None, tasks: int) -> None:
        """Add a task with these costs of its own (`tasks` is 1), or take one away (-1)."""
        self.count += tasks
        if costs is None:
            return
        own = self._own
        for name, units in costs.items():
            if name not in own:
                own[name] = [0, 0.0]
            found = own[name]
            found[0] += tasks
            found[1] += tasks * units
            if not found[0]:
                del own[name]

    def parts(self) -> dict[str, Part]:
        """Return the costs that the tasks bring themselves, by limit."""
        return {
            name: Part(count / self.count, max(0.0, units) / self.count) for name, (count, units) in self._own.items()
        }


class Sums:
    """The sums of all types and tenants with waiting tasks; a task with fallbacks counts where it stands.

    Attributes:
        passed: by its own type and the one as which it waits: how many tasks stand at a fallback of another type.
    """

    def __init__(self) -> None:
        self.passed: Counter[tuple[str, str]] = Counter()
        self._kinds: dict[str, dict[str, Sum]] = {}

    def __contains__(self, kind: str) -> bool:
        """Return whether tasks of the type wait."""
        return kind in self._kinds

    def add(self, task: Task) -> None:
        """Count a task that waits."""
        tenants = self._kinds.get(task.type)
        if tenants is None:
            tenants = self._kinds[task.type] = {}
        found = tenants.get(task.tenant)
        if found is None:
            found = tenants[task.tenant] = Sum()
        found.add(task.costs, 1)
        if task.tries is not None and task.type != task.own_type:
            self.passed[task.own_type, task.type] += 1

    def take(self, task: Task) -> None:
        """Count a task that waits no more."""
        tenants = self._kinds[task.type]
        found = tenants[task.tenant]
        found.add(task.costs, -1)
        if task.tries is not None and task.type != task.own_type:
            self.passed[task.own_type, task.type] -= 1
            if not self.passed[task.own_type, task.type]:
                del self.passed[task.own_type, task.type]
        if not found.count:
            del tenants[task.tenant]
            if not tenants:
                del self._kinds[task.type]

    def count(self, kind: str) -> int:
        """Return how many tasks of a type wait."""
        return sum(each.count for each in self._kinds.get(kind, {}).values())

    def of_tenant(self, kind: str, tenant: str) -> int:
        """Return how many tasks of a type and tenant wait."""
        found = self._kinds.get(kind, {}).get(tenant)
        return 0 if found is None else found.count

    def tenants(self, kind: str) -> Iterator[tuple[str, Sum]]:
        """Yield the sums of a type by tenant."""
        yield from self._kinds.get(kind, {}).items()
