"""The order in which the resources of a level take tasks, and where they wait.

A resource waits in one `Queue` of each level: with those that wait for tasks, or with those that wait for room under
the limits of one parent, a *gate*. While a gate is shut, none of its resources is looked at. Once the parent may have
room, the first of them takes its next task; when one finds no room, the gate is shut again. So a start costs no more
with many resources below a full limit than with few.

The resource whose next task goes before those of the others is first. So tenants share a limit of a parent by their
weights, whichever resources below it their types use. Of resources with the same next task, the cheapest goes first,
and those of equal price take turns in proportion to their weights. Resources that take the same types have the same
next task, but for tasks that keep to one of them, so it is found once for all of them: they are a *group*.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable
from typing import Generic, TypeVar

from emq_scheduling.choice.seats import Group, Seat
from emq_scheduling.choice.waiting import Waiting
from emq_scheduling.choice.window import Level, Order
from emq_scheduling.model import Costs

STALE = 2
"""Groups whose next task is found again before a start, since their tenants have started others meanwhile. If there
are more, the order is a little too old."""

SPARE = 64
"""Entries that a heap holds beyond twice those that count, before it drops the others."""

NOTHING = -(1 << 20)
"""`rough` of no units."""

Size = tuple[float, ...]
"""What resources behind one gate have in common: the standing of their next task, and its costs, roughly."""

_Place = tuple[Order, float, float, str]
"""Of a group: the order of the next task, and price, turn and name of the resource that is next."""

_count = itertools.count()

K = TypeVar("K")


class _Places(Generic[K]):
    """Keys in the order of their places, which may change."""

    __slots__ = ("_at", "_heap")

    def __init__(self) -> None:
        self._at: dict[K, _Place] = {}
        self._heap: list[tuple[_Place, int, K]] = []

    def get(self, key: K) -> _Place | None:
        return self._at.get(key)

    def set(self, key: K, place: _Place | None) -> None:
        """Change the place of a key; None takes it out."""
        if place is None:
            self._at.pop(key, None)
            return
        if self._at.get(key) != place:
            self._at[key] = place
            heapq.heappush(self._heap, (place, next(_count), key))
            if len(self._heap) > 2 * len(self._at) + SPARE:
                self._heap = [(at, next(_count), each) for each, at in self._at.items()]
                heapq.heapify(self._heap)

    def first(self) -> tuple[_Place, K] | None:
        heap = self._heap
        while heap and self._at.get(heap[0][2]) != heap[0][0]:
            heapq.heappop(heap)
        return (heap[0][0], heap[0][2]) if heap else None


class _Seats:
    """The resources of one group in a queue, the next one first."""

    __slots__ = ("count", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[float, float, str, int, Seat]] = []
        self.count = 0


class Queue:
    """Resources that wait for tasks of a level, or for room for them.

    Attributes:
        is_shut: whether to look at none of them now.
    """

    def __init__(self, lineup: Lineup) -> None:
        self._lineup = lineup
        self._groups: dict[Group, _Seats] = {}
        self._order = _Places[Group]()
        self.is_shut = False

    def __bool__(self) -> bool:
        """Return whether resources wait in it."""
        return bool(self._groups)

    def put(self, seat: Seat) -> None:
        """Let a resource wait here, and in no other queue of the level."""
        lineup = self._lineup
        if (spot := seat.spots.get(lineup.number)) is not None:
            spot[0].remove(seat)
        group: Group = seat.name if lineup.level.keeps(seat.types, seat.name) else seat.types
        ticket = next(_count)
        seat.spots[lineup.number] = (self, group, ticket)
        seats = self._groups.get(group)
        if seats is None:
            seats = self._groups[group] = _Seats()
            lineup.where.setdefault(group, {})[self] = None
        seats.count += 1
        heapq.heappush(seats.heap, (seat.price, seat.turn, seat.name, ticket, seat))
        if seats.heap[0][3] == ticket:
            self.look(group)

    def remove(self, seat: Seat) -> None:
        """Let a resource wait here no more."""
        _, group, _ = seat.spots.pop(self._lineup.number)
        seats = self._groups[group]
        seats.count -= 1
        if not seats.count:
            del self._groups[group]
            self._order.set(group, None)
            where = self._lineup.where[group]
            del where[self]
            if not where:
                del self._lineup.where[group]
        elif len(seats.heap) > 2 * seats.count + SPARE:
            seats.heap = [entry for entry in seats.heap if self._is_here(entry)]
            heapq.heapify(seats.heap)

    def look(self, group: Group) -> None:
        """Find the place of a group again, since its next task or resource may be another one."""
        place, _, _ = self._place(group)
        self._order.set(group, place)
        if place is not None and not self.is_shut:
            self._lineup.follow(self, place)

    def first(self) -> _Place | None:
        """Return a place that is not behind that of the first resource; None if all wait for tasks."""
        found = self._order.first()
        return None if found is None else found[0]

    def top(self) -> tuple[_Place, Seat, Waiting] | None:
        """Return the resource that is next with its place and its next task; None if there are no tasks."""
        tries = 0
        while (found := self._order.first()) is not None:
            before, group = found
            place, seat, head = self._place(group)
            if place is None or head is None:
                self._order.set(group, None)
                if isinstance(group, str):
                    self.put(seat)  # tasks keep to it no more
                continue
            if place > before:
                self._order.set(group, place)
                tries += 1
            if place <= before or tries > STALE or self._order.first() == (place, group):
                return place, seat, head
        return None

    def seats(self, most: int) -> list[Seat]:
        """Return resources that wait here, `most` at most."""
        found = (entry[4] for seats in self._groups.values() for entry in seats.heap if self._is_here(entry))
        return list(itertools.islice(found, most))

    def _place(self, group: Group) -> tuple[_Place | None, Seat, Waiting | None]:
        heap = self._groups[group].heap
        while True:
            price, turn, name, ticket, seat = entry = heap[0]
            if not self._is_here(entry):
                heapq.heappop(heap)
            elif turn != seat.turn:
                heapq.heapreplace(heap, (price, seat.turn, name, ticket, seat))
            else:
                break
        level = self._lineup.level
        head = level.next_for(seat.types, name)
        return None if head is None else (level.order(head), price, turn, name), seat, head

    def _is_here(self, entry: tuple[float, float, str, int, Seat]) -> bool:
        spot = entry[4].spots.get(self._lineup.number)
        return spot is not None and spot[2] == entry[3]


class Gate(Queue):
    """Resources that wait for room under the limits of a parent.

    Attributes:
        node: the name of the parent.
        size: what their next tasks have in common.
        costs: of the task without room that shut it last.
        opened: how often it has been opened: claims that were made before hold no more.
        until: if it is shut: when to look again; infinity if nobody knows.
        timers: the times of its next looks, each once.
    """

    def __init__(self, lineup: Lineup, node: str, size: Size) -> None:
        super().__init__(lineup)
        self.costs: Costs = {}
        self.opened = 0
        self.timers: set[float] = set()
        self.node = node
        self.size = size
        self.until = -math.inf

    def shut(self, until: float, costs: Costs) -> None:
        """Look at none of its resources until then; infinity if nobody knows when there is room for these costs."""
        self.is_shut, self.until, self.costs = True, until, costs
        self._lineup.ready.set(self, None)

    def open(self) -> None:
        """Look at its resources again."""
        self.is_shut = False
        self.opened += 1
        self._lineup.ready.set(self, self.first())

    def sleeps_at(self, at: float) -> bool:
        """Return whether it is shut beyond this time."""
        return self.is_shut and self.until > at


class Lineup:
    """The resources of one level, in their queues.

    Attributes:
        awake: those that wait for tasks, as far as anybody knows.
        gates: by node and size.
        where: the queues in which there are resources of a group.
        ready: the queues that are not shut and may have tasks.
    """

    __slots__ = ("awake", "gates", "level", "number", "ready", "where")

    def __init__(self, number: int, level: Level) -> None:
        self.number = number
        self.level = level
        self.where: dict[Group, dict[Queue, None]] = {}
        self.gates: dict[str, dict[Size, Gate]] = {}
        self.ready = _Places[Queue]()
        self.awake = Queue(self)

    def gate(self, node: str, size: Size) -> Gate:
        """Return a gate, which may be new."""
        gates = self.gates.setdefault(node, {})
        gate = gates.get(size)
        if gate is None:
            gate = gates[size] = Gate(self, node, size)
        return gate

    def drop(self, gate: Gate) -> None:
        """Forget a gate without resources."""
        self.ready.set(gate, None)
        del self.gates[gate.node][gate.size]
        if not self.gates[gate.node]:
            del self.gates[gate.node]

    def open(self, node: str) -> None:
        """Look at the resources behind all gates of a parent again."""
        for gate in self.gates.get(node, {}).values():
            gate.open()

    def follow(self, queue: Queue, place: _Place) -> None:
        """A group of an open queue has this place now."""
        before = self.ready.get(queue)
        if before is None or place < before:
            self.ready.set(queue, place)

    def is_kept(self, seat: Seat) -> bool:
        """Return whether a resource is behind a shut gate for tasks of tenants with a backlog."""
        spot = seat.spots.get(self.number)
        return spot is not None and isinstance(spot[0], Gate) and spot[0].is_shut and spot[0].size[0] > self.number

    def look(self, groups: Iterable[Group]) -> None:
        """Find the places of groups again: tasks have come."""
        for group in groups:
            for queue in self.where.get(group, ()):
                queue.look(group)

    def next(self) -> tuple[Seat, Waiting] | None:
        """Return the resource that is next, and its next task; None if none of those awake has tasks."""
        tries = 0
        while (first := self.ready.first()) is not None:
            before, queue = first
            found = queue.top()
            if found is None:
                self.ready.set(queue, None)
                continue
            place, seat, head = found
            if place > before:
                self.ready.set(queue, place)
                tries += 1
            if place <= before or tries > STALE or self.ready.first() == (place, queue):
                return seat, head
        return None


def rough(units: float) -> int:
    """Return a number that is the same for nearly equal units, two for each power of two."""
    if units <= 0:
        return NOTHING
    part, power = math.frexp(units)
    return 2 * power + (part >= 0.75)
