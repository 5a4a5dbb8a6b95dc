"""The heartbeat: proves that a session is alive, and renews the lease with each proof."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from emq import errors
from emq.allocation.records import Paths
from emq.allocation.tree import protocol
from emq.clock import Clock
from emq.loops.lease import Lease

log = logging.getLogger(__name__)

LEASE_SHARE = 2 / 3
"""Of the session's time-out since the last heartbeat that was answered: so long a host goes on by itself. The rest is
for what it has started to end before others may begin."""

BEATS = 8
"""Heartbeats in one time-out. The more there are, the longer an outage may last that the lease outlives."""

MAX_AHEAD_S = 0.5
"""A clock that is further off is complained about: seconds of caps are counted by it, and schedules go by it."""

JITTER_S = 0.03
"""Differences that are the network's; not worth telling everybody."""

AHEAD_EVERY = 30
"""Heartbeats between two looks at the ensemble's clock."""


class Heartbeat:
    """Writes a node of the session again and again, which nobody watches.

    A write that the servers took proves that the session was alive after it was sent. A read would prove nothing: a
    server that is cut off from the others answers reads for a while.

    Attributes:
        ahead_s: how far the clock here is ahead of the ensemble's, about.
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
        """Create the node of a new session, and renew the lease with it."""
        sent_us = self._clock.passed_us()
        await self._tree.create(self._paths.lease(incarnation), b"", ephemeral=True)
        self._incarnation = incarnation
        self._renew(sent_us)

    async def give_up(self) -> None:
        """The session is not used, after all."""
        incarnation, self._incarnation = self._incarnation, ""
        self._lease.end()
        await self._tree.delete(self._paths.lease(incarnation))

    def end(self) -> None:
        """The session is no more."""
        self._incarnation = ""
        self._lease.end()

    def connected(self) -> None:
        """The connection is back: renew the lease now, which may be about to end."""
        self._wanted.set()

    async def beat(self) -> None:
        """Ends by cancellation."""
        beats = 0
        while True:
            if incarnation := self._incarnation:
                sent_us, path = self._clock.passed_us(), self._paths.lease(incarnation)
                try:
                    await self._tree.write(path, b"", -1)
                    if incarnation == self._incarnation:
                        self._renew(sent_us)
                    if beats % AHEAD_EVERY == 0:
                        await self._compare_clocks(path, sent_us)
                    beats += 1
                except errors.ClusterUnavailable as exc:
                    self._lease.suspend()
                    left_s = max(0.0, self._lease.until - self._clock.now())
                    self._complain(f"{exc}; this host goes on for {left_s:.1f} s")
                except protocol.NodeMissing:
                    self._lease.suspend()  # the session is no more; the tree is about to say so
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._tree.timeout_s / BEATS):
                    await self._wanted.wait()
            self._wanted.clear()

    def _renew(self, sent_us: int) -> None:
        """By what has passed: a clock that was corrected meanwhile, or stands still, would lengthen the lease."""
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
                "the clock of this host is %.1f s %s the ZooKeeper servers'; delays, schedules and the seconds of "
                "moving groups are off by as much: run a time service (NTP) on all machines",
                abs(self.ahead_s),
                "ahead of" if self.ahead_s > 0 else "behind",
            )
