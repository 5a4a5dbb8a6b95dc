"""Keeps room, which less urgent tasks leave to more urgent ones that will probably come soon.

Without this, a backlog of marketing would use up a limit at the beginning of each second, and a verification code that
comes a moment later would wait for the next second. So if more urgent tasks have lately used a limit, at `rate` units a
second, less urgent ones get it like this:

- **Spread.** Their starts are spread over time by a token bucket of the limit's amount, with a burst of a tenth of a
  second.
- **Kept.** They leave room for the units that more urgent tasks will probably use in the rest of the second: the
  expected number, twice its standard deviation (as for Poisson arrivals), and one task more. Of a day's quota they
  leave the expected number for the rest of the day, but at most half of that time's part.
- **Released.** From `RELEASE` of a second on nothing of a limit per second is kept, since the rest would be lost.

Among tasks of one level, those of tenants with a backlog count as half a level less urgent than the others.

This holds for a limit per second whenever a more urgent type can use it, since nothing is lost. It holds for the other
limits only if a more urgent task was charged in the last minutes. The most urgent level, and limits in flight, are
never held back.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from emq.quota.bucket import Bucket
from emq_scheduling.limits import calendars
from emq_scheduling.limits.accounts import Accounts, Charge
from emq_scheduling.limits.limits import DayMeter, Meter
from emq_scheduling.model import DEFAULT_COST, PERIODS_S, Costs, Period, Pool

RELEASE = 0.98
"""Part of a second from which on nothing is kept: two hundredths are enough to use the kept room."""

BURST_S = 0.1
"""Seconds of a limit that less urgent tasks may use at once."""

HALF_LIFE_S = 30.0
"""Time after which a unit counts half in the rate of its level."""

DAY_HALF_LIFE_S = 3600.0
"""The same for quotas of a day, for which a short burst means little."""

MOST_OF_DAY = 0.5
"""Largest part of the rest of a day's quota that is kept for more urgent tasks."""

LEAST = 1e-3
"""Units a second below which more urgent tasks count as none."""

LOOK_AGAIN_S = 0.02
"""Time after which a task looks again for room that is kept."""


DAY_AGAIN_S = 60.0
"""The same for room that is kept of a day's quota, in seconds."""


class Rate:
    """Units a second of one level, the older ones counting less.

    Args:
        half_life_s: time after which a unit counts half.
    """

    __slots__ = ("at", "half_life_s", "per_s", "size")

    def __init__(self, now: float, half_life_s: float) -> None:
        self.at = now
        self.half_life_s = half_life_s
        self.per_s = 0.0
        self.size = 0.0

    def count(self, units: float, now: float) -> None:
        self.per_s = self.value(now) + units * math.log(2) / self.half_life_s
        self.size += (units - self.size) * 0.1 if self.size else units
        self.at = now

    def value(self, now: float) -> float:
        return self.per_s * math.exp2(min(0.0, self.at - now) / self.half_life_s)


