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
- *By key.* The limits by tenant and by key count for each key by itself. One result tells of all keys, with that of the
  peak.

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

from emq_scheduling.model import DEFAULT_COST, KeyLimit, Limit, Pool
from emq_scheduling.pools import hours as weekly
from emq_scheduling.pools import rules
from emq_scheduling.records.counts import Count, FlightCount, Key, LimitProof, PeriodCount, count_of
from emq_scheduling.records.records import Attempt

__all__ = ["LimitProof", "Recount"]


PRUNE = 20_000
"""Starts after which the counts of keys are dropped that hold nothing."""

_Whose = tuple[str, ...] | None
"""The key of a count; None of a resource's limit."""


class _Charged(NamedTuple):
    """A limit that a task is charged to.

    Attributes:
        owner: the resource, or its parent, whose limit it is; of a limit by key, its name and what it counts by.
        most: the largest amount by the calendar.
    """

    owner: str
    limit: Limit
    most: float
    whose: _Whose = None


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
        self._counts: dict[tuple[Key, _Whose], PeriodCount] = {}
        self._flights: dict[tuple[Key, _Whose], FlightCount] = {}
        self._told: dict[tuple[Key, bool], LimitProof] = {}  # by limit, and whether it is one by key
        self._gone: list[LimitProof] = []
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
        if self.attempts % PRUNE == 0 and pool.limits:
            self._prune()

    def result(self) -> list[LimitProof]:
        """Return the results, limit by limit, those of one resource together."""
        self._end_until(1 << 62)
        found: dict[Key, LimitProof] = {}
        for told in (*self._gone, *self._told.values()):
            key = told.resource, told.limit, told.per
            found[key] = told if key not in found else _joined(found[key], told)
        return [found[key] for key in sorted(found)]

    def _start(self, pool: Pool, row: Attempt) -> None:
        counts: list[PeriodCount] = []
        held: list[FlightCount] = []
        for charged in (*self._chain(pool, row.resource), *_by_key(pool, row)):
            limit, count = charged.limit, self._count(pool, charged)
            if isinstance(count, FlightCount):
                held.append(count)
            elif isinstance(count, PeriodCount):
                counts.append(count)
                count.arrive(limit, charged.most, row.started_us)
            count.start(row.started_us, _at_start(row, limit.name), self._amount(pool, charged, row.started_us))
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
        self._told = {place: told for place, told in self._told.items() if self._remains(pool, *place, told)}
        for flight in [place for place in self._flights if (place[0], place[1] is not None) not in self._told]:
            del self._flights[flight]
        for place, count in list(self._counts.items()):
            key, whose = place
            if (key, whose is not None) not in self._told:
                del self._counts[place]
                continue
            limit = _limit(pool, key, whose)
            assert limit is not None, "it remains"
            most = limit.amount if whose is not None else rules.most_of(pool, pool.resources[key[0]], limit)
            count.follow(limit, _zone(pool, key[0], limit), most, self._at_us, now_us)
        for number, running in self._running.items():
            if running.row.resource in pool.resources:
                self._running[number] = self._rebound(pool, running)

    def _remains(self, pool: Pool, key: Key, is_keyed: bool, told: LimitProof) -> bool:
        """Return whether a changed pool has a limit that counts in the same way; else its result is final."""
        limit = _limit(pool, key, () if is_keyed else None)
        if limit is not None and limit.counts == told.kind:
            return True
        self._gone.append(told)
        return False

    def _rebound(self, pool: Pool, running: _Running) -> _Running:
        """Hold an attempt that runs under the limits in flight of a changed pool."""
        row = running.row
        for count in running.held:
            count.held -= _at_start(row, count.told.limit)
        chain = (*self._chain(pool, row.resource), *_by_key(pool, row))
        found = [self._count(pool, each) for each in chain if each.limit.per == "in_flight"]
        held = [each for each in found if isinstance(each, FlightCount)]
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

    def _count(self, pool: Pool, charged: _Charged) -> Count:
        owner, limit, _, whose = charged
        key = (owner, limit.name, limit.per)
        place = key, whose
        found: Count | None = (self._flights if limit.per == "in_flight" else self._counts).get(place)
        if found is None:
            if limit.per == "in_flight":
                found = self._flights[place] = FlightCount(key, limit)
            else:
                found = self._counts[place] = count_of(key, limit, _zone(pool, owner, limit))
            found.whose = ",".join(whose or ())
            found.told = self._told.setdefault((key, whose is not None), found.told)
        return found

    def _prune(self) -> None:
        """Drop the counts of keys that hold nothing, and that no running attempt is counted by."""
        used = {id(count) for running in self._running.values() for count in (*running.counts, *running.held)}
        for counts in (self._counts, self._flights):
            idle = [
                place
                for place, count in counts.items()
                if place[1] is not None and id(count) not in used and count.is_empty(self._at_us)
            ]
            for place in idle:
                del counts[place]

    def _amount(self, pool: Pool, charged: _Charged, now_us: int) -> float:
        limit = charged.limit
        name = None if charged.whose is not None else pool.resources[charged.owner].calendar
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


def _owner(name: str, limit: KeyLimit) -> str:
    """Return how a result names a limit by key."""
    return f"{name} by {', '.join(limit.names)}"


def _by_key(pool: Pool, row: Attempt) -> Iterable[_Charged]:
    """Yield the limits by key that count an attempt, with the amount of its key."""
    for name, limit in pool.limits.items():
        if limit.counts_type(row.ran_as):
            whose = limit.key_of(row.tenant, row.keys)
            amount = limit.amount_of(whose)
            yield _Charged(_owner(name, limit), limit.limit(name, amount), amount, whose)


def _limit(pool: Pool, key: Key, whose: _Whose) -> Limit | None:
    """Return a limit in a changed pool, one by key with the amount of its key; None if it is gone."""
    owner, name, per = key
    if whose is None:
        resource = pool.resources.get(owner)
        found = () if resource is None else resource.limits
        return next((each for each in found if (each.name, each.per) == (name, per)), None)
    for label, limit in pool.limits.items():
        made = limit.limit(label, limit.amount_of(whose))
        if (_owner(label, limit), made.name, made.per) == key:
            return made
    return None


def _zone(pool: Pool, resource: str, limit: Limit) -> str:
    if limit.zone is not None:
        return limit.zone
    calendar = pool.resources[resource].calendar if resource in pool.resources else None
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
        high.key,
    )
