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

- **Of what a provider says is left** until its reset (`Run.left`): the units that more urgent tasks will probably use
  until then, and at least a hundredth of the amount.

Among tasks of one level, those of tenants with a backlog count as half a level less urgent than the others.

The most urgent of the types that can use a limit, and limits in flight, are never held back.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from emq_scheduling.choice.spreads import Spread, spread_of
from emq_scheduling.limits.accounts import Accounts, Charge
from emq_scheduling.limits.keyed import NO_IDS, Counted, Id
from emq_scheduling.model import DEFAULT_COST, Costs, Period, Pool


class _Place(NamedTuple):
    """A limit that a task on some resource is charged to."""

    owner: str
    spread: Spread
    name: str


class Lacking(NamedTuple):
    """Why a task does not fit.

    Attributes:
        until: when to ask again; infinity if nobody knows.
        owners: the resource or parents whose limits lack room, or keep it.
        kept: the names of the limits that have room, but keep it; none if a limit lacks room.
        node: the one that has room last, with all that counts beside its limits; None if no one lacks or keeps room.
    """

    until: float
    owners: set[str]
    kept: frozenset[str]
    node: str | None


class Keeping:
    """The accounts of a pool as tasks of each level see them: with less room for the less urgent.

    Args:
        accounts: the limits for all levels.
        now: seconds since the epoch.
    """

    def __init__(self, pool: Pool, accounts: Accounts, now: float) -> None:
        self.accounts = accounts
        self._pool = Pool(pool.name)
        self._spreads: dict[str, dict[tuple[str, Period], Spread]] = {}  # by owner
        self._places: dict[str, tuple[_Place, ...]] = {}  # by resource, of those asked about
        self._urgent: dict[str, Counter[float]] = {}  # by owner: how many below it take which most urgent priority
        self._counted: dict[str, tuple[list[str], float]] = {}  # by resource: where it counts there, and what
        self.follow(pool, now)

    def follow(self, pool: Pool, now: float) -> None:
        """Take over a changed pool; `Accounts.follow` comes first."""
        concerned = {*self.accounts.changed, *self.accounts.moved}
        if pool.types != self._pool.types:
            concerned.update(pool.resources)
        self._pool = pool
        owners = {*self.accounts.changed, *self._count(concerned)}
        for name in owners:
            former = self._spreads.pop(name, {})
            if name in pool.resources:
                meters = self.accounts.account(name).meters
                most_urgent = min(self._urgent.get(name, ()), default=math.inf)
                found = self._spreads[name] = {}
                for key, meter in meters.items():
                    if key[1] != "in_flight":
                        found[key] = spread_of(meter, now, former.get(key))
                        found[key].follow(meter, most_urgent)
                        found[key].heed(self.accounts.account(name).quotes, key)
        self._places.clear()

    def _count(self, names: Iterable[str]) -> set[str]:
        """Count the most urgent priorities of these resources again; return where a figure may have changed."""
        found: set[str] = set()
        for name in names:
            line, level = self._counted.pop(name, ((), math.inf))
            for each in line:
                self._urgent[each][level] -= 1
                if not self._urgent[each][level]:
                    del self._urgent[each][level]
            found.update(line)
            if (resource := self._pool.resources.get(name)) is not None and resource.takes:
                level = min(self._pool.types[kind].priority for kind in resource.takes)
                line, _ = self._counted[name] = self._pool.line(name), level
                for each in line:
                    self._urgent.setdefault(each, Counter())[level] += 1
                found.update(line)
        for each in found:
            if not self._urgent[each]:
                del self._urgent[each]
        return found

    def _places_of(self, resource: str) -> tuple[_Place, ...]:
        found = self._places.get(resource)
        if found is None:
            line = self._pool.line(resource)
            found = tuple(_Place(o, spread, name) for o in line for (name, _), spread in self._spreads[o].items())
            self._places[resource] = found
        return found

    def fits(self, resource: str, costs: Costs, now: float, level: float) -> bool:
        """Return True if a task of the level may start now."""
        return self.accounts.fits(resource, costs, now) and self._wait_s(resource, costs, now, level) <= 0

    def lacking(self, resource: str, costs: Costs, now: float, level: float) -> Lacking:
        """Return why a task does not fit now, and until when."""
        if not self.accounts.fits(resource, costs, now):
            lacking = {
                owner
                for owner, (name, _), meter in self.accounts.meters(resource)
                if not meter.fits(costs.get(name, DEFAULT_COST), now)
            }
            until = self.accounts.next_at(resource, costs, now)
            return Lacking(until, lacking, frozenset(), self.accounts.last_to_fit(resource, costs, now))
        kept = [
            (wait_s, owner, name)
            for owner, spread, name in self._places_of(resource)
            if (units := costs.get(name, DEFAULT_COST)) and (wait_s := spread.wait_s(level, units, now)) > 0
        ]
        longest, node = 0.0, None
        for wait_s, owner, _ in kept:
            if wait_s >= longest:
                longest, node = wait_s, owner
        return Lacking(now + longest, {each[1] for each in kept}, frozenset(each[2] for each in kept), node)

    def charge(
        self,
        resource: str,
        costs: Costs,
        now: float,
        level: float,
        ends_at: float = math.inf,
        task: Counted | None = None,
        ids: tuple[Id, ...] = NO_IDS,
    ) -> Charge:
        """Charge a task that `fits`; see `Accounts.charge`."""
        charge = self.accounts.charge(resource, costs, now, ends_at, task, ids)
        assert charge is not None, "it fits"
        for _, spread, name in self._places_of(resource):
            if units := costs.get(name, DEFAULT_COST):
                spread.count(level, units, now)
        return charge

    def _wait_s(self, resource: str, costs: Costs, now: float, level: float) -> float:
        longest = 0.0
        for _, spread, name in self._places_of(resource):
            units = costs.get(name, DEFAULT_COST)
            if units and (wait_s := spread.wait_s(level, units, now)) > longest:
                longest = wait_s
        return longest