class Spread:
    """One limit of one account: the use by each level, and the token bucket of the less urgent ones."""

    __slots__ = ("_began", "_bucket", "_day_ends", "_meter", "_most_urgent", "_per", "_rates")

    def __init__(self, meter: Meter, per: Period, now: float) -> None:
        self._meter = meter
        self._per = per
        self._most_urgent: float = math.inf
        self._rates: dict[float, Rate] = {}
        self._bucket = Bucket(self._per_s, self._burst, 0.0, now)
        self._began = now
        self._day_ends = -math.inf

    def follow(self, meter: Meter, most_urgent: float) -> None:
        """Take over the meter, and the level of the most urgent type that may be charged to it."""
        self._meter, self._most_urgent = meter, most_urgent

    def count(self, level: float, units: float, now: float) -> None:
        """Count a start of a level."""
        rate = self._rates.get(level)
        if rate is None:
            rate = self._rates[level] = Rate(now, DAY_HALF_LIFE_S if self._per == "day" else HALF_LIFE_S)
        rate.count(units, now)
        if self._per != "day":
            left = self._filled(now).left
            is_rest = self._per == "second" and now % 1.0 >= RELEASE  # of a second, used all at once
            self._bucket.take(min(units, max(left, 0.0) if is_rest else left + self._per_s))

    def wait_s(self, level: float, units: float, now: float) -> float:
        """Return 0 if a task of the level may use `units`, which fit; else the seconds until it should ask again."""
        if level <= self._most_urgent:
            return 0.0
        rate = size = 0.0
        for other, of in self._rates.items():
            if other < level and (value := of.value(now)) > LEAST:
                rate += value
                size = max(size, of.size)
        if rate <= LEAST:
            if self._per != "second":
                return 0.0
            size = min(units, DEFAULT_COST)
        room = self._meter.room(now)
        if isinstance(self._meter, DayMeter):
            left_s = self._day_left_s(self._meter, now)
            kept = min(rate * left_s, MOST_OF_DAY * self._meter.amount * left_s / self._period_s)
            return 0.0 if room - units >= kept else DAY_AGAIN_S
        phase = now % 1.0
        if self._per == "second" and phase >= RELEASE:
            return 0.0
        bucket = self._filled(now)
        release_s = RELEASE - phase if self._per == "second" else math.inf  # then it may start in spite of kept room
        if (refill_s := bucket.wait(min(units, bucket.most))) > 0:
            return max(1e-3, min(refill_s, release_s))
        ahead_s = 1.0 - phase if self._per == "second" else 1.0 + max(0.0, self._period_s - (now - self._began))
        soon = rate * ahead_s
        kept = soon + 2.0 * math.sqrt(soon * size) + size
        if room - units >= min(kept, self._meter.amount - units):
            return 0.0
        return max(1e-3, min(LOOK_AGAIN_S, release_s))

    def _day_left_s(self, meter: DayMeter, now: float) -> float:
        """Return the seconds until the day of the meter ends."""
        if not self._day_ends - 2 * self._period_s < now < self._day_ends:
            self._day_ends = calendars.day_start(meter.zone, calendars.day_at(meter.zone, now) + 1)
        return self._day_ends - now

    @property
    def _period_s(self) -> float:
        return PERIODS_S[self._per]

    @property
    def _per_s(self) -> float:
        return self._meter.amount / self._period_s

    @property
    def _burst(self) -> float:
        return max(1.0, self._per_s * BURST_S)

    def _filled(self, now: float) -> Bucket[float]:
        """Return the bucket with the tokens of now, at the rate of the meter's present amount."""
        if now < self._bucket.filled_at:  # the clock was put back
            self._bucket = Bucket(self._per_s, self._burst, self._bucket.left, now)
        self._bucket.follow(self._per_s, self._burst, now)
        return self._bucket


class _Place(NamedTuple):
    """A limit that a task on some resource is charged to."""

    owner: str
    spread: Spread
    name: str


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
                    spread = spreads[key] = self._spreads.get(key) or Spread(meter, per, now)
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

    def lacking(self, resource: str, costs: Costs, now: float, level: float) -> tuple[set[str], frozenset[str]]:
        """Return why a task does not fit now.

        Returns:
            The resource or parents whose limits lack room; and if none does, the names of the limits that keep it.
        """
        lacking = {
            owner
            for owner, (name, _), meter in self.accounts.meters(resource)
            if not meter.fits(costs.get(name, DEFAULT_COST), now)
        }
        if lacking or not self.accounts.fits(resource, costs, now):
            return lacking, frozenset()
        kept = [
            (owner, name)
            for owner, spread, name in self._places[resource]
            if (units := costs.get(name, DEFAULT_COST)) and spread.wait_s(level, units, now) > 0
        ]
        return {owner for owner, _ in kept}, frozenset(name for _, name in kept)

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


def released_at(now: float) -> float:
    """Return when the room that is kept of a second is given to less urgent tasks next."""
    released = math.floor(now) + RELEASE
    return released if now < released else released + 1.0
