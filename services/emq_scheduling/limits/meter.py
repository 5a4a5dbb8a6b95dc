"""The base of all meters of limits; see `emq_scheduling.limits.limits`."""

from __future__ import annotations

import abc
from typing import Self

TOLERANCE = 1e-9
"""Part of the amount (of 1, for smaller amounts) by which a sum of fractions may seem over it."""


class Meter(abc.ABC):
    """Counts the use of one limit. Units are 0 or more, and may be fractions."""

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
        """Count units that have been used already; those that do not fit are debt."""

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

    def used_lately(self, now: float) -> float:
        """Return the units to show as used: those that count now, or those of the second before if they were more."""
        return self.used(now)

    def room(self, now: float) -> float:
        """Return the units that still fit."""
        return max(0.0, self.amount - self.used(now))

    def set_amount(self, amount: float, now: float) -> None:
        """Change the amount. A lower one counts at once; the use stays."""
        self.amount = amount
        self.slack = TOLERANCE * max(1.0, amount)


class PeriodMeter(Meter):
    """Counts a limit by time, not in flight. Its use may be saved, and counted again by another owner of the pool."""

    __slots__ = ()

    @property
    @abc.abstractmethod
    def debt(self) -> float:
        """Units that were used beyond the limit, and that are charged when there is room."""

    @abc.abstractmethod
    def held(self, now: float, at_once: int = 1) -> list[tuple[float, float]]:
        """Return the units that count without the debt, each with the time at which they no longer do.

        Args:
            at_once: cells that are returned as one, as if all of their units had been used in the last of them.
        """

    @abc.abstractmethod
    def room_by(self, later: float, now: float) -> float:
        """Return the units that fit at a later time if nothing else is charged; less, perhaps, while there is debt."""
