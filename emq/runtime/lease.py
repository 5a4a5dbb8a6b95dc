"""The lease: the time until which a host may go on without hearing from its cluster."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from emq.runtime.clock import Clock


class Lease:
    """The time until which a host may claim and start messages, by its membership and by its knowledge of the time.

    States: *granted* (the host claims and starts), *suspended* (the cluster does not answer; the host goes on until
    `until`, since no other host gets its groups before then), *expired* (`until` has passed: the host claims and starts
    nothing). `renew` leads back to granted from every state. The lease also counts as expired once the host is not
    `sure` of its clock any more.

    Attributes:
        until: from then on, the host claims and starts nothing; in seconds of the host's clock, which goes on while the
            process is stopped or the machine suspended.
        granted_until: no other host gets the host's groups before then; not before `until`.
        suspended: True while the cluster does not answer.
        on_renewed: called after each change of the lease.
    """

    def __init__(self, until: float = math.inf) -> None:
        self.until = until
        self.suspended = False
        self.on_renewed: list[Callable[[], None]] = []
        self.granted_until = until
        self._sure_until = math.inf
        self._renewed = asyncio.Event()

    def renew(self, until: float) -> None:
        """Allow claims and starts until then. Never shortens the lease."""
        self.granted_until = max(self.granted_until, until)
        self.suspended = False
        self._changed()

    def suspend(self) -> None:
        """Note that the cluster does not answer; the host goes on to the end of the lease."""
        self.suspended = True

    def end(self) -> None:
        """End the lease at once: the host claims and starts nothing more until `renew`."""
        self.suspend()
        self.granted_until = self.until = 0.0

    def sure(self, until: float) -> None:
        """Set the time until which the host's clock is exact enough; 0 if it is not."""
        self._sure_until = until
        self._changed()

    def shift(self, by_s: float) -> None:
        """Move the lease's end with a correction of the host's clock, so that it stays the same moment."""
        if self.granted_until > 0:
            self.granted_until += by_s
        self._changed()

    def _changed(self) -> None:
        self.until = min(self.granted_until, self._sure_until)
        self._renewed.set()
        for renewed in self.on_renewed:
            renewed()

    async def valid(self, clock: Clock) -> None:
        """Wait until claims are allowed; return at once while the lease runs."""
        while clock.now() >= self.until:
            self._renewed.clear()
            await self._renewed.wait()
