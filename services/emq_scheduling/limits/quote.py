"""What a provider says is left of a limit; see `Accounts.tell`."""

from __future__ import annotations

import math
from typing import Self

from emq_scheduling.limits.meter import TOLERANCE, Meter
from emq_scheduling.limits.windows import MOST_BACK_S


class Quote(Meter):
    """Allows what a provider said is left, until its reset. It is charged beside the meter of the limit.

    So it only ever makes room smaller than the limit's: a provider that counts less than EMQ changes nothing.

    Answers arrive in any order. An answer to a task that started after the latest word is newer than that, and replaces
    it. Any other one may be older: it only makes room smaller until the reset.
    """

    __slots__ = ("_left", "_newest_at", "_per_s", "_told_at", "_until")

    def __init__(self) -> None:
        super().__init__(math.inf)
        self.slack = TOLERANCE
        self._left = self._per_s = 0.0
        self._told_at = self._until = -math.inf
        self._newest_at = -math.inf  # what started since then brings newer words

    def tell(self, left: float, reset_s: float, now: float, comes: float = 0.0, since: float = math.inf) -> None:
        """Take over what a provider says, instead of what it said before, unless that may be newer and is less.

        Args:
            left: units.
            reset_s: seconds from now until this holds no more.
            comes: units that come evenly until then.
            since: when the task started that it answered.
        """
        if since < self._newest_at and (room := self.room(now)) < math.inf:
            if left >= room:
                return
            reset_s = max(reset_s, self._until - now)
        else:
            self._newest_at = now
        self._left, self._told_at, self._until = left, now, now + reset_s
        self._per_s = comes / reset_s if reset_s > 0 else 0.0

    @property
    def told_at(self) -> float:
        """When the latest word that counts came, in seconds since the epoch; minus infinity for never."""
        return self._told_at

    def left(self, now: float) -> tuple[float, float] | None:
        """Return the units that may still start, and until when that holds; None if nothing holds now."""
        room = self.room(now)
        return None if room == math.inf else (room, self._until)

    def fits(self, units: float, now: float) -> bool:
        return units <= 0 or units <= self.room(now) + self.slack

    def charge(self, units: float, now: float) -> None:
        self._left -= units

    def owe(self, units: float, now: float) -> None:
        self._left -= units

    def refund(self, units: float, charged_at: float, now: float) -> None:
        if charged_at >= self._told_at:  # the provider knew of the tasks before
            self._left += units

    def used(self, now: float) -> float:
        return 0.0

    def room(self, now: float) -> float:
        if not self._told_at - MOST_BACK_S <= now < self._until:
            return math.inf
        return max(0.0, self._left + max(0.0, now - self._told_at) * self._per_s)

    def next_at(self, units: float, now: float, after: float = 0.0) -> float:
        if units <= 0 or units + after <= self.room(now) + self.slack:
            return now
        if self._per_s <= 0:
            return self._until
        at = self._told_at + (units + after - self._left) / self._per_s
        while at < self._until and units + after > self._left + (at - self._told_at) * self._per_s + self.slack:
            at = math.nextafter(at, math.inf)  # the sum was rounded down
        return min(self._until, at)

    def copy(self) -> Self:
        made = type(self)()
        for slot in Quote.__slots__:
            setattr(made, slot, getattr(self, slot))
        return made
