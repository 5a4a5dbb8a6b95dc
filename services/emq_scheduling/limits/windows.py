"""Meters of limits with a period; see `emq_scheduling.limits.limits`."""

from __future__ import annotations

import math
from collections import deque
from typing import Self

from emq_scheduling.limits import calendars
from emq_scheduling.limits.evenness import Evenness
from emq_scheduling.limits.meter import TOLERANCE, Meter, PeriodMeter

MOST_AHEAD_S = 5.0
"""Most seconds that the clock of a former owner is believed to be ahead."""

MOST_BACK_S = 5.0
"""Most seconds that a meter waits for a clock that went back. If it went back farther, the counted use counts as of
now."""

_NEVER = 1 << 62
"""The number of a cell that no clock reaches."""


class WindowMeter(PeriodMeter):
    """Counts the units of the latest cells.

    Args:
        cell_s: length of a cell, in seconds; below a second a power of two, so that no cell's beginning is rounded.
        cells: number of consecutive cells that together stay within the amount.
    """

    __slots__ = ("_cell", "_cell_s", "_cells", "_former", "_from", "_held", "_until", "debt", "total")

    debt: float

    def __init__(self, amount: float, cell_s: float, cells: int) -> None:
        super().__init__(amount)
        self.total = 0.0  # units in the window without the debt
        self.debt = 0.0
        self._former = 0.0  # units of the cell before the present one
        self._cell_s = cell_s
        self._cells = cells
        self._held: deque[list[float]] = deque()  # [cell, units], ascending, of the cells in the window with units
        self._cell = -1  # the present cell, from `_from` to `_until`
        self._from = self._until = -math.inf

    def fits(self, units: float, now: float) -> bool:
        if not self._from <= now < self._until:
            self._move(now)
        return units <= 0 or (units <= self.amount + self.slack - self.total - self.debt and now >= self._from)

    def charge(self, units: float, now: float) -> None:
        if units <= 0:
            return
        if not self._from <= now < self._until:
            self._move(now)
        self._add(units)

    def owe(self, units: float, now: float) -> None:
        self._move(now)
        self.debt += units
        self._pay()

    def refund(self, units: float, charged_at: float, now: float) -> None:
        self._move(now)
        cell = self._cell if charged_at >= self._from else self._cell_at(charged_at)
        for held in reversed(self._held):
            if held[0] <= cell:
                if held[0] == cell:
                    self._take_back(held, units)
                break
        self._pay()

    def forgive(self, units: float, now: float) -> float:
        """Give back units of the debt; return how many of them were more than the debt."""
        self._move(now)
        forgiven = min(self.debt, units)
        self.debt -= forgiven
        return units - forgiven

    def used(self, now: float) -> float:
        if not self._from <= now < self._until:
            self._move(now)
        return self.total + self.debt

    def used_lately(self, now: float) -> float:
        used = self.used(now)
        return max(used, self._former) if self._cells == 1 and self._cell_s <= 1 else used

    def room(self, now: float) -> float:
        left = self.amount - self.used(now)
        return left if left > 0 and now >= self._from else 0.0

    def next_at(self, units: float, now: float, after: float = 0.0) -> float:
        self._move(now)
        if units <= 0:
            return now
        if units > self.amount + self.slack:
            return math.inf
        if self.debt > 0:
            paid = self._copy_without_debt(after)
            is_never = paid.debt > 0 or paid._from == math.inf
            return math.inf if is_never else paid.next_at(units, max(now, paid._from))
        left = self.amount + self.slack - self.total - after
        if units <= left:
            return max(now, self._from)
        for cell, held in self._held:
            left += held
            if units <= left:
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

    def held(self, now: float, at_once: int = 1) -> list[tuple[float, float]]:
        self._move(now)
        found: list[list[float]] = []
        for cell, units in reversed(self._held):
            if found and cell > found[-1][0] - at_once:
                found[-1][1] += units
            else:
                found.append([cell, units])
        return [(self._starts(int(cell) + self._cells), units) for cell, units in reversed(found)]

    def room_by(self, later: float, now: float) -> float:
        self._move(now)
        left = self.amount - self.total - self.debt
        for cell, units in self._held:
            if self._starts(int(cell) + self._cells) > later:
                break
            left += units
        return max(0.0, left)

    def restore(self, held: list[tuple[float, float]], debt: float, at: float, now: float) -> None:
        """Count also the units that `held` of another meter returned at the time `at`, and its debt.

        Nothing fits before the latest of its cells, if the other's clock was ahead by a little.
        """
        latest = self._cell_at(now + MOST_AHEAD_S)
        cells: dict[int, float] = {}
        for until, units in [*held, *self.held(now)]:
            cell = min(self._cell_at(math.nextafter(until, -math.inf)) - self._cells + 1, latest)
            cells[cell] = cells.get(cell, 0.0) + units
        debt += self.debt
        self._held = deque([cell, cells[cell]] for cell in sorted(cells))
        self._go_to(max([*cells, self._cell_at(min(at, now))]))
        self.debt = debt
        self._from, self._until = self._starts(self._cell), self._starts(self._cell + 1)
        if now >= self._until:
            self._advance(now)

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

    def _move(self, now: float) -> None:
        """Go on to the present cell; but not back, unless the clock was put back by much."""
        if now >= self._until:
            self._advance(now)
        elif now < self._from - MOST_BACK_S:
            units, self._cell = self.total, self._cell_at(now)
            self._held.clear()
            self.total = 0.0
            if units > 0:
                self._add(units)
            self._from, self._until = self._starts(self._cell), self._starts(self._cell + 1)

    def _advance(self, now: float) -> None:
        """Go to the present cell, and pay debt in the cells before it."""
        cell = self._cell_at(now)
        self._former = self.total if cell == self._cell + 1 else 0.0
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
        """Charge debt to the present cell, within its room."""
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


class EvenMeter(WindowMeter):
    """Counts as `WindowMeter`, and knows how far its use is ahead of an even rate.

    Attributes:
        evenness: of its use.
    """

    __slots__ = ("evenness",)

    def __init__(self, amount: float, cell_s: float, cells: int) -> None:
        super().__init__(amount, cell_s, cells)
        self.evenness = Evenness(amount, cell_s * max(1, cells - 1))

    def charge(self, units: float, now: float) -> None:
        super().charge(units, now)
        self.evenness.count(units, now)

    def owe(self, units: float, now: float) -> None:
        super().owe(units, now)
        self.evenness.count(units, now)

    def refund(self, units: float, charged_at: float, now: float) -> None:
        super().refund(units, charged_at, now)
        self.evenness.count(-units, now)

    def set_amount(self, amount: float, now: float) -> None:
        super().set_amount(amount, now)
        self.evenness.set_amount(amount, now)

    def copy(self) -> Self:
        made = super().copy()
        made.evenness = self.evenness.copy()
        return made

    def _advance(self, now: float) -> None:
        super()._advance(now)
        if self._cells == 1:
            self.evenness.begin()


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
        """Change the zone. The use of the present day counts in the new zone's present day."""
        used = self.used(now) - self.debt
        self.zone = zone
        self._held.clear()
        self._until = -math.inf
        debt, self.debt = self.debt, 0.0
        self._advance(now)
        if used > 0:
            self._add(used)
        self.debt = debt

    def used_lately(self, now: float) -> float:
        return self.used(now)

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
