"""The token bucket: the meter of a rate whose unused part may pile up to a burst."""

from __future__ import annotations

import math
from typing import Generic, TypeVar

Number = TypeVar("Number", int, float)


class Bucket(Generic[Number]):
    """Fills at a rate up to a most. So in any span of t, at most rate * t + most can be taken.

    Tokens and times are in whatever units the caller counts. In integers, every sum is exact.

    Attributes:
        rate: tokens that come in a unit of time.
        most: tokens that it holds.
        left: tokens at `filled_at`, the time of the last `fill`; below 0 for debt.
    """

    __slots__ = ("filled_at", "left", "most", "rate")

    def __init__(self, rate: Number, most: Number, left: Number, now: Number) -> None:
        self.rate: Number = rate
        self.most: Number = most
        self.left: Number = left
        self.filled_at: Number = now

    def fill(self, now: Number) -> Number:
        """Add what has come since the last time; return `left`. At an earlier time than the last, nothing comes."""
        if now > self.filled_at:
            self.left = min(self.most, self.left + (now - self.filled_at) * self.rate)
            self.filled_at = now
        return self.left

    def take(self, n: Number) -> None:
        """Take tokens, also those that are not there. A negative number gives tokens back, as many as fit."""
        self.left = min(self.most, self.left - n)

    def follow(self, rate: Number, most: Number, now: Number) -> None:
        """Fill at another rate from `now` on, and hold another number of tokens."""
        self.fill(now)
        self.rate, self.most = rate, most
        self.left = min(self.left, most)

    def wait(self, n: Number) -> float:
        """Return the time after the last `fill` until `n` tokens are there; infinity if none come."""
        missing = n - self.left
        if missing <= 0:
            return 0.0
        return missing / self.rate if self.rate else math.inf
