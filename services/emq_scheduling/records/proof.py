"""Counts starts and charges again, from the records alone, and compares them with the limits that held at each start.

This shares no code with `limits` and `accounts`, which decided about the starts. A start must have found room under
each limit of its resource and of all parents, by the version of the pool under which it was charged, at the amount of
its calendar at that moment:

- *Rolling.* Any period of that length, to the microsecond, wherever it begins.
- *Calendar.* Seconds, minutes and hours of the clock; days in the zone of the limit or of the resource's calendar.
- *Buckets.* Refilled without steps from one start to the next.
- These count the units that the task really used, up to its charge at the start.
- *Debt.* Units beyond the charge count from the end of the attempt on: in the present period as far as there is room,
  then in the next ones. While some are left, nothing may start.
- *In flight.* Units of the attempts that have started and not ended.

If the records do not show when exactly a limit changed, the larger amount and burst count for the debt, and for what
comes into a bucket, and a day that ended meanwhile in either zone has ended. A limit that changes its kind begins again
with nothing.
"""

from __future__ import annotations

import datetime
import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from zoneinfo import ZoneInfo

from emq_scheduling.model import DEFAULT_COST, Limit, Pool
from emq_scheduling.pools import hours as weekly
from emq_scheduling.pools import rules
from emq_scheduling.records.counts import FlightCount, Key, LimitProof, PeriodCount, count_of
from emq_scheduling.records.records import Attempt

__all__ = ["LimitProof", "Recount"]


class _Charged(NamedTuple):
    """A limit that a task is charged to.

    Attributes:
        owner: the resource, or its parent, whose limit it is.
        most: the largest amount by the calendar.
    """

    owner: str
    limit: Limit
    most: float


class _Running(NamedTuple):
    """Attributes:
    counts: of the limits by period that it was charged to.
    held: of the limits in flight that it is held under now.
    """

    row: Attempt
    counts: Sequence[PeriodCount]
    held: Sequence[FlightCount]


