"""Even release of a limit: how far its use is ahead of an even rate."""

from __future__ import annotations

import math

BURST_S = 0.5
"""Seconds of a limit that may be used at once; at most `BURST` of its period."""

BURST = 0.1


class Evenness:
    """Says when use that came in lumps would be over at an even rate (the virtual scheduling of GCRA, ITU-T I.371).

    It forbids nothing: the scheduler asks it for tasks that others are more urgent than. So a backlog of these never
    uses up in a second what the urgent ones need in the rest of a minute.

    Args:
        amount: units in each period.
        period_s: seconds.
    """

    __slots__ = ("_burst_s", "_per_s", "_period_s", "_until")

    def __init__(self, amount: float, period_s: float) -> None:
        self._per_s = amount / period_s
        self._period_s = period_s
        self._burst_s = min(BURST_S, BURST * period_s)
        self._until = -math.inf

    def count(self, units: float, now: float) -> None:
        """Count used units; negative ones are given back."""
        if self._per_s > 0:
            begins = self._until if units < 0 else max(self._until, now - self._burst_s)
            self._until = min(begins + units / self._per_s, now + self._period_s)

    def set_amount(self, amount: float, now: float) -> None:
        """Go on at another rate."""
        left_s, before = self._until - now, self._per_s
        self._per_s = amount / self._period_s
        if left_s > 0 and self._per_s > 0:
            self._until = now + min(left_s * before / self._per_s, self._period_s)

    def begin(self) -> None:
        """Forget all use: a period begins that has nothing to do with the ones before."""
        self._until = -math.inf

    def wait_s(self, now: float) -> float:
        """Return how many seconds the use is ahead; 0 if units may be used now.

        Use that would be ahead by more than a period is that of a clock that was put back: it counts no more.
        """
        ahead_s = self._until - now
        return ahead_s if 0 < ahead_s <= self._period_s else 0.0

    def copy(self) -> Evenness:
        made = Evenness(self._per_s * self._period_s, self._period_s)
        made._until = self._until
        return made
