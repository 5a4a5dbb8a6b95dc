"""Keeps room, which less urgent tasks leave to more urgent ones that will probably come soon.

Without this, a backlog of marketing would use up a limit at the beginning of each period, and a verification code that
comes a moment later would wait for the next one. So less urgent tasks get a limit like this:

- **Of a second of the clock**, as a token bucket of its amount gives it, with a burst of a tenth of a second. They
  leave room for the units that more urgent tasks will probably use in the rest of the second: the expected number,
  twice its standard deviation (as for Poisson arrivals), and one task more. From `spreads.RELEASE` of the second on,
  nothing is kept, since the rest would be lost.
- **Of a longer limit**, evenly (`emq_scheduling.limits.evenness`), except of a bucket, which refills evenly by itself.
  They always leave a hundredth of the amount; and if more urgent tasks came lately, one of these tasks and twice the
  standard deviation of their number in a second.
- **Of a day of the calendar**, at once, but for the units that more urgent tasks will probably use until its end; these
  are at most half of that time's part.

Among tasks of one level, those of tenants with a backlog count as half a level less urgent than the others.

The most urgent of the types that can use a limit, and limits in flight, are never held back.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from emq_scheduling.choice.spreads import Spread, spread_of
from emq_scheduling.limits.accounts import Accounts, Charge
from emq_scheduling.model import DEFAULT_COST, Costs, Pool


class _Place(NamedTuple):
    """A limit that a task on some resource is charged to."""

    owner: str
    spread: Spread
    name: str


class Lacking(NamedTuple):
    """Why a task does not fit.

    Attributes:
        owners: the resource or parents whose limits lack room, or keep it.
        kept: the names of the limits that have room, but keep it; none if a limit lacks room.
        is_steady: whether the same holds for other tasks of its level, until `Keeping.next_at` of this one.
    """

    owners: set[str]
    kept: frozenset[str]
    is_steady: bool


class Keeping:
    """The accounts of a pool as tasks of each level see them: with less room for the less urgent.

    Args:
        accounts: the limits for all levels.
        now: seconds since the epoch.
    """

    def __init__(self, pool: Pool, accounts: Accounts, now: float) -> None:
        self.accounts = accounts
        self._pool = pool
        self._spreads: dict[tuple[str, str, str], Spread] = {}
        self._places: dict[str, tuple[_Place, ...]] = {}
        self.follow(pool, now)

    def follow(self, pool: Pool, now: float) -> None:
        """Take over a changed pool; `Accounts.follow` comes first."""
        self._pool = pool
        self.refresh(now)

    def refresh(self, now: float) -> None:
        """Take over changed meters of the accounts."""
        urgent = self._most_urgent()
        spreads: dict[tuple[str, str, str], Spread] = {}
        self._places = {}
        for resource in self.accounts.names():
            places = []
            for owner, (name, per), meter in self.accounts.meters(resource):
                if per == "in_flight":
                    continue
                key = (owner, name, per)
                if key not in spreads:
                    spread = spreads[key] = spread_of(meter, now, self._spreads.get(key))
                    spread.follow(meter, urgent.get(owner, math.inf))
                places.append(_Place(owner, spreads[key], name))
            self._places[resource] = tuple(places)
        self._spreads = spreads

    def fits(self, resource: str, costs: Costs, now: float, level: float) -> bool:
        """Return True if a task of the level may start now."""
        return self.accounts.fits(resource, costs, now) and self._wait_s(resource, costs, now, level) <= 0

    def next_at(self, resource: str, costs: Costs, now: float, level: float) -> float:
        """Return when to ask again for a task that does not fit now."""
        at = self.accounts.next_at(resource, costs, now)
        return at if at > now else now + self._wait_s(resource, costs, now, level)

    def lacking(self, resource: str, costs: Costs, now: float, level: float) -> Lacking:
        """Return why a task does not fit now."""
        lacking = {
            owner
            for owner, (name, _), meter in self.accounts.meters(resource)
            if not meter.fits(costs.get(name, DEFAULT_COST), now)
        }
        if lacking or not self.accounts.fits(resource, costs, now):
            return Lacking(lacking, frozenset(), True)
        kept = [
            (owner, name, spread.is_steady)
            for owner, spread, name in self._places[resource]
            if (units := costs.get(name, DEFAULT_COST)) and spread.wait_s(level, units, now) > 0
        ]
        is_steady = bool(kept) and all(each for _, _, each in kept)
        return Lacking({owner for owner, _, _ in kept}, frozenset(name for _, name, _ in kept), is_steady)

    def charge(self, resource: str, costs: Costs, now: float, level: float, ends_at: float = math.inf) -> Charge:
        """Charge a task that `fits`, and will probably end at `ends_at`."""
        charge = self.accounts.charge(resource, costs, now, ends_at)
        assert charge is not None, "it fits"
        for _, spread, name in self._places[resource]:
            if units := costs.get(name, DEFAULT_COST):
                spread.count(level, units, now)
        return charge

    def _most_urgent(self) -> dict[str, float]:
        """Return, by resource, the priority of the most urgent type that it, or a resource below it, takes."""
        found: dict[str, float] = {}
        for name, resource in self._pool.resources.items():
            level = min((self._pool.types[kind].priority for kind in resource.takes), default=math.inf)
            for each in self._pool.line(name):
                found[each] = min(found.get(each, math.inf), level)
        return found

    def _wait_s(self, resource: str, costs: Costs, now: float, level: float) -> float:
        longest = 0.0
        for _, spread, name in self._places[resource]:
            units = costs.get(name, DEFAULT_COST)
            if units and (wait_s := spread.wait_s(level, units, now)) > longest:
                longest = wait_s
        return longest
