"""Whose turn it is among the tenants of a level, so that each gets its share.

Stride scheduling (Waldspurger and Weihl 1995): each start moves its tenant's *turn* on by its units
(`emq_scheduling.choice.costing`) divided by the tenant's weight, and the tenant with the lowest turn is next. So
tenants with a backlog get their parts within one task, whatever their tasks cost.

A resource has *reached* the highest turn that was next on it. A tenant that comes back begins there, without credit for
its idle time. The turns of tenants may lie far apart, since one has resources that the others' tasks cannot use. On a
resource that they share, a tenant is at most `SAVED_S` and one task behind what the resource has reached; a tenant that
comes back is at most as far ahead. So a tenant whose tasks had no room for long does not hold up the others, and they
do not hold it up.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from emq_scheduling.choice.seats import Seat, Seats
from emq_scheduling.model import Pool

SAVED_S = 2.0
"""Seconds of what the pool allows, by which a tenant may be behind or ahead of the others beyond one task."""

REMEMBERED = 1_000
"""Tenants without a waiting task whose turns are remembered, at most: those that are ahead of the others."""


class Turn:
    """When a tenant is next in a level.

    Attributes:
        at: the units that it started, divided by its weights.
        last: those of its last start.
        count: its waiting tasks.
    """

    __slots__ = ("at", "count", "last")

    def __init__(self, at: float) -> None:
        self.at = at
        self.last = 0.0
        self.count = 0


class Spent(NamedTuple):
    """What a start counts for its tenant.

    Attributes:
        units: of the start.
        reached: what its resource has reached.
    """

    units: float
    reached: float


class Shares:
    """The weights of the tenants, and what the resources of a pool have reached.

    Args:
        seats: by resource.
        per_s: units that the pool allows in a second.
    """

    def __init__(self, pool: Pool, seats: Seats, per_s: float) -> None:
        self._reached: dict[tuple[int, str], float] = {}
        self._seats = seats
        self.follow(pool, per_s)

    def follow(self, pool: Pool, per_s: float) -> None:
        """Take over a changed pool."""
        self._pool = pool
        self._saved = SAVED_S * per_s

    def forget(self) -> None:
        """Find again what is reached, since other resources are there, or open."""
        self._reached.clear()

    def weight(self, tenant: str) -> float:
        """Return the weight of a tenant."""
        return self._pool.weight(tenant)

    def saved(self, tenant: str) -> float:
        """Return by how much the turn of a tenant may differ from those of others."""
        return self._saved / self.weight(tenant)

    def reached(self, level: int, kind: str) -> float:
        """Return the highest turn that the open resources of a type have reached in a level."""
        found = self._reached.get((level, kind))
        if found is None:
            seats = [self._seats[name] for name in self._seats.able(kind)]
            if any(seat.is_open for seat in seats):
                seats = [seat for seat in seats if seat.is_open]
            found = max((seat.reached.get(level, 0.0) for seat in seats), default=0.0)
            self._reached[level, kind] = found
        return found

    def reach(self, seat: Seat, level: int, at: float) -> float:
        """Note that a turn was next on a resource; return what the resource has reached."""
        reached = seat.reached[level] = max(seat.reached.get(level, 0.0), at)
        for kind in seat.types:
            if self._reached.get((level, kind), math.inf) < reached:
                self._reached[level, kind] = reached
        return reached

    def closed(self, seat: Seat) -> None:
        """Leave out what a resource has reached, since it starts nothing for a while."""
        seat.is_open = False
        self._reached.clear()

    def opened(self, seat: Seat, relatives: Iterable[str]) -> None:
        """Let the tenants of a resource that was closed be no farther behind those with whom it shares limits.

        Args:
            relatives: resources that share limits with it.
        """
        for name in relatives:
            if (other := self._seats.get(name)) is not None:
                for level, at in other.reached.items():
                    seat.reached[level] = max(at, seat.reached.get(level, 0.0))
        self._reached.clear()


class Turns:
    """The turns of the tenants in one level."""

    def __init__(self, level: int, shares: Shares) -> None:
        self._level = level
        self._shares = shares
        self._turns: dict[str, Turn] = {}
        self._waiting = 0  # tenants with tasks

    def came(self, tenant: str, kind: str) -> None:
        """A task of a tenant waits."""
        turn = self._turns.get(tenant)
        if turn is None or not turn.count:
            self._waiting += 1
            reached = self._shares.reached(self._level, kind)
            at = math.nextafter(reached, -math.inf)  # it goes before those with an equal turn
            if turn is None:
                turn = self._turns[tenant] = Turn(at)
            turn.at = max(at, min(turn.at, reached + self._shares.saved(tenant) + turn.last))
        turn.count += 1

    def went(self, tenant: str, kind: str, spent: Spent | None) -> None:
        """A task of a tenant waits no more; `spent`: what its start counts, or None if it does not start."""
        turn = self._turns[tenant]
        if spent is not None:
            turn.last = spent.units / self._shares.weight(tenant)
            turn.at = max(turn.at, spent.reached - self._shares.saved(tenant) - turn.last) + turn.last
        turn.count -= 1
        if turn.count:
            return
        self._waiting -= 1
        if not self._waiting or turn.at <= self._shares.reached(self._level, kind):
            del self._turns[tenant]
        elif len(self._turns) > 2 * (self._waiting + REMEMBERED):
            idle = [name for name, each in self._turns.items() if not each.count]
            for name in heapq.nsmallest(len(idle) - REMEMBERED, idle, key=lambda name: self._turns[name].at):
                del self._turns[name]

    def at(self, tenant: str) -> float:
        """Return the turn of a tenant with waiting tasks."""
        return self._turns[tenant].at

    def backlog(self, tenant: str) -> int:
        """Return how many tasks of a tenant wait."""
        turn = self._turns.get(tenant)
        return 0 if turn is None else turn.count

    def reweigh(self, grown: Mapping[str, float], kinds: Mapping[str, Iterable[str]]) -> None:
        """Move turns that are ahead, as if the tenants' present weights had always held.

        Args:
            grown: by tenant, the factor of its weight's growth.
            kinds: by tenant, the types of its waiting tasks.
        """
        for tenant, of in kinds.items():
            turn, reached = self._turns[tenant], max(self._shares.reached(self._level, kind) for kind in of)
            turn.last /= grown[tenant]
            if turn.at > reached:
                turn.at = reached + (turn.at - reached) / grown[tenant]
