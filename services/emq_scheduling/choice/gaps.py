"""Gaps: room that is too small for the next task, so that a smaller one may use it.

A smaller task starts in a gap only if it delays no task that goes before it; see `emq_scheduling.choice.claims`.
"""

from __future__ import annotations

from emq_scheduling.choice.bays import Bays
from emq_scheduling.choice.claims import Claims
from emq_scheduling.choice.costing import Costing
from emq_scheduling.choice.keeping import Keeping
from emq_scheduling.choice.seats import Seat, Sleep
from emq_scheduling.choice.waiting import Waiting
from emq_scheduling.choice.window import Level, Window
from emq_scheduling.model import Costs

GAP_TRIES = 8
"""Tasks of each line that are tried in a gap."""


class Gaps:
    """Finds tasks that may start on a resource before the next one.

    Args:
        window: the waiting tasks.
    """

    def __init__(self, keeping: Keeping, claims: Claims, costing: Costing, window: Window, bays: Bays) -> None:
        self._keeping = keeping
        self._claims = claims
        self._costing = costing
        self._window = window
        self._bays = bays

    def smaller(self, seat: Seat, level: Level, sleep: Sleep, now: float) -> tuple[Waiting | None, bool]:
        """Find a smaller task that may start before the next one.

        Args:
            sleep: the claim of the resource for the next task of the level.

        Returns:
            the smaller task, or None if none may start now; and whether there are smaller ones at all.
        """
        are_there = False
        for waiting in self._candidates(seat, level, sleep):
            own = self._costing.of(waiting, seat.name)
            if waiting is sleep.head or not _may_go_before(own, sleep):
                continue
            are_there = True
            if not self._keeping.fits(seat.name, own, now, self._window.standing(waiting)):
                continue
            if waiting.ids and self._bays.holds_back(waiting, own, now):
                continue
            if self._claims.delayed(seat, waiting, own, now) is None:
                return waiting, True
        return None, are_there

    def _candidates(self, seat: Seat, level: Level, sleep: Sleep) -> list[Waiting]:
        """Return some tasks of each line that may have smaller ones, in the order of their tenants' turns."""
        lines = [
            line
            for line, kind in level.lines_for(seat.types, seat.name)
            if line.size is not None or _may_go_before(self._costing.of_type(kind, seat.name), sleep)
        ]
        found = [waiting for line in lines for waiting in line.behind(GAP_TRIES)]
        found.sort(key=lambda waiting: (level.turn(waiting.task.tenant), waiting.order))
        return found


def is_smaller(costs: Costs, other: Costs) -> bool:
    """Return whether a task costs less of any limit than another one; nothing of a limit that is gone meanwhile."""
    return costs is not other and any(costs.get(name, 0.0) < cost for name, cost in other.items())


def _may_go_before(costs: Costs, sleep: Sleep) -> bool:
    """Return whether a task is smaller, and is not charged to what is kept, as nothing behind the next task is."""
    return is_smaller(costs, sleep.costs) and not any(costs.get(name, 0.0) > 0 for name in sleep.kept)
