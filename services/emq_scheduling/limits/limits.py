"""Meters: each counts the use of one limit, and its room.

- **Windows** (`WindowMeter`, `DayMeter`). Time is cut into aligned cells: of a second for limits per second and per
  minute, of a minute for limits per hour, of a local day for limits per day. The units that any `cells` consecutive
  cells hold stay within the amount: 1 cell for a second and a day, 61 for a minute and an hour. A minute that begins
  within a second touches 61 seconds. So no minute and no hour is over the limit, wherever it begins. In exchange,
  steady use reaches 60 / 61 of the amount.
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

import math
from typing import Protocol, Self

from emq_scheduling.limits.meter import TOLERANCE, Meter
from emq_scheduling.limits.windows import DayMeter, WindowMeter
from emq_scheduling.model import Limit

__all__ = ["TOLERANCE", "DayMeter", "Holder", "InFlightMeter", "Meter", "Pace", "WindowMeter", "meter_of"]


TOUCHED = 61
"""Seconds that a minute touches, and minutes that an hour touches, if it begins within one."""


class Holder(Protocol):
    """A task in flight.

    Attributes:
        ends_at: when it will probably end; infinity if nobody knows.
    """

    ends_at: float

    def units_of(self, meter: Meter) -> float:
        """Return the units that it holds."""


class InFlightMeter(Meter):
    """Counts the units that are held now. `refund` is their end.

    Attributes:
        holders: the tasks that hold them.
    """

    __slots__ = ("_factor", "_used", "holders")

    def __init__(self, amount: float) -> None:
        super().__init__(amount)
        self._used = 0.0
        self._factor = 1.0
        self.holders: dict[Holder, None] = {}

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
        ends = [(max(each.ends_at, 2 * now - each.ends_at), each.units_of(self)) for each in self.holders]
        ends.append((after_ends_at, after))
        ends.sort()
        for at, held in ends:
            left += held
            if units <= left:
                return at
        return ends[-1][0]

    def copy(self) -> Self:
        made = type(self)(self.amount)
        made._used, made._factor, made.holders = self._used, self._factor, self.holders
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
    if limit.per == "second":
        return WindowMeter(limit.amount, 1, 1)
    if limit.per == "minute":
        return WindowMeter(limit.amount, 1, TOUCHED)
    if limit.per == "hour":
        return WindowMeter(limit.amount, 60, TOUCHED)
    if limit.per == "day":
        return DayMeter(limit.amount, zone)
    return InFlightMeter(limit.amount)