class Recount:
    """Counts the rows of a pool again. Add them in the order of their starts, then ask for the result.

    Args:
        versions: the versions of the pool, by number.

    Attributes:
        attempts: that started.
        unproven: starts of which the version, or the resource in it, is not known any more.
    """

    def __init__(self, versions: Mapping[int, Pool]) -> None:
        self._versions = versions
        self._version = 0
        self._at_us = 0  # the last start
        self._counts: dict[Key, PeriodCount] = {}
        self._flights: dict[Key, FlightCount] = {}
        self._gone: list[PeriodCount | FlightCount] = []
        self._chains: dict[str, Sequence[_Charged]] = {}
        self._running: dict[int, _Running] = {}
        self._ends: list[tuple[int, int]] = []
        self._amounts: dict[tuple[str, int], Mapping[str, float]] = {}
        self.attempts = self.unproven = 0

    def add(self, row: Attempt) -> None:
        """Count a row."""
        if not row.resource:
            return
        self.attempts += 1
        pool = self._versions.get(row.version)
        if pool is None or row.resource not in pool.resources:
            self.unproven += 1
            return
        # The owner followed a change at some time since the last start; of two amounts the larger one counts.
        for version in range(self._version + 1, row.version + 1):
            if (followed := self._versions.get(version)) is not None:
                self._follow(version, followed, row.started_us)
        self._end_until(row.started_us)
        self._start(pool, row)
        self._at_us = row.started_us

    def result(self) -> list[LimitProof]:
        """Return the results, limit by limit, those of one resource together."""
        self._end_until(1 << 62)
        found: dict[Key, LimitProof] = {}
        for count in (*self._gone, *self._counts.values(), *self._flights.values()):
            told, key = count.told, (count.told.resource, count.told.limit, count.told.per)
            found[key] = told if key not in found else _joined(found[key], told)
        return [found[key] for key in sorted(found)]

    def _start(self, pool: Pool, row: Attempt) -> None:
        counts: list[PeriodCount] = []
        held: list[FlightCount] = []
        for owner, limit, most in self._chain(pool, row.resource):
            count: PeriodCount | FlightCount
            if limit.per == "in_flight":
                held.append(count := self._flight(owner, limit))
            else:
                counts.append(count := self._count(pool, owner, limit))
                count.arrive(limit, most, row.started_us)
            count.start(row.started_us, _at_start(row, limit.name), self._amount(pool, owner, limit, row.started_us))
        self._running[self.attempts] = _Running(row, counts, held)
        if row.ended_us:
            heapq.heappush(self._ends, (row.ended_us, self.attempts))

    def _end_until(self, now_us: int) -> None:
        while self._ends and self._ends[0][0] <= now_us:
            ended_us, number = heapq.heappop(self._ends)
            row, counts, held = self._running.pop(number)
            for flight in held:
                flight.held -= _at_start(row, flight.told.limit)
            for count in counts if row.actual else ():
                name = count.told.limit
                charged = row.costs.get(name, DEFAULT_COST)
                more = (row.actual or {}).get(name, charged) - charged
                if more > 0:
                    count.owe(ended_us, more)

    def _follow(self, version: int, pool: Pool, now_us: int) -> None:
        """Take over a changed pool as its owner did: limits that remain keep their use."""
        self._version = version
        self._chains, self._amounts = {}, {}
        there: dict[Key, Limit] = {
            (name, limit.name, limit.per): limit for name, each in pool.resources.items() for limit in each.limits
        }
        self._gone += [self._flights.pop(key) for key in self._flights.keys() - there.keys()]
        for key, count in list(self._counts.items()):
            limit = there.get(key)
            if limit is None or limit.counts != count.told.kind:
                self._gone.append(self._counts.pop(key))
                continue
            most = rules.most_of(pool, pool.resources[key[0]], limit)
            count.follow(limit, _zone(pool, key[0], limit), most, self._at_us, now_us)
        for number, running in self._running.items():
            if running.row.resource in pool.resources:
                self._running[number] = self._rebound(pool, running)

    def _rebound(self, pool: Pool, running: _Running) -> _Running:
        """Hold an attempt that runs under the limits in flight of a changed pool."""
        row = running.row
        for count in running.held:
            count.held -= _at_start(row, count.told.limit)
        chain = self._chain(pool, row.resource)
        held = [self._flight(owner, limit) for owner, limit, _ in chain if limit.per == "in_flight"]
        for count in held:
            count.held += _at_start(row, count.told.limit)
        return running._replace(held=held)

    def _chain(self, pool: Pool, resource: str) -> Sequence[_Charged]:
        """Return the limits that a task on the resource is charged to."""
        if pool is not self._versions.get(self._version):
            return list(_limits(pool, resource))
        found = self._chains.get(resource)
        if found is None:
            found = self._chains[resource] = list(_limits(pool, resource))
        return found

    def _count(self, pool: Pool, owner: str, limit: Limit) -> PeriodCount:
        key = (owner, limit.name, limit.per)
        found = self._counts.get(key)
        if found is None:
            found = self._counts[key] = count_of(key, limit, _zone(pool, owner, limit))
        return found

    def _flight(self, owner: str, limit: Limit) -> FlightCount:
        key = (owner, limit.name, limit.per)
        found = self._flights.get(key)
        if found is None:
            found = self._flights[key] = FlightCount(key, limit)
        return found

    def _amount(self, pool: Pool, owner: str, limit: Limit, now_us: int) -> float:
        name = pool.resources[owner].calendar
        if name is None:
            return limit.amount
        place = (name, now_us // 60_000_000)
        by_name = self._amounts.get(place) if pool is self._versions.get(self._version) else None
        if by_name is None:
            if len(self._amounts) > 10_000:
                self._amounts = {}
            by_name = self._amounts[place] = _amounts_at(pool, name, now_us)
        return by_name.get(limit.name, limit.amount)


def _at_start(row: Attempt, name: str) -> float:
    """Return the units that count from the start on: those charged, less those that were given back."""
    charged = row.costs.get(name, DEFAULT_COST)
    return charged if row.actual is None else min(charged, row.actual.get(name, charged))


def _limits(pool: Pool, resource: str) -> Iterable[_Charged]:
    at: str | None = resource
    while at is not None:
        for limit in pool.resources[at].limits:
            yield _Charged(at, limit, rules.most_of(pool, pool.resources[at], limit))
        at = pool.resources[at].parent


def _zone(pool: Pool, resource: str, limit: Limit) -> str:
    if limit.zone is not None:
        return limit.zone
    calendar = pool.resources[resource].calendar
    return "UTC" if calendar is None else pool.calendars[calendar].zone


def _amounts_at(pool: Pool, calendar: str, now_us: int) -> Mapping[str, float]:
    """Return the amounts that a calendar sets at a time, by the clock on the wall."""
    local = datetime.datetime.fromtimestamp(now_us / 1e6, ZoneInfo(pool.calendars[calendar].zone))
    minute = local.weekday() * weekly.DAY_MIN + local.hour * 60 + local.minute
    found: dict[str, float] = {}
    for each in pool.calendars[calendar].hours:
        if any(start <= at < end for start, end in weekly.spans(each) for at in (minute, minute + weekly.WEEK_MIN)):
            found.update(each.amounts)
    return found


def _joined(one: LimitProof, other: LimitProof) -> LimitProof:
    """Return the result of a limit that was removed and came back."""
    high = max(one, other, key=lambda told: told.peak / told.amount if told.amount else told.peak)
    return LimitProof(
        *(one.resource, one.limit, one.per, one.starts + other.starts, one.units + other.units, high.peak, high.amount),
        *(max(one.most_debt, other.most_debt), one.over_s + other.over_s),
        min(filter(None, (one.first_over_us, other.first_over_us)), default=0),
        other.kind,
    )
