"""The expiry loop: dead-letters buffered messages that have outlived their time to live, wherever they stand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from emq.clock import Clock
from emq.message import Message
from emq.owned import OwnedGroup

GRANULARITY_S = 0.05
"""How late an expired message may be found in its buffer. It never starts late: a start looks at the time, too."""


class Expiry:
    """Knows the groups that have something buffered which expires, and looks at one when its first such time comes.

    So an expired message does not wait behind unexpired ones for the group's quota. What is still in the store is
    looked at when it is read.
    """

    def __init__(
        self,
        clock: Clock,
        on_expired: Callable[[OwnedGroup, Message], None],
        on_drained: Callable[[OwnedGroup], None],
    ) -> None:
        """Args:
        on_expired: called with each message that was taken out of its group.
        on_drained: called after that, since the group's buffers may want to be refilled.
        """
        self._clock = clock
        self._on_expired = on_expired
        self._on_drained = on_drained
        self._groups: set[OwnedGroup] = set()
        self._something = asyncio.Event()

    def watch(self, group: OwnedGroup) -> None:
        """The group has buffered something that expires (its `expires_us` is set)."""
        self._groups.add(group)
        self._something.set()

    async def expire(self) -> None:
        """Take out what has expired. Ends by cancellation."""
        while True:
            await self._something.wait()
            now_us = self._clock.now_us()
            for group in [g for g in self._groups if g.expires_us <= now_us]:
                self._sift(group, now_us)
            if self._groups:
                await asyncio.sleep(GRANULARITY_S)
            else:
                self._something.clear()

    def _sift(self, group: OwnedGroup, now_us: int) -> None:
        if group.expires_us and not group.stopping:
            for message in group.take_expired(now_us):
                self._on_expired(group, message)
            self._on_drained(group)
        if not group.expires_us or group.stopping:
            self._groups.discard(group)
