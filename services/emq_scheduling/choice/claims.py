"""Room that the next tasks wait for, so that no task behind them takes it.

A resource without room for its next task sleeps, and claims the room that the task will need: at itself, and at those
parents that lack room for it. Another task starts there only if it delays no claimed task that goes before it, because
of its level or of its place in the level (backfill, as in EASY of Lifka 1995). If a limit has room for the claimed
task, but keeps it (`emq_scheduling.choice.keeping`), nothing behind the task is charged to that limit. Else small tasks
would take each unit before there are enough for a large one.

Tasks may take longer than expected. So a next task gets a *promise*: the time when it is first expected to have room in
flight. After that time, nothing that holds such room starts in its place.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from emq_scheduling.choice.keeping import Keeping, Lacking
from emq_scheduling.choice.seats import Seat, Seats, Sleep
from emq_scheduling.choice.waiting import Waiting
from emq_scheduling.choice.window import Window
from emq_scheduling.limits.accounts import First
from emq_scheduling.model import Costs, Pool


class Delay(NamedTuple):
    """A claim that a start would delay.

    Attributes:
        until: when the claimed task is expected to have room; infinity if nobody knows.
        node: the resource or the parent where the room is claimed; None if that is not known.
    """

    until: float
    node: str | None


class Claims:
    """The claims of the resources of a pool.

    Args:
        seats: by resource.
        window: the waiting tasks.
    """

    def __init__(self, pool: Pool, keeping: Keeping, seats: Seats, window: Window) -> None:
        self._accounts = keeping.accounts
        self._seats = seats
        self._window = window
        self._types = pool.types
        self._above: dict[str, dict[int, Sleep]] = {}  # by parent and level

    def make(self, seat: Seat, number: int, head: Waiting, costs: Costs, lacking: Lacking, now: float) -> Sleep:
        """Let a resource sleep, for a level, and claim room for the next task; return its sleep."""
        made = seat.asleep[number] = Sleep(seat.name, head, costs, lacking.until, lacking.kept, lacking.node)
        for name in self._seats.parents[seat.name]:
            if name in lacking.owners:
                claims = self._above.setdefault(name, {})
                other = claims.get(number)
                if other is None or not self._holds(other, number) or not self._is_before(other.head, head, number):
                    claims[number] = made
        if seat.name not in head.promised and (at := self._accounts.in_flight_at(seat.name, costs, now)) > now:
            head.promised[seat.name] = at
        return made

    def follow(self, pool: Pool) -> None:
        """Take over a changed pool."""
        self._types = pool.types
        self._above = {name: claims for name, claims in self._above.items() if name in pool.resources}

    def delayed(self, seat: Seat, waiting: Waiting, costs: Costs, now: float) -> Delay | None:
        """Return until when a start would delay a claimed task, and where; None if it delays none."""
        for number, sleep in seat.asleep.items():
            if number <= waiting.level and self._delays(sleep, number, seat, waiting, costs, now):
                return Delay(sleep.until, sleep.node)
        for name in self._seats.parents[seat.name]:
            claims = self._above.get(name)
            for number, sleep in list(claims.items()) if claims else ():
                if not self._holds(sleep, number):
                    del self._above[name][number]
                elif number <= waiting.level and self._delays(sleep, number, seat, waiting, costs, now):
                    return Delay(sleep.until, name)
        return None

    def _holds(self, sleep: Sleep, number: int) -> bool:
        """Return whether a claim still holds: its resource sleeps, and a task waits for it."""
        seat = self._seats.get(sleep.resource)
        if seat is None or seat.asleep.get(number) is not sleep:
            return False
        if sleep.gate is not None and sleep.gate[0].opened != sleep.gate[1]:
            return False
        if sleep.head.is_gone or sleep.head.bay or sleep.head.level != number:  # the one behind it waits for the same
            level = self._window.level(number)
            head = None if level is None else level.next_for(seat.types, seat.name)
            if head is None:
                return False
            sleep.head = head
        return True

    def _delays(self, sleep: Sleep, number: int, seat: Seat, waiting: Waiting, costs: Costs, now: float) -> bool:
        """Return whether a start on a resource delays a claimed task."""
        if not self._holds(sleep, number) or sleep.head is waiting:
            return False
        if number == waiting.level and not self._is_before(sleep.head, waiting, number):
            return False
        if sleep.kept:
            return any(costs.get(name, 0.0) > 0 for name in sleep.kept)
        accounts, at, wanted = self._accounts, sleep.resource, sleep.costs
        first = First(seat.name, costs, now + self._types[waiting.task.type].duration_s)
        is_known = now < sleep.until < math.inf
        earliest = sleep.until if is_known else accounts.expected_at(at, wanted, now)
        if accounts.expected_at(at, wanted, now, first) > earliest:
            return True
        promised = sleep.head.promised.get(at)
        if promised is None or now < promised or not accounts.holds_in_flight(first, at, now):
            return False
        return accounts.in_flight_at(at, wanted, now, first) > now

    def _is_before(self, one: Waiting, other: Waiting, number: int) -> bool:
        level = self._window.level(number)
        assert level is not None, "they wait in it"
        return level.order(one) <= level.order(other)
