"""Measures how long the servers have been silent, and wakes their client in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Pulse:
    """A client's last sign of life of the servers, and its one timer.

    Attributes:
        began: whether the timer was ever set.
    """

    def __init__(self) -> None:
        self._heard_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def began(self) -> bool:
        return self._timer is not None

    def hear(self) -> None:
        """Note a sign of life."""
        self._heard_s = asyncio.get_running_loop().time()

    def silent_s(self) -> float:
        """Return the seconds since the last sign of life."""
        return asyncio.get_running_loop().time() - self._heard_s

    def after(self, seconds: float, then: Callable[[], None]) -> None:
        """Call a function, unless another call comes first or the timer is stopped."""
        self.stop()
        self._timer = asyncio.get_running_loop().call_later(seconds, then)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
