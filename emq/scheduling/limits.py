"""Meters: each counts what is used of one limit, and tells what still fits.

- **Windows** (`WindowMeter`, `DayMeter`). Time is cut into aligned cells: of a second for limits per second and per
  minute, of a minute for limits per hour, of a local day for limits per day. The units that any `cells` consecutive
  cells hold stay within the amount: 1 cell for a second and a day, 60 for a minute and an hour. So no period is over
  the limit, wherever it begins.
- **In flight** (`InFlightMeter`). Units that are held now.

**Debt.** A task that used more than its estimate is charged the difference when it is known (`owe`). What does not fit
into the present window is debt: it is charged to the next cells as soon as they have room, before anything starts. So
debt delays later starts by as much as if it had been estimated rightly, and it is never forgotten.

**Clocks that go back.** Before the beginning of its present cell a meter has no room, so that no cell is used twice.

Sums of fractions are compared with a tolerance of a billionth. Integers are exact. All times are seconds since the
epoch and passed in. Nothing here waits or knows of other limits; `emq.scheduling.accounts` charges several at once.
"""

from __future__ import annotations

import abc
import math
import sys
from collections import deque
from typing import Self

from emq.scheduling import calendars
from emq.scheduling.model import Limit

TOLERANCE = 1e-9
"""Part of the amount (of 1, for smaller amounts) by which a sum of fractions may seem over it."""

UNLIMITED = sys.maxsize
"""Number of tasks that fit where nothing limits them."""

_NEVER = 1 << 62
"""The number of a cell that no clock reaches."""


class Meter(abc.ABC):
    """Counts what is used of one limit. Units are 0 or more, and may be fractions."""

    __slots__ = ("amount", "slack")

    def __init__(self, amount: float) -> None:
        self.amount = amount
        self.slack = TOLERANCE * max(1.0, amount)

    @abc.abstractmethod
    def fits(self, units: float, now: float) -> bool:
        """Return True if a task that costs `units` may start now. A task that costs nothing always may."""

    @abc.abstractmethod
    def charge(self, units: float, now: float) -> None:
        """Count units that fit."""

    @abc.abstractmethod
    def owe(self, units: float, now: float) -> None:
        """Count units that have been used already, even if they do not fit; what does not is debt."""

    @abc.abstractmethod
    def refund(self, units: float, charged_at: float, now: float) -> None:
        """Give back units that were charged at `charged_at` and not used."""

    @abc.abstractmethod
    def used(self, now: float) -> float:
        """Return the units that count now, with the debt."""

    @abc.abstractmethod
    def next_at(self, units: float, now: float, after: float = 0.0) -> float:
        """Return the earliest time from `now` on at which `units` fit if nothing else is charged but `after`, now.

        Returns:
            the exact time; infinity if they never fit, or if nobody knows when.
        """

    @abc.abstractmethod
    def copy(self) -> Self:
        """Return a meter of the same state, to try something out."""

    def room(self, now: float) -> float:
        """Return the units that still fit."""
        return max(0.0, self.amount - self.used(now))

    def count(self, units: float, now: float) -> int:
        """Return how many tasks that cost `units` each fit now."""
        if units <= 0:
            return UNLIMITED
        return int((self.room(now) + self.slack) / units) if self.fits(units, now) else 0

    def set_amount(self, amount: float, now: float) -> None:
        """Change the amount. A lower one counts at once; what is used stays used."""
        self.amount = amount
        self.slack = TOLERANCE * max(1.0, amount)


