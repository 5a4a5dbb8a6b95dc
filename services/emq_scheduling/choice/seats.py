"""The state of each resource in the matching, and the resources that wait for each other's running tasks."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from emq_scheduling.choice.waiting import Waiting
from emq_scheduling.model import Costs, Pool


class Sleep:
    """A resource starts nothing of a level for a while, and claims room for the next task.

    Attributes:
        resource: its name.
        head: the next task, without room now.
        costs: of that task.
        until: when the task is expected to have room; infinity if nobody knows.
        looks_at: when the resource looks for smaller tasks, if before `until`.
        kept: names of the limits that have room for the task, but keep it for more urgent ones.
        is_steady: whether nothing of the level may start before `until`, smaller tasks excepted.
    """

    __slots__ = ("costs", "head", "is_steady", "kept", "looks_at", "resource", "until")

    def __init__(
        self, resource: str, head: Waiting, costs: Costs, until: float, kept: frozenset[str], is_steady: bool
    ) -> None:
        self.resource = resource
        self.head = head
        self.costs = costs
        self.until = self.looks_at = until
        self.kept = kept
        self.is_steady = is_steady


class Seat:
    """The state of a resource in the matching.

    Attributes:
        types: the types that it takes.
        turn: starts divided by weight; the lowest of the cheapest is next.
        asleep: by level: why and until when it starts nothing of that level.
        credits: starts that its types with a share are owed.
        reached: by level: the highest turn that was next here (`emq_scheduling.choice.shares`).
        closed_until: it starts nothing before; seconds since the epoch.
        is_open: whether it is neither closed nor paused, as of the last change.
        timers: the times of its next looks, each once.
    """

    __slots__ = (
        *("asleep", "closed_until", "credits", "is_open", "name", "price", "reached", "timers", "turn", "types"),
        "weight",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.types: frozenset[str] = frozenset()
        self.price = 0.0
        self.weight = 1.0
        self.turn = 0.0
        self.asleep: dict[int, Sleep] = {}
        self.credits: dict[str, float] = {}
        self.reached: dict[int, float] = {}
        self.closed_until = 0.0
        self.is_open = True
        self.timers: set[float] = set()


def home_of(key: str, names: Iterable[str]) -> str | None:
    """Return the resource of a key: the same for all tasks of the key, while no resource closes or comes.

    Rendezvous hashing (Thaler and Ravishankar 1998): a resource that goes moves its own keys only.
    """
    return max(names, key=lambda name: zlib.crc32(f"{key}\0{name}".encode()), default=None)


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
