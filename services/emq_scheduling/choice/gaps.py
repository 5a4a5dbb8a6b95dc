"""Gaps: room that is too small for the next task, so that a smaller one may use it.

A smaller task starts in a gap only if it delays no next task, of its own level or of a more urgent one (backfill, as in
EASY of Lifka 1995).

Tasks may take longer than expected. So a next task gets a *promise*: the time when it is first expected to have room in
flight. After that time, nothing that holds such room starts in its place.
"""

from __future__ import annotations

import math

from emq_scheduling.choice.costing import Costing
from emq_scheduling.choice.keeping import Keeping
from emq_scheduling.choice.seats import Seat
from emq_scheduling.choice.waiting import Level, Waiting, Window
from emq_scheduling.model import Costs, Pool

GAP_TRIES = 8
"""Tasks of each line that are tried in a gap."""


class Gaps:
    """Finds tasks that may start on a resource before the next one.

    Args:
        window: the waiting tasks.
    """

    def __init__(self, pool: Pool, keeping: Keeping, costing: Costing, window: Window) -> None:
        self._pool = pool
        self._keeping = keeping
        self._accounts = keeping.accounts
        self._costing = costing
        self._window = window

    def smaller(self, seat: Seat, level: Level, head: Waiting, costs: Costs, now: float) -> tuple[Waiting | None, bool]:
        """Find a smaller task that may start before the next one.

        Args:
            head: the next task of the level, without room now.
            costs: its costs on this resource.

        Returns:
            the smaller task, or None if none may start now; and whether there are smaller ones at all.
        """
        earliest, are_there = None, False
        for waiting in self._candidates(seat, level, costs):
            own = self._costing.of(waiting, seat.name)
            if waiting is head or not is_smaller(own, costs):
                continue
            are_there = True
            if not self._keeping.fits(seat.name, own, now, self._window.standing(waiting)):
                continue
            if self.delays_until(seat, head.level, waiting, own, now) is not None:
                continue
            if earliest is None:
                earliest = self._accounts.expected_at(seat.name, costs, now)
            if not self._delays(seat, head, costs, now, waiting, own, earliest):
                return waiting, True
        return None, are_there

    def _candidates(self, seat: Seat, level: Level, costs: Costs) -> list[Waiting]:
        """Return some tasks of each line that may have smaller ones, in the order of their tenants' turns."""
        lines = [
            line
            for line, kind in level.lines_for(seat.types, seat.name)
            if line.size is not None or is_smaller(self._costing.of_type(kind, seat.name), costs)
        ]
        found = [waiting for line in lines for waiting in line.behind(GAP_TRIES)]
        found.sort(key=lambda waiting: (level.turn(waiting.task.tenant).at, waiting.order))
        return found

    def delays_until(self, seat: Seat, number: int, waiting: Waiting, costs: Costs, now: float) -> float | None:
        """Return the time until which this start would delay a more urgent task without room; None if it delays none.

        Args:
            number: the level of the start.
        """
        for urgent, (until, wanted, _) in seat.asleep.items():
            if urgent < number and now < until and (level := self._window.level(urgent)) is not None:
                if (head := level.next_for(seat.types, seat.name)) is None:
                    continue
                if until == math.inf and not self._accounts.fits(seat.name, costs, now):
                    continue
                earliest = until if until < math.inf else self._accounts.expected_at(seat.name, wanted, now)
                if self._delays(seat, head, wanted, now, waiting, costs, earliest):
                    return until
        return None

    def promise(self, seat: Seat, head: Waiting, costs: Costs, now: float) -> None:
        """Note when a next task is expected to have room in flight, unless it was noted before."""
        if seat.name not in head.promised and (at := self._accounts.in_flight_at(seat.name, costs, now)) > now:
            head.promised[seat.name] = at

    def _delays(
        self, seat: Seat, head: Waiting, wanted: Costs, now: float, waiting: Waiting, costs: Costs, earliest: float
    ) -> bool:
        """Return whether a start delays a next task, which is expected to have room at `earliest` without it."""
        ends_at = now + self._pool.types[waiting.task.type].duration_s
        if self._accounts.expected_at(seat.name, wanted, now, costs, ends_at) > earliest:
            return True
        promised = head.promised.get(seat.name)
        if promised is None or now < promised or not self._accounts.holds_in_flight(seat.name, costs):
            return False
        return self._accounts.in_flight_at(seat.name, wanted, now, costs, ends_at) > now


def is_smaller(costs: Costs, other: Costs) -> bool:
    """Return whether a task costs less of any limit than another one."""
    return costs is not other and any(costs[name] < cost for name, cost in other.items())
