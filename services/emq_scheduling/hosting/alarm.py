"""A timer that calls at the latest time that it was set to."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

EARLY_S = 0.0005
"""The event loop's timers may be early by about this, in seconds."""


class Alarm:
    """One timer; `call` is called when it is time."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._timer: asyncio.TimerHandle | None = None
        self._at = math.inf

    def set(self, at: float, now: float) -> None:
        """Call at this time instead of any other, in seconds since the epoch; infinity for never."""
        if at == self._at and self._timer is not None and not self._timer.cancelled():
            return
        self.cancel()
        self._at = at
        if at < math.inf:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, at - now) + EARLY_S, self._rings)

    def cancel(self) -> None:
        """Do not call."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rings(self) -> None:
        self._timer, self._at = None, math.inf
        self._call()
