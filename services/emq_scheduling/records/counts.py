"""Counts the use of one limit again, by no code of `emq_scheduling.limits`; see `emq_scheduling.records.proof`."""

from __future__ import annotations

import abc
import datetime
import math
from collections import deque
from zoneinfo import ZoneInfo

import msgspec

from emq_scheduling.model import PERIODS_S, Kind, Limit

SLACK = 1e-6
"""Part of an amount, of 1 if that is more, by which sums of fractions may differ from those of the meters."""

Key = tuple[str, str, str]
"""Resource, name of the limit, period."""


class LimitProof(msgspec.Struct):
    """The result for one limit.

    Attributes:
        starts: that were charged to it.
        units: really used, by the tasks that have ended; charged, by the others.
        peak: most units that counted at a start, compared with the amount that held then; of a bucket, most units that
            were missing from it.
        amount: the one that held at the peak; of a bucket, its burst.
        most_debt: most units beyond their charges that waited for a later period.
        over_s: seconds in which something started above the limit.
        first_over_us: the first such start; 0 for none.
        kind: how its period counts; None in flight.
        key: of a limit by key: that of the peak, as in `KeyLimit.amounts`.
    """

    resource: str
    limit: str
    per: str
    starts: int = 0
    units: float = 0.0
    peak: float = 0.0
    amount: float = 0.0
    most_debt: float = 0.0
    over_s: int = 0
    first_over_us: int = 0
    kind: Kind | None = None
    key: str = ""


class Count(abc.ABC):
    """Counts one limit.

    Attributes:
        told: the result; of a limit by key, that of all keys.
        whose: of a limit by key: the key.
        most: the largest amount since the last look.
    """

    def __init__(self, key: Key, limit: Limit) -> None:
        self.told = LimitProof(*key, kind=limit.counts)
        self.whose = ""
        self.most = 0.0
        self._last_over_s = -1

    def start(self, now_us: int, units: float, amount: float) -> None:
        """Count a start, and whether it had room."""
        told = self.told
        told.starts += 1
        told.units += units
        used, amount = self._used(now_us, units, amount)
        if units <= 0:  # what costs nothing may always start
            return
        if used * max(told.amount, 1e-12) > told.peak * max(amount, 1e-12) or not told.peak:
            told.peak, told.amount, told.key = used, amount, self.whose
        if used > amount + SLACK * max(1.0, amount):
            told.first_over_us = told.first_over_us or now_us
            if now_us // 1_000_000 != self._last_over_s:
                self._last_over_s = now_us // 1_000_000
                told.over_s += 1

    @abc.abstractmethod
    def is_empty(self, now_us: int) -> bool:
        """Return whether nothing counts any more."""

    @abc.abstractmethod
    def _used(self, now_us: int, units: float, amount: float) -> tuple[float, float]:
        """Count units; return all that count now, and the most that may."""


class FlightCount(Count):
    """Units in flight.

    Attributes:
        held: now.
    """

    held = 0.0

    def is_empty(self, now_us: int) -> bool:
        return self.held <= SLACK

    def _used(self, now_us: int, units: float, amount: float) -> tuple[float, float]:
        self.held += units
        return self.held, amount


class PeriodCount(Count):
    """A limit by time.

    Attributes:
        debt: units beyond their charges that no period has counted yet.
    """

    def __init__(self, key: Key, limit: Limit, zone: str) -> None:
        super().__init__(key, limit)
        self.zone = zone

    def follow(self, limit: Limit, zone: str, amount: float, at_us: int, now_us: int) -> None:
        """Take over the limit in a pool that was changed at some time from `at_us` to `now_us`.

        Whatever is larger than before counts from then on; whatever is smaller, from the next start on.
        """
        if amount > self.most:
            self._raise_to(amount, at_us)

    def arrive(self, limit: Limit, amount: float, now_us: int) -> None:
        """Go to a start: by the largest amount until then, and by that of the limit from then on."""
        self.most = max(self.most, amount)
        self.advance(now_us)
        self.most = amount

    @abc.abstractmethod
    def advance(self, now_us: int) -> None:
        """Go to a time, with the largest amount since the last one."""

    @abc.abstractmethod
    def _raise_to(self, amount: float, at_us: int) -> None:
        """Count by a larger amount from a time on."""

    def owe(self, now_us: int, units: float) -> None:
        """Count units beyond what a task was charged."""
        self.advance(now_us)
        self.told.units += units
        self.told.most_debt = max(self.told.most_debt, self._owed(now_us, units))

    @abc.abstractmethod
    def _owed(self, now_us: int, units: float) -> float:
        """Count such units; return the debt."""


