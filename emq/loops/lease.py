"""The lease: until when a host may go on by itself."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from emq.clock import Clock


class Lease:
    """What a host's membership, and its knowledge of the time, allow it to do without hearing from others again.

    States: *granted* (the host claims and starts), *suspended* (the cluster does not answer; the host goes on until
    `until`, since nobody else gets its groups before that), *expired* (`until` has passed: the host claims and starts
    nothing). `renew` leads back to granted from each of them. Past the time up to which the host is `sure` of its
    clock, the lease counts as expired, too.

    Attributes:
        until: claim and start nothing from then on; in seconds of the host's clock, which neither a stopped process nor
            a suspended machine stops.
        suspended: the cluster does not answer at present.
    """

    def __init__(self, until: float = math.inf) -> None:
        self.until = until
        self.suspended = False
        self.on_renewed: list[Callable[[], None]] = []
        self._granted_until = until
        self._sure_until = math.inf
        self._renewed = asyncio.Event()

    def renew(self, until: float) -> None:
        """Claims and starts are allowed until then; it never shortens a lease."""
        self._granted_until = max(self._granted_until, until)
        self.suspended = False
        self._changed()

    def suspend(self) -> None:
        """The cluster does not answer: the host goes on to the end of the lease."""
        self.suspended = True

    def end(self) -> None:
        """Claim and start nothing more until it is renewed."""
        self.suspend()
        self._granted_until = self.until = 0.0

    def sure(self, until: float) -> None:
        """The host knows the time well enough until then; 0 for not at all."""
        self._sure_until = until
        self._changed()

    def shift(self, by_s: float) -> None:
        """The host's clock was corrected: the lease ends when it would have ended without that."""
        if self._granted_until > 0:
            self._granted_until += by_s
        self._changed()

    def _changed(self) -> None:
        self.until = min(self._granted_until, self._sure_until)
        self._renewed.set()
        for renewed in self.on_renewed:
            renewed()

    async def valid(self, clock: Clock) -> None:
        """Return once claims are allowed, which is at once while the lease runs."""
        while clock.now() >= self.until:
            self._renewed.clear()
            await self._renewed.wait()
