"""Meters: each counts the use of one limit, and its room.

- **Windows** (`WindowMeter`, `DayMeter`). Time is cut into aligned cells. The units that any `cells` consecutive cells
  hold stay within the amount. A limit by the calendar has 1 cell, as long as its period. A rolling limit has
  `CELLS` + 1, each a `CELLS`-th of its period: 61 of a second for a minute, of a minute for an hour, of 24 minutes for
  a day; 65 of a 64th for a second. A period that begins within a cell touches one cell more than it is long. So no
  period is over the limit, wherever it begins. In exchange, steady use reaches 60 / 61 (64 / 65) of the amount. A
  meter holds the cells with use, so its memory is bounded.
- **Evenly** (`EvenMeter`). Rolling limits, and minutes and hours of the calendar, also know how far their use is ahead
  of an even rate (`emq_scheduling.limits.evenness`).
- **Buckets** (`BucketMeter`). Units come at a rate, and pile up to a burst.
- **In flight** (`InFlightMeter`). Units that are held now.

**Debt.** If a task used more than its estimate, the difference is charged when it is known (`owe`). Units that do not
fit into the present window are debt: they are charged to the next cells as soon as these have room, before anything
starts. So debt delays later starts by as much as a right estimate would have.

**Clocks that go back.** Before the beginning of its present cell a meter has no room, so that no cell is used twice. If
the clock went back by more than `windows.MOST_BACK_S`, the meter goes back, too, with its counts.

Sums of fractions are compared with a tolerance of a billionth. Integers are exact. All times are seconds since the
epoch and passed in. Nothing here waits or knows of other limits; `emq_scheduling.limits.accounts` charges several at
once.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
import operator
from collections.abc import Iterator
from typing import Protocol, Self

from emq_scheduling.limits.buckets import BucketMeter
from emq_scheduling.limits.meter import TOLERANCE, Meter, PeriodMeter
from emq_scheduling.limits.windows import DayMeter, EvenMeter, WindowMeter
from emq_scheduling.model import PERIODS_S, Limit

__all__ = [
    "TOLERANCE",
    "BucketMeter",
    "DayMeter",
    "EvenMeter",
    "Holder",
    "InFlightMeter",
    "Meter",
    "Pace",
    "PeriodMeter",
    "WindowMeter",
    "meter_of",
]


CELLS = {"second": 64, "minute": 60, "hour": 60, "day": 60}
"""Parts into which a rolling period is cut. It counts one more, since a period that begins within one touches that."""


_numbers = itertools.count()


class Holder(Protocol):
    """A task in flight.

    Attributes:
        ends_at: when it will probably end; infinity if nobody knows.
    """

    ends_at: float

    def units_of(self, meter: Meter) -> float:
        """Return the units that it holds."""


class InFlightMeter(Meter):
    """Counts the units that are held now. `refund` is their end."""

    __slots__ = ("_ends", "_factor", "_numbers", "_used")

    def __init__(self, amount: float) -> None:
        super().__init__(amount)
        self._used = 0.0
        self._factor = 1.0
        self._numbers: dict[Holder, int] = {}  # the tasks that hold the units
        self._ends: list[tuple[float, int, Holder]] = []  # by their expected ends

    def hold(self, holder: Holder) -> None:
        """A task holds units of those that are counted."""
        number = self._numbers[holder] = next(_numbers)
        bisect.insort(self._ends, (holder.ends_at, number, holder))

    def release(self, holder: Holder) -> None:
        """A task holds none any more."""
        number = self._numbers.pop(holder, None)
        if number is not None:
            del self._ends[bisect.bisect_left(self._ends, (holder.ends_at, number))]

    def _in_order(self, now: float) -> Iterator[tuple[float, Holder | None]]:
        """Yield the tasks with the times at which they probably end, the first first."""
        middle = bisect.bisect_left(self._ends, (now,))
        late = ((2 * now - at, each) for at, _, each in reversed(self._ends[:middle]))
        return heapq.merge(late, ((at, each) for at, _, each in self._ends[middle:]), key=operator.itemgetter(0))

    def set_factor(self, factor: float) -> None:
        """Allow only this part of the amount in flight, 0 to 1; one task in any case, unless 0."""
        self._factor = factor

    def fits(self, units: float, now: float) -> bool:
        if units <= 0:
            return True
        if units > self.amount + self.slack - self._used:
            return False
        if self._factor >= 1.0:
            return True
        return self._factor > 0 and (self._used == 0 or units <= self.amount * self._factor + self.slack - self._used)

    def charge(self, units: float, now: float) -> None:
        self._used += units

    def owe(self, units: float, now: float) -> None:
        self._used += units

    def refund(self, units: float, charged_at: float, now: float) -> None:
        left = self._used - units
        self._used = left if left > TOLERANCE else 0.0

    def used(self, now: float) -> float:
        return self._used

    def next_at(self, units: float, now: float, after: float = 0.0) -> float:
        return now if self.fits(units + after, now) else math.inf

    def expected_at(self, units: float, now: float, after: float = 0.0, after_ends_at: float = math.inf) -> float:
        """Return when `units` will probably fit, by the expected ends of the tasks in flight.

        A task that is late is expected to take as much longer as it is late.

        Args:
            after: units that another task takes first, until `after_ends_at`.
        """
        if units <= 0:
            return now
        if units > self.amount + self.slack or self._factor <= 0:
            return math.inf
        left = self.amount * min(1.0, self._factor) + self.slack - self._used - after
        if units <= left or self._used + after <= 0:
            return now
        latest = now
        for at, each in heapq.merge(self._in_order(now), [(after_ends_at, None)], key=operator.itemgetter(0)):
            left += after if each is None else each.units_of(self)
            latest = at
            if units <= left:
                break
        return latest

    def copy(self) -> Self:
        made = type(self)(self.amount)
        made._used, made._factor = self._used, self._factor
        made._numbers, made._ends = self._numbers, self._ends
        return made


class Pace(Meter):
    """Spreads starts over time below a limit: at most `amount` units a second on average.

    A task starts in a second in which the pace has room left, and the rest of its costs is debt of the next seconds. So
    a task that costs more than a second's units starts, too, and then nothing for a while.
    """

    __slots__ = ("_meter",)

    def __init__(self, units_per_s: float) -> None:
        super().__init__(units_per_s)
        self._meter = WindowMeter(units_per_s, 1, 1)

    def fits(self, units: float, now: float) -> bool:
        return units <= 0 or self._meter.room(now) > self.slack

    def charge(self, units: float, now: float) -> None:
        self._meter.owe(units, now)

    def owe(self, units: float, now: float) -> None:
        self._meter.owe(units, now)

    def refund(self, units: float, charged_at: float, now: float) -> None:
        self._meter.refund(self._meter.forgive(units, now), charged_at, now)

    def used(self, now: float) -> float:
        return self._meter.used(now)

    def next_at(self, units: float, now: float, after: float = 0.0) -> float:
        if units <= 0:
            return now
        if self.amount <= 0:
            return math.inf
        made = self._meter.copy()
        made.owe(after, now)
        return made.next_at(min(self.amount, 3 * self.slack), now)

    def set_amount(self, amount: float, now: float) -> None:
        super().set_amount(amount, now)
        self._meter.set_amount(amount, now)

    def copy(self) -> Self:
        made = type(self)(self.amount)
        made._meter = self._meter.copy()
        return made


def meter_of(limit: Limit, zone: str) -> Meter:
    """Return an empty meter of a limit.

    Args:
        zone: the zone whose midnights divide the days.
    """
    if limit.per == "in_flight":
        return InFlightMeter(limit.amount)
    period_s = PERIODS_S[limit.per]
    if limit.counts == "bucket":
        return BucketMeter(limit.amount, period_s, limit.burst)
    if limit.counts == "rolling":
        cells = CELLS[limit.per]
        return EvenMeter(limit.amount, period_s / cells, cells + 1)
    if limit.per == "day":
        return DayMeter(limit.amount, zone)
    return (WindowMeter if limit.per == "second" else EvenMeter)(limit.amount, period_s, 1)