class CellCount(PeriodCount):
    """Rolling periods, to the microsecond, or those of the calendar."""

    def __init__(self, key: Key, limit: Limit, zone: str) -> None:
        super().__init__(key, limit, zone)
        self.debt = 0.0
        self._period_us = int(PERIODS_S[limit.per] * 1_000_000)
        self._is_day = limit.counts == "calendar" and limit.per == "day"
        self._width = self._period_us if limit.counts == "rolling" else 1  # cells that count together
        self._cells: deque[list[float]] = deque()
        self._total = 0.0

    def follow(self, limit: Limit, zone: str, amount: float, at_us: int, now_us: int) -> None:
        """See the base. The use of the present day counts in another zone's present day, if neither has ended since."""
        if self._is_day and zone != self.zone:
            self.advance(at_us)
            used, has_ended, self.zone = self._total, self._cell(at_us) != self._cell(now_us), zone
            self._cells.clear()
            self._total = 0.0
            if used and not has_ended and self._cell(at_us) == self._cell(now_us):
                self._add(self._cell(at_us), used)
        super().follow(limit, zone, amount, at_us, now_us)

    def advance(self, now_us: int) -> None:
        """See the base. Pays debt in the cells before, as far as the largest amount has room."""
        cell, amount = self._cell(now_us), self.most
        while self.debt > 0 and self._cells and self._cells[-1][0] < cell:
            before = self.debt
            following = int(self._cells[0][0]) + self._width if self._total >= amount else int(self._cells[-1][0]) + 1
            self._forget(min(following, cell))
            self._pay(min(following, cell), amount)
            if following >= cell or (self.debt == before and not self._cells):
                break
        self._forget(cell)
        self._pay(cell, amount)

    def is_empty(self, now_us: int) -> bool:
        self.advance(now_us)
        return not self._cells and self.debt <= 0

    def _raise_to(self, amount: float, at_us: int) -> None:
        if self.debt > 0:
            self.advance(at_us)
        self.most = amount
        if self.debt > 0:
            self._pay(self._cell(at_us), amount)

    def _used(self, now_us: int, units: float, amount: float) -> tuple[float, float]:
        self._add(self._cell(now_us), units)
        return self._total + self.debt, amount

    def _owed(self, now_us: int, units: float) -> float:
        self.debt += units
        self._pay(self._cell(now_us), self.most)
        return self.debt

    def _cell(self, now_us: int) -> int:
        if self._is_day:
            return datetime.datetime.fromtimestamp(now_us / 1e6, ZoneInfo(self.zone)).toordinal()
        return now_us if self._width > 1 else now_us // self._period_us

    def _add(self, cell: int, units: float) -> None:
        if self._cells and self._cells[-1][0] >= cell:
            self._cells[-1][1] += units
        else:
            self._cells.append([cell, units])
        self._total += units

    def _pay(self, cell: int, amount: float) -> None:
        if self.debt > 0 and amount > self._total:
            paid = min(self.debt, amount - self._total)
            self.debt -= paid
            self._add(cell, paid)

    def _forget(self, cell: int) -> None:
        while self._cells and self._cells[0][0] <= cell - self._width:
            self._total -= self._cells.popleft()[1]
        if not self._cells:
            self._total = 0.0  # leave no rounding behind


class BucketCount(PeriodCount):
    """A bucket, full at the beginning. It refills by the largest amount that the records allow."""

    def __init__(self, key: Key, limit: Limit, zone: str) -> None:
        super().__init__(key, limit, zone)
        self._full = 0.0  # the largest since the last start
        self._period_us = PERIODS_S[limit.per] * 1e6
        self._left = math.inf
        self._at_us = 0

    def follow(self, limit: Limit, zone: str, amount: float, at_us: int, now_us: int) -> None:
        super().follow(limit, zone, amount, at_us, now_us)
        self._hold(limit, amount, at_us)

    def arrive(self, limit: Limit, amount: float, now_us: int) -> None:
        self._hold(limit, amount, self._at_us)
        super().arrive(limit, amount, now_us)
        self._full = limit.at_once(amount)
        self._left = min(self._left, self._full)

    def advance(self, now_us: int) -> None:
        came = max(0, now_us - self._at_us) * self.most / self._period_us
        self._left = min(self._left + came, self._full)
        self._at_us = max(self._at_us, now_us)

    def is_empty(self, now_us: int) -> bool:
        self.advance(now_us)
        return self._left >= self._full

    def _raise_to(self, amount: float, at_us: int) -> None:
        self.advance(at_us)
        self.most = amount

    def _hold(self, limit: Limit, amount: float, at_us: int) -> None:
        """Hold more units from a time on, if the limit says so."""
        if (full := limit.at_once(amount)) > self._full:
            if self._full > 0:
                self.advance(at_us)
            self._full = full

    def _used(self, now_us: int, units: float, amount: float) -> tuple[float, float]:
        self._left -= units
        return self._full - self._left, self._full

    def _owed(self, now_us: int, units: float) -> float:
        self._left -= units
        return max(0.0, -self._left)


def count_of(key: Key, limit: Limit, zone: str) -> PeriodCount:
    """Return the count of a limit by time, at nothing."""
    return (BucketCount if limit.counts == "bucket" else CellCount)(key, limit, zone)
