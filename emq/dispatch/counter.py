"""Per-group counters: the rate limit itself, since a group lives on exactly one host.

Reserve before taking, release what was not taken, as in the original. Both kinds keep their quota in millionths of a
start a second and compute with integers, so that nothing drifts.
"""

from __future__ import annotations

import math
from typing import Protocol

MICRO = 1_000_000


def allowance(micros: int, second: int) -> int:
    """Starts that a quota of `micros` millionths a second allows in the aligned second `second` (since the epoch).

    The running total floor(q * s) is dealt out second by second: 50 gives 50 in each; 2.5 gives 2 and 3 in turn; 0.5
    gives 1 in every other second, which is its "longer window". Over any run of n aligned seconds the sum is within
    one start of q * n.
    """
    return micros * (second + 1) // MICRO - micros * second // MICRO


class Counter(Protocol):
    """What the dispatcher asks before it starts a message. Times are seconds since the epoch, never going back."""

    reserved: int
    """Reservations granted so far."""
    rolled_back: int
    """Reservations released so far."""

    def reserve(self, n: int, now: float) -> int:
        """Grant up to `n` starts; 0 to n. A grant is good until `valid_until`."""

    def release(self, n: int, now: float) -> None:
        """Give back `n` starts of a grant that were not used."""

    def valid_until(self, now: float) -> float:
        """Until when starts granted now may be used."""

    def next_at(self, now: float) -> float:
        """When, after `reserve` granted 0, a further start will be allowed."""

    def set_quota(self, quota: float, now: float) -> None:
        """Change the quota: a lower one counts at once, a higher one from the next second on."""


class WindowCounter:
    """At most the quota in each aligned second of the clock.

    A new counter grants nothing in the second it is made in: a previous owner of the group may have spent that
    second's quota already.
    """

    __slots__ = ("_left", "_micros", "_next_micros", "_second", "reserved", "rolled_back")

    def __init__(self, quota: float, now: float) -> None:
        self._micros = self._next_micros = round(quota * MICRO)
        self._second = int(now)
        self._left = 0
        self.reserved = 0
        self.rolled_back = 0

    def reserve(self, n: int, now: float) -> int:
        second = int(now)
        if second > self._second:
            self._second = second
            self._micros = self._next_micros
            self._left = allowance(self._micros, second)
        granted = n if n < self._left else max(0, self._left)
        self._left -= granted
        self.reserved += granted
        return granted

    def release(self, n: int, now: float) -> None:
        self.rolled_back += n
        if int(now) <= self._second:
            self._left += n

    def lend(self, n: int, now: float) -> int:
        """Grant up to `n` starts to somebody else: of what was not used so far in this second, pro rata.

        What the quota holds for the rest of the second stays, so that a message that comes now still starts at once.
        """
        WindowCounter.reserve(self, 0, now)
        kept = math.floor(allowance(self._micros, self._second) * (self._second + 1 - now))
        lent = max(0, min(n, self._left - kept))
        self._left -= lent
        return lent

    def valid_until(self, now: float) -> float:
        return float(self._second + 1)

    def next_at(self, now: float) -> float:
        if self._next_micros == 0:
            return float("inf")
        second = max(int(now), self._second) + 1
        if self._next_micros >= MICRO:
            return float(second)
        # The next second in which the running total floor(q * (s + 1)) reaches the next whole number.
        target = self._next_micros * second // MICRO + 1
        return float(-(-target * MICRO // self._next_micros) - 1)

    def set_quota(self, quota: float, now: float) -> None:
        self._next_micros = round(quota * MICRO)
        if self._next_micros < self._micros:
            # May fall below 0, so that what is reserved now and released later does not count as room. Never rises:
            # below 1 a second, the lower quota may allow a start in a second in which the higher one allows none.
            self._left -= max(0, allowance(self._micros, self._second) - allowance(self._next_micros, self._second))
            self._micros = self._next_micros


class SmoothCounter:
    """Token bucket: in any span of t seconds, aligned or not, at most quota * t + burst starts.

    It starts empty, so that a group that moves between hosts cannot gain a burst by moving. The default burst, 1 + a
    tenth of a second of quota, lets a dispatcher that wakes up to 100 ms late still reach the full rate.
    """

    __slots__ = ("_at_us", "_capacity", "_given_burst", "_micros", "_tokens", "reserved", "rolled_back")

    def __init__(self, quota: float, now: float, burst: float | None = None) -> None:
        self._given_burst = burst
        self._set(quota)
        self._tokens = 0  # in 1e-12 starts: millionths of a start a second, times microseconds
        self._at_us = int(now * 1e6)
        self.reserved = 0
        self.rolled_back = 0

    def reserve(self, n: int, now: float) -> int:
        self._refill(now)
        whole = self._tokens // (MICRO * MICRO)
        granted = n if n < whole else whole
        self._tokens -= granted * MICRO * MICRO
        self.reserved += granted
        return granted

    def release(self, n: int, now: float) -> None:
        self.rolled_back += n
        self._tokens = min(self._capacity, self._tokens + n * MICRO * MICRO)

    def valid_until(self, now: float) -> float:
        # Tokens taken now and used later would make that later second fuller than the bucket allows.
        return now + 0.001

    def next_at(self, now: float) -> float:
        if self._micros == 0:
            return float("inf")
        self._refill(now)
        missing = MICRO * MICRO - self._tokens
        return now + max(0, missing) / self._micros / 1e6

    def set_quota(self, quota: float, now: float) -> None:
        self._refill(now)
        self._set(quota)
        self._tokens = min(self._tokens, self._capacity)

    def _set(self, quota: float) -> None:
        self._micros = round(quota * MICRO)
        burst = 1 + quota / 10 if self._given_burst is None else self._given_burst
        self._capacity = round(burst * MICRO) * MICRO

    def _refill(self, now: float) -> None:
        now_us = int(now * 1e6)
        if now_us > self._at_us:
            self._tokens = min(self._capacity, self._tokens + (now_us - self._at_us) * self._micros)
            self._at_us = now_us