class WindowMeter(Meter):
    """Counts the units of the latest cells.

    Args:
        cell_s: length of a cell, in seconds.
        cells: number of consecutive cells that together stay within the amount.
    """

    __slots__ = ("_cell", "_cell_s", "_cells", "_from", "_held", "_until", "debt", "total")

    def __init__(self, amount: float, cell_s: int, cells: int) -> None:
        super().__init__(amount)
        self.total = 0.0  # units in the window without the debt
        self.debt = 0.0
        self._cell_s = cell_s
        self._cells = cells
        self._held: deque[list[float]] = deque()  # [cell, units], ascending, of the cells in the window with units
        self._cell = -1  # the present cell, from `_from` to `_until`
        self._from = self._until = -math.inf

    def fits(self, units: float, now: float) -> bool:
        if now >= self._until:
            self._advance(now)
        return units <= 0 or (units <= self.amount + self.slack - self.total - self.debt and now >= self._from)

    def charge(self, units: float, now: float) -> None:
        if units <= 0:
            return
        if now >= self._until:
            self._advance(now)
        self._add(units)

    def owe(self, units: float, now: float) -> None:
        if now >= self._until:
            self._advance(now)
        self.debt += units
        self._pay()

    def refund(self, units: float, charged_at: float, now: float) -> None:
        if now >= self._until:
            self._advance(now)
        cell = self._cell if charged_at >= self._from else self._cell_at(charged_at)
        for held in reversed(self._held):
            if held[0] <= cell:
                if held[0] == cell:
                    self._take_back(held, units)
                break
        self._pay()

    def forgive(self, units: float, now: float) -> float:
        """Give back units of the debt; return how many of them were more than the debt."""
        if now >= self._until:
            self._advance(now)
        forgiven = min(self.debt, units)
        self.debt -= forgiven
        return units - forgiven

    def used(self, now: float) -> float:
        if now >= self._until:
            self._advance(now)
        return self.total + self.debt

    def room(self, now: float) -> float:
        left = self.amount - self.used(now)
        return left if left > 0 and now >= self._from else 0.0

    def next_at(self, units: float, now: float, after: float = 0.0) -> float:
        if now >= self._until:
            self._advance(now)
        if units <= 0:
            return now
        if units > self.amount + self.slack:
            return math.inf
        if self.debt > 0:
            paid = self._copy_without_debt(after)
            return math.inf if paid.debt > 0 else paid.next_at(units, now)
        left = self.amount + self.slack - self.total - after
        if units <= left:
            return max(now, self._from)
        for cell, held in self._held:
            left += held
            if units <= left and cell < self._cell:
                return self._starts(int(cell) + self._cells)
        return self._starts(self._cell + self._cells)

    def set_amount(self, amount: float, now: float) -> None:
        is_later = now >= self._until
        if is_later:
            self._pay_until(self._cell_at(now))  # by the amount that held until now
        super().set_amount(amount, now)
        if is_later:
            self._advance(now)
        self._pay()

    def copy(self) -> Self:
        made = type(self).__new__(type(self))
        for slot in (*Meter.__slots__, *WindowMeter.__slots__):
            setattr(made, slot, getattr(self, slot))
        made._held = deque([cell, units] for cell, units in self._held)
        return made

    def _cell_at(self, now: float) -> int:
        return int(now // self._cell_s)

    def _starts(self, cell: int) -> float:
        return float(cell * self._cell_s)

    def _advance(self, now: float) -> None:
        """Go to the present cell, and pay debt in the cells before it."""
        cell = self._cell_at(now)
        self._pay_until(cell)
        self._go_to(cell)
        self._from, self._until = self._starts(cell), self._starts(cell + 1)
        self._pay()

    def _go_to(self, cell: int) -> None:
        """Forget the cells that are out of the window of `cell`. Sum up again, so that no rounding is left behind."""
        self._cell = cell
        held = self._held
        while held and held[0][0] <= cell - self._cells:
            held.popleft()
        self.total = math.fsum(units for _, units in held) if held else 0.0

    def _add(self, units: float) -> None:
        held = self._held
        if held and held[-1][0] == self._cell:
            held[-1][1] += units
        else:
            held.append([self._cell, units])
        self.total += units

    def _take_back(self, held: list[float], units: float) -> None:
        held[1] -= units
        if held[1] <= TOLERANCE:  # the rest is a rounding of fractions
            self._held.remove(held)
        self.total = math.fsum(units for _, units in self._held) if self._held else 0.0

    def _pay(self) -> None:
        """Charge debt to the present cell, as far as there is room."""
        if self.debt > 0 and self.amount > self.total:
            paid = min(self.debt, self.amount - self.total)
            self.debt -= paid
            self._add(paid)

    def _pay_until(self, target: int) -> None:
        """Go from the present cell towards `target`, and charge debt to each cell with room, until none is left."""
        while self.debt > 0 and self._cell < target:
            self._pay_full_windows(target)
            if not self._held:
                break  # the amount is 0
            following = int(self._held[0][0]) + self._cells  # the first cell with more room
            if following >= target:
                break
            self._go_to(following)
            self._pay()

    def _pay_full_windows(self, target: int) -> None:
        """While debt fills whole windows, each repeats the one before: go through all of them at once."""
        if self.debt < self.amount or self.amount <= 0 or abs(self.total - self.amount) > self.slack:
            return
        windows = min(int(self.debt / self.amount), (target - 1 - self._cell) // self._cells)
        if windows > 0:
            self.debt = max(0.0, self.debt - windows * self.amount)
            for held in self._held:
                held[0] += windows * self._cells
            self._go_to(self._cell + windows * self._cells)

    def _copy_without_debt(self, after: float) -> WindowMeter:
        """Return the meter as it is when its debt is paid, or as it is now if the amount of 0 never pays it."""
        made = self.copy()
        made._add(after)
        made._pay_until(_NEVER)
        made._from, made._until = made._starts(made._cell), made._starts(made._cell + 1)
        return made


class DayMeter(WindowMeter):
    """Counts the units of the local day.

    Args:
        zone: the IANA name of the zone whose midnights divide the days.
    """

    __slots__ = ("zone",)

    def __init__(self, amount: float, zone: str) -> None:
        super().__init__(amount, 1, 1)
        self.zone = zone

    def set_zone(self, zone: str, now: float) -> None:
        """Change the zone. What was used in the present day counts in the day that it is in the new zone."""
        used = self.used(now) - self.debt
        self.zone = zone
        self._held.clear()
        self._until = -math.inf
        debt, self.debt = self.debt, 0.0
        self._advance(now)
        if used > 0:
            self._add(used)
        self.debt = debt

    def copy(self) -> Self:
        made = super().copy()
        made.zone = self.zone
        return made

    def _cell_at(self, now: float) -> int:
        return calendars.day_at(self.zone, now)

    def _starts(self, cell: int) -> float:
        if cell > calendars.LAST_DAY:
            return math.inf
        return calendars.day_start(self.zone, cell)


class InFlightMeter(Meter):
    """Counts the units that are held now. `refund` is their end."""

    __slots__ = ("_factor", "_used")

    def __init__(self, amount: float) -> None:
        super().__init__(amount)
        self._used = 0.0
        self._factor = 1.0

    def set_factor(self, factor: float) -> None:
        """Let less than the amount in flight: this part of it, 0 to 1; but one task, whatever it costs, unless 0."""
        self._factor = factor

    def fits(self, units: float, now: float) -> bool:
        if units <= 0:
            return True
        if units > self.amount + self.slack - self._used:
            return False
        if self._factor >= 1.0:
            return True
        return self._factor > 0 and (self._used == 0 or units <= self.amount * self._factor + self.slack - self._used)

    def count(self, units: float, now: float) -> int:
        if self._factor >= 1.0 or units <= 0:
            return super().count(units, now)
        lowered = int((self.amount * self._factor - self._used + self.slack) / units)
        return max(lowered, 1) if self.fits(units, now) else 0

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

    def copy(self) -> Self:
        made = type(self)(self.amount)
        made._used, made._factor = self._used, self._factor
        return made


class Pace(Meter):
    """Spreads starts over time below a limit: at most so many units a second, however much a single task costs.

    A task starts in a second in which the pace has room left, and what it costs beyond is debt of the next seconds. So
    a task that costs more than a second's units starts all the same, and then nothing for a while.
    """

    __slots__ = ("_meter",)

    def __init__(self, units_per_s: float) -> None:
        super().__init__(units_per_s)
        self._meter = WindowMeter(units_per_s, 1, 1)

    def fits(self, units: float, now: float) -> bool:
        return units <= 0 or self._meter.room(now) > self.slack

    def count(self, units: float, now: float) -> int:
        if units <= 0:
            return UNLIMITED
        return math.ceil(self._meter.room(now) / units) if self.fits(units, now) else 0

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
        return WindowMeter(limit.amount, 1, 60)
    if limit.per == "hour":
        return WindowMeter(limit.amount, 60, 60)
    if limit.per == "day":
        return DayMeter(limit.amount, zone)
    return InFlightMeter(limit.amount)
