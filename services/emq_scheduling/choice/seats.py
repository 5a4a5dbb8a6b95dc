"""The state of each resource in the matching."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Protocol

from emq_scheduling.choice.waiting import Waiting
from emq_scheduling.model import Costs, Pool

Group = frozenset[str] | str
"""The types of its resources; the name of a resource to which tasks keep, which is a group of its own."""


class Spot(Protocol):
    """Where a resource waits: a `Queue` or `Gate` of `emq_scheduling.choice.order`."""

    is_shut: bool

    def put(self, seat: Seat) -> None: ...

    def remove(self, seat: Seat) -> None: ...


class Opens(Protocol):
    """A `Gate` of `emq_scheduling.choice.order`."""

    opened: int


class Sleep:
    """A resource starts nothing of a level for a while, and claims room for the next task.

    Attributes:
        resource: its name.
        head: the next task, without room now.
        costs: of that task.
        until: when the task is expected to have room; infinity if nobody knows.
        looks_at: when the resource looks for smaller tasks, if before `until`.
        kept: names of the limits that have room for the task, but keep it for more urgent ones.
        node: the resource or the parent where it waits for room; None if that is not known.
        gate: where it waits, if below a parent, and how often that had been opened then.
    """

    __slots__ = ("costs", "gate", "head", "kept", "looks_at", "node", "resource", "until")

    def __init__(
        self,
        resource: str,
        head: Waiting,
        costs: Costs,
        until: float,
        kept: frozenset[str],
        node: str | None,
    ) -> None:
        self.resource = resource
        self.head = head
        self.costs = costs
        self.until = self.looks_at = until
        self.kept = kept
        self.node = node
        self.gate: tuple[Opens, int] | None = None


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
        spots: by level: the queue where it waits, its group there, and the ticket of its entry.
        timers: the times of its next looks, each once.
    """

    __slots__ = (
        *("asleep", "closed_until", "credits", "is_open", "name", "price", "reached", "spots", "timers", "turn"),
        *("types", "weight"),
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
        self.spots: dict[int, tuple[Spot, Group, int]] = {}
        self.timers: set[float] = set()

    def leave(self) -> None:
        """Wait in no queue, and claim no room."""
        self.asleep.clear()
        for queue, _, _ in list(self.spots.values()):
            queue.remove(self)


class Seats(dict[str, Seat]):
    """The resources of a pool that take tasks, by name, and what is above them.

    Attributes:
        parents: by resource that takes tasks: its parents, the nearest first.
        limits: by resource, also those that take nothing: the names of its limits.
        in_flight: resources with a limit in flight.
    """

    def __init__(self) -> None:
        super().__init__()
        self.parents: dict[str, list[str]] = {}
        self.limits: dict[str, tuple[str, ...]] = {}
        self.in_flight: set[str] = set()
        self._able: dict[str, dict[str, None]] = {}
        self._lists: dict[str, list[str]] = {}  # the same as lists, once somebody asked
        self._groups: dict[str, list[frozenset[str]]] = {}

    def follow(self, pool: Pool, concerned: Iterable[str]) -> list[Seat]:
        """Take over a changed pool; return the resources that must be put into queues again.

        Args:
            concerned: names of resources that are new, different or gone, or have other parents above them.
        """
        least = min((seat.turn for seat in self.values() if seat.turn), default=0.0)
        found = []
        for name in concerned:
            if (former := self.pop(name, None)) is not None:
                former.leave()
                for kind in former.types:
                    del self._able[kind][name]
                    self._forget(kind)
            self.in_flight.discard(name)
            if (resource := pool.resources.get(name)) is None:
                self.limits.pop(name, None)
                self.parents.pop(name, None)
                continue
            self.limits[name] = tuple(dict.fromkeys(limit.name for limit in resource.limits))
            if any(limit.per == "in_flight" for limit in resource.limits):
                self.in_flight.add(name)
            if resource.takes:
                self.parents[name] = pool.parents(name)
                seat = self[name] = former or Seat(name)
                seat.types, seat.price, seat.weight = frozenset(resource.takes), resource.price, resource.weight
                seat.turn = max(seat.turn, least)
                for kind in seat.types:
                    self._able.setdefault(kind, {})[name] = None
                    self._forget(kind)
                found.append(seat)
        return found

    def able(self, kind: str) -> list[str]:
        """Return the names of the resources that take a type."""
        found = self._lists.get(kind)
        if found is None:
            found = self._lists[kind] = list(self._able.get(kind, ()))
        return found

    def groups(self, kind: str) -> list[frozenset[str]]:
        """Return the sets of types that resources take, one of which is this one."""
        found = self._groups.get(kind)
        if found is None:
            found = self._groups[kind] = list({self[name].types for name in self._able.get(kind, ())})
        return found

    def _forget(self, kind: str) -> None:
        self._lists.pop(kind, None)
        self._groups.pop(kind, None)
        if not self._able[kind]:
            del self._able[kind]


def home_of(key: str, names: Iterable[str]) -> str | None:
    """Return the resource of a key: the same for all tasks of the key, while no resource closes or comes.

    Rendezvous hashing (Thaler and Ravishankar 1998): a resource that goes moves its own keys only.
    """
    return max(names, key=lambda name: zlib.crc32(f"{key}\0{name}".encode()), default=None)
