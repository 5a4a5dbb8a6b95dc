"""A part of a limit that the database already counts as used; see `emq_scheduling.limits.usage`."""

from __future__ import annotations

import math
from typing import Self

from emq_scheduling.limits.meter import TOLERANCE, Meter

AGAIN_S = 0.1
"""Time after which a task that the reserve has no room for looks again."""


class Course:
    """The use of one limit, and the times of its saves.

    Attributes:
        chunk: units of the last reserve, before it was cut to the limit's room.
        rate: units a second.
        planned: the reserve of the save that is being written.
        planned_at, saved_at: when the last save was planned, and the last one written that counts.
    """

    __slots__ = ("chunk", "planned", "planned_at", "rate", "saved_at")

    def __init__(self) -> None:
        self.chunk = self.rate = self.planned = 0.0
        self.planned_at = self.saved_at = -math.inf


class Reserve(Meter):
    """Allows only units that were saved as used. It is charged beside the meter of its limit.

    Attributes:
        left: units that may still be charged before the next save; below 0 after debt.
        charged: units charged since `planned`.
        asked: the most units that a task asked for in vain since `planned`; 0 if none did.
        largest: the most units that a task was charged.
        course: of the use; `emq_scheduling.limits.usage` keeps it.
    """

    __slots__ = ("asked", "charged", "course", "largest", "left")

    def __init__(self, left: float = 0.0) -> None:
        super().__init__(math.inf)
        self.slack = TOLERANCE
        self.left = left
        self.charged = 0.0
        self.asked = 0.0
        self.largest = 0.0
        self.course = Course()

    def planned(self, reserve: float) -> None:
        """The next save is being written, with this reserve: count charges from here on.

        From now on either save may be the one that counts after a crash, so only what both cover may start.
        """
        self.charged = self.asked = 0.0
        self.left = min(self.left, reserve)

    def saved(self, reserve: float) -> None:
        """The save is in the database, with a reserve beyond the use at its plan."""
        self.left = reserve - self.charged

    def doubtful(self, reserve: float) -> None:
        """The save may or may not be in the database: allow what both would."""
        self.left = min(self.left, reserve - self.charged)

    def fits(self, units: float, now: float) -> bool:
        if units <= 0 or units <= self.left + self.slack:
            return True
        self.asked = max(self.asked, units)
        return False

    def charge(self, units: float, now: float) -> None:
        self.left -= units
        self.charged += units
        if units > self.largest:
            self.largest = units

    def owe(self, units: float, now: float) -> None:
        self.left -= units
        self.charged += units

    def refund(self, units: float, charged_at: float, now: float) -> None:
        """Nothing: the saved use differs from the present one."""

    def used(self, now: float) -> float:
        return 0.0

    def room(self, now: float) -> float:
        return max(0.0, self.left)

    def next_at(self, units: float, now: float, after: float = 0.0) -> float:
        return now if units <= 0 or units + after <= self.left + self.slack else now + AGAIN_S

    def copy(self) -> Self:
        """Return a reserve without limits: until a time to come, the next saves will have been made."""
        return type(self)(math.inf)
