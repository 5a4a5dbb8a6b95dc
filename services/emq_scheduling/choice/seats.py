"""The state of each resource in the matching, and the resources that wait for each other's running tasks."""

from __future__ import annotations

from typing import NamedTuple

from emq_scheduling.model import Costs, Pool


class Sleep(NamedTuple):
    """A resource starts nothing of a level for a while.

    Attributes:
        until: when the next task is expected to have room; infinity if nobody knows.
        costs: of the next task, which did not fit.
        looks_at: when the resource looks for smaller tasks, if before `until`.
    """

    until: float
    costs: Costs
    looks_at: float


class Seat:
    """The state of a resource in the matching.

    Attributes:
        types: the types that it takes.
        turn: starts divided by weight; the lowest of the cheapest is next.
        asleep: by level: why and until when it starts nothing of that level.
        credits: starts that its types with a share are owed.
        closed_until: it starts nothing before; seconds since the epoch.
        timers: the times of its next looks, each once.
    """

    __slots__ = ("asleep", "closed_until", "credits", "name", "price", "timers", "turn", "types", "weight")

    def __init__(self, name: str) -> None:
        self.name = name
        self.types: frozenset[str] = frozenset()
        self.price = 0.0
        self.weight = 1.0
        self.turn = 0.0
        self.asleep: dict[int, Sleep] = {}
        self.credits: dict[str, float] = {}
        self.closed_until = 0.0
        self.timers: set[float] = set()


def sharing_in_flight(pool: Pool) -> dict[str, list[str]]:
    """Return by resource which resources may have room when a task on it ends: those under its limits in flight."""
    below: dict[str, list[str]] = {}
    limited = {
        name for name, resource in pool.resources.items() if any(li.per == "in_flight" for li in resource.limits)
    }
    takers = [name for name, resource in pool.resources.items() if resource.takes]
    for name in takers:
        for each in pool.line(name):
            if each in limited:
                below.setdefault(each, []).append(name)
    return {name: sorted({other for each in pool.line(name) for other in below.get(each, ())}) for name in takers}
