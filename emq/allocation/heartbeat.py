"""The heartbeat: proves that a session is alive, and renews the lease with each proof."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from emq.allocation.records import Paths
from emq.allocation.tree import protocol
from emq.runtime import errors, pace
from emq.runtime.clock import Clock
from emq.runtime.lease import Lease

log = logging.getLogger(__name__)

LEASE_SHARE = 2 / 3
"""Share of the session's time-out for which a host goes on after the last heartbeat with a reply.

The rest gives started messages time to end before another host may begin."""

BEATS = 8
"""Number of heartbeats in one time-out. More heartbeats let the lease outlive a longer outage."""

MAX_AHEAD_S = 0.5
"""Clock error, in seconds, above which the host logs a warning: caps and schedules go by the clock."""

JITTER_S = 0.03
"""Change of the measured clock error, in seconds, that may be the network's; the host does not announce it."""

AHEAD_EVERY = 30
"""Number of heartbeats between two looks at the ensemble's clock."""


class Heartbeat:
    """Proves again and again that the session is alive, by a node of the session that nobody watches.

    A successful write proves that the session was alive after the host sent the write. A read would prove nothing: a
    server that is cut off from the others answers reads for a while.

    Attributes:
        ahead_s: seconds by which the clock here is ahead of the ensemble's, roughly.
    """

    def __init__(
        self, coordination: protocol.Tree, paths: Paths, clock: Clock, lease: Lease, complain: Callable[[str], None]
    ) -> None:
        self._tree = coordination
        self._paths = paths
        self._clock = clock
        self._lease = lease
        self._complain = complain
        self._incarnation = ""
        self._wanted = asyncio.Event()
        self.ahead_s = 0.0

    async def begin(self, incarnation: str) -> None:
        """Create the node of a new session, and so renew the lease."""
        sent_us = self._clock.passed_us()
        await self._tree.create(self._paths.lease(incarnation), b"", ephemeral=True)
        self._incarnation = incarnation
        self._renew(sent_us)

    async def give_up(self) -> None:
        """End the lease and delete the node, since the host does not use this session."""
        incarnation, self._incarnation = self._incarnation, ""
        self._lease.end()
        await self._tree.delete(self._paths.lease(incarnation))

    def end(self) -> None:
        """End the lease, since the session ended."""
        self._incarnation = ""
        self._lease.end()

    def connected(self) -> None:
        """Send a heartbeat now, since the connection is back and the lease may be about to end."""
        self._wanted.set()

    async def beat(self) -> None:
        """Send heartbeats, `BEATS` in each time-out. Ends by cancellation."""
        beats = 0
        while True:
            if incarnation := self._incarnation:
                sent_us, path = self._clock.passed_us(), self._paths.lease(incarnation)
                try:
                    compares = beats % AHEAD_EVERY == 0
                    await (self._tree.write(path, b"", -1) if compares else self._tree.prove(path))
                    if incarnation == self._incarnation:
                        self._renew(sent_us)
                    if compares:
                        await self._compare_clocks(path, sent_us)
                    beats += 1
                except errors.ClusterUnavailable as exc:
                    self._lease.suspend()
                    left_s = max(0.0, self._lease.until - self._clock.now())
                    self._complain(f"{exc}; this host goes on for {left_s:.1f} s")
                except protocol.NodeMissing:
                    self._lease.suspend()  # the session ended; the tree is about to report that
            await pace.wait(self._wanted, self._tree.timeout_s / BEATS)
            self._wanted.clear()

    def _renew(self, sent_us: int) -> None:
        """Renew the lease by elapsed time: a wall clock that was set back or stands still would lengthen the lease."""
        self._lease.renew(self._clock.at_us(sent_us) / 1e6 + self._tree.timeout_s * LEASE_SHARE)

    async def _compare_clocks(self, path: str, sent_us: int) -> None:
        answered_us = self._clock.passed_us()
        node = await self._tree.read(path)
        if node is None:
            return
        ahead_s = round(self._clock.at_us((sent_us + answered_us) // 2) / 1e6 - node.written_s, 2)
        if abs(ahead_s - self.ahead_s) < JITTER_S:
            return
        self.ahead_s = ahead_s
        if abs(self.ahead_s) > MAX_AHEAD_S:
            log.warning(
                "the clock of this host is %.1f s %s that of the servers in which hosts meet; delays, schedules and "
                "the seconds of moving groups are off by as much: run a time service (NTP) on all machines",
                abs(self.ahead_s),
                "ahead of" if self.ahead_s > 0 else "behind",
            )
