"""A clock that follows the time of the running event loop."""

from __future__ import annotations

import asyncio
import time


class LoopClock:
    """The running loop's time, as seconds since the epoch.

    Args:
        base_s: the time, in seconds since the epoch, at which the loop's own time is 0; None for a quarter second into
            the present second.
    """

    def __init__(self, base_s: float | None = None) -> None:
        self._base = int(time.time()) + 0.25 if base_s is None else base_s
        self._loop = asyncio.get_running_loop()

    def now(self) -> float:
        return self._base + self._loop.time()

    def now_us(self) -> int:
        return int(self.now() * 1e6)

    def passed_us(self) -> int:
        return self.now_us()

    def at_us(self, passed_us: int) -> int:
        return passed_us
