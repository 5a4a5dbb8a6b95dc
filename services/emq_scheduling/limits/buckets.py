"""The meter of a limit that is a bucket: it refills at a rate, and unused units pile up to a burst."""

from __future__ import annotations

import math
from typing import Self

from emq.quota.bucket import Bucket
from emq_scheduling.limits.meter import PeriodMeter
from emq_scheduling.limits.windows import MOST_BACK_S

MOST_LOWS = 64
"""Most low points of what is missing that a meter remembers. Beyond, the oldest two become one, for less refunds."""


class BucketMeter(PeriodMeter):
    """Counts what is missing from a bucket of `burst` units, which `amount` units refill in each period. Begins full.

    Units that a task did not use come back only as far as the bucket could have held them all the time since its start.
    The rest would have flowed over meanwhile, and would let more start than the burst.

    Args:
        burst: most units at once; None for the amount.
    """

    __slots__ = ("_bucket", "_burst", "_lows", "_period_s")

    def __init__(self, amount: float, period_s: float, burst: float | None) -> None:
        super().__init__(amount)
        self._period_s = period_s
        self._burst = burst
        self._bucket = Bucket(amount / period_s, self._full, self._full, -math.inf)
        self._lows: list[tuple[float, float]] = []  # (time, missing units) before a charge; no later one is lower

    @property
    def most(self) -> float:
        """Units that the full bucket holds."""
        return self._bucket.most

    @property
    def per_s(self) -> float:
        """Units that come in a second."""
        return self._bucket.rate

    @property
    def debt(self) -> float:
        """Units that were used beyond what the bucket held."""
        return max(0.0, -self._bucket.left)

    def fits(self, units: float, now: float) -> bool:
        return units <= 0 or units <= self._left(now) + self.slack

    def charge(self, units: float, now: float) -> None:
        self._note(self._left(now), now)
        self._bucket.take(units)

    def owe(self, units: float, now: float) -> None:
        self.charge(units, now)

    def refund(self, units: float, charged_at: float, now: float) -> None:
        left = self._left(now)
        since = next((i for i, (at, _) in enumerate(self._lows) if at > charged_at), len(self._lows))
        before, after = self._lows[:since], self._lows[since:]
        units = min([units, self.most - left, *(missing for _, missing in after[:1])])
        self._bucket.take(-units)
        self._lows = [low for low in before if not after or low[1] < after[0][1] - units]
        self._lows += [(at, missing - units) for at, missing in after]

    def used(self, now: float) -> float:
        return self.most - self._left(now)

    def used_lately(self, now: float) -> float:
        """Return the missing units to be shown beside the amount: all of it where the bucket is empty."""
        return self.amount * self.used(now) / self.most if self.most > 0 else 0.0

    def room(self, now: float) -> float:
        return max(0.0, self._left(now))

    def next_at(self, units: float, now: float, after: float = 0.0) -> float:
        if units <= 0:
            return now
        left, since, rate = self._left(now) - after, self._bucket.filled_at, self._bucket.rate
        if units <= left + self.slack:
            return now
        if units > self.most + self.slack or rate <= 0:
            return math.inf
        at = since + (units - left) / rate
        while units > left + (at - since) * rate + self.slack:  # the sum was rounded down
            at = math.nextafter(at, math.inf)
        return at

    def set_amount(self, amount: float, now: float) -> None:
        super().set_amount(amount, now)
        self._follow(now)

    def set_burst(self, burst: float | None, now: float) -> None:
        """Hold another number of units; what is more than that is lost."""
        self._burst = burst
        self._follow(now)

    def held(self, now: float, at_once: int = 1) -> list[tuple[float, float]]:
        missing = min(self.most, self.used(now))
        if missing <= 0:
            return []
        rate = self._bucket.rate
        return [(now + missing / rate if rate > 0 else now + self._period_s, missing)]

    def room_by(self, later: float, now: float) -> float:
        return max(0.0, min(self.most, self._left(now) + (later - now) * self._bucket.rate))

    def copy(self) -> Self:
        made = type(self)(self.amount, self._period_s, self._burst)
        bucket = self._bucket
        made._bucket = Bucket(bucket.rate, bucket.most, bucket.left, bucket.filled_at)
        return made

    @property
    def _full(self) -> float:
        """The burst; but nothing where the amount is 0, which lets nothing start."""
        return self.amount if self._burst is None or self.amount == 0 else self._burst

    def _follow(self, now: float) -> None:
        self._note(self._left(now), now)  # what a fuller bucket could not hold before
        self._bucket.follow(self.amount / self._period_s, self._full, now)
        self._note(self._bucket.left, now)

    def _note(self, left: float, now: float) -> None:
        """Remember how much is missing, which bounds the refunds of what was charged before."""
        lows, missing = self._lows, self.most - left
        while lows and lows[-1][1] >= missing:
            lows.pop()
        lows.append((now, missing))
        if len(lows) > MOST_LOWS:
            lows[:2] = [(lows[1][0], lows[0][1])]

    def _left(self, now: float) -> float:
        bucket = self._bucket
        if now < bucket.filled_at - MOST_BACK_S or bucket.filled_at == -math.inf:
            bucket.filled_at = now  # the clock was put back, or this is the first look
        return bucket.fill(now)
