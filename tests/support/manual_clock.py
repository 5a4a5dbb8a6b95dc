"""A clock for tests."""

from __future__ import annotations


class ManualClock:
    """A clock that moves only when told; for tests and simulations."""

    def __init__(self, now: float = 1_000_000_000.0) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def now_us(self) -> int:
        return round(self._now * 1e6)

    def passed_us(self) -> int:
        return self.now_us()

    def at_us(self, passed_us: int) -> int:
        return passed_us

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"a clock does not go back: {seconds}")
        self._now += seconds
