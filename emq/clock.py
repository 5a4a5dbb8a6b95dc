"""The clock that counters and the trail share."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch; never goes back within one process."""

    def now_us(self) -> int:
        """The same in whole microseconds."""


class SystemClock:
    """Wall time anchored once, then carried on by the monotonic clock.

    A counter must not see a second twice or cut short because somebody set the wall clock: the second's quota would
    be spent twice. The anchor is taken at creation; drift against the wall clock afterwards is that of the hardware.
    """

    def __init__(self) -> None:
        self._anchor_us = time.time_ns() // 1000 - time.monotonic_ns() // 1000

    def now(self) -> float:
        return (self._anchor_us + time.monotonic_ns() // 1000) / 1e6

    def now_us(self) -> int:
        return self._anchor_us + time.monotonic_ns() // 1000


class ManualClock:
    """A clock that moves only when told; for tests and simulations."""

    def __init__(self, now: float = 1_000_000_000.0) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def now_us(self) -> int:
        return round(self._now * 1e6)

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"a clock does not go back: {seconds}")
        self._now += seconds
