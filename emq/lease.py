"""The lease: until when a host may go on by itself."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class Lease:
    """What a host's membership allows it to do without hearing from its cluster again.

    States: *granted* (claims and starts), *suspended* (nothing more is claimed; what is buffered is started until
    `until`), *expired* (`until` has passed: nothing is started). `renew` leads back to granted from each of them.

    Attributes:
        until: start nothing from then on; in seconds of the host's clock, which a stopped process does not stop.
    """

    def __init__(self, until: float = math.inf) -> None:
        self.until = until
        self.on_renewed: list[Callable[[], None]] = []
        self._claiming = asyncio.Event()
        self._claiming.set()

    @property
    def suspended(self) -> bool:
        return not self._claiming.is_set()

    def renew(self, until: float) -> None:
        """Claims and starts are allowed until then; it never shortens a lease."""
        self.until = max(self.until, until)
        self._claiming.set()
        for renewed in self.on_renewed:
            renewed()

    def suspend(self) -> None:
        """Claim nothing more until it is renewed."""
        self._claiming.clear()

    def end(self) -> None:
        """Start nothing more until it is renewed."""
        self.suspend()
        self.until = 0.0

    async def claiming(self) -> None:
        """Return once claims are allowed."""
        await self._claiming.wait()
