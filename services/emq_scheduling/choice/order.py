"""The order in which the resources of a level take tasks.

The resource whose next task goes before those of the others is first. So tenants share a limit of a parent by their
weights, whichever resources below it their types use. Of resources with the same next task, the cheapest goes first,
and those of equal price take turns in proportion to their weights. Resources that take the same types have the same
next task, but for tasks that keep to one of them, so it is found once for all of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from emq_scheduling.choice.seats import Seat
from emq_scheduling.choice.waiting import Waiting
from emq_scheduling.choice.window import Level, Order

STALE = 4
"""Resources whose next task is found again before a start, since their tenants have started others meanwhile. If there
are more, the order is a little too old."""

_Place = tuple[Order, float, float, str]
"""Of resources with the same types: the order of the next task, and price, turn and name of the one that is next."""

_LAST: Order = (float("inf"), 0.0)


class Queue:
    """The resources that may start tasks of a level.

    Attributes:
        tried: names of all that were added.
    """

    def __init__(self, level: Level) -> None:
        self._level = level
        self._seats: dict[frozenset[str], list[tuple[float, float, str, Seat]]] = {}
        self._order: list[tuple[_Place, frozenset[str]]] = []
        self.tried: set[str] = set()

    def add(self, seats: Iterable[Seat]) -> None:
        """Add resources that were not tried yet; call it when `next` has none."""
        for seat in seats:
            if seat.name not in self.tried:
                self.tried.add(seat.name)
                self._seats.setdefault(seat.types, []).append((seat.price, seat.turn, seat.name, seat))
        for seats_ in self._seats.values():
            heapq.heapify(seats_)
        self._order = [(self._place(seats_)[0], types) for types, seats_ in self._seats.items()]
        heapq.heapify(self._order)

    def next(self) -> tuple[Seat, Waiting | None] | None:
        """Return the resource that is next, and its next task if it has one; None if no resource is left."""
        for tries in range(STALE + 1):
            if not self._order:
                return None
            before, types = self._order[0]
            place, head = self._place(self._seats[types])
            if place <= before or len(self._order) == 1 or tries == STALE:
                return self._seats[types][0][3], head
            heapq.heapreplace(self._order, (place, types))
        return None

    def started(self, seat: Seat) -> None:
        """The resource that is next has started a task, and may start another one."""
        seats = self._seats[seat.types]
        heapq.heapreplace(seats, (seat.price, seat.turn, seat.name, seat))

    def drop(self, seat: Seat) -> None:
        """The resource that is next starts nothing more."""
        seats = self._seats[seat.types]
        heapq.heappop(seats)
        if not seats:
            del self._seats[seat.types]
            heapq.heappop(self._order)

    def _place(self, seats: list[tuple[float, float, str, Seat]]) -> tuple[_Place, Waiting | None]:
        price, turn, name, seat = seats[0]
        head = self._level.next_for(seat.types, name)
        return (_LAST if head is None else self._level.order(head), price, turn, name), head
