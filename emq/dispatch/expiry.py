"""The expiry loop: dead-letters buffered messages that have outlived their time to live, wherever they stand."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

from emq.clock import Clock
from emq.groups.owned import OwnedGroup
from emq.loops.slicing import in_slices
from emq.message import Message

GRANULARITY_S = 0.05
"""How late an expired message may be found in its buffer. It never starts late: a start looks at the time, too."""

BUCKET_US = 50_000


class Expiry:
    """Knows the groups that have something buffered which expires, and looks at one when its first such time comes.

    So an expired message does not wait behind unexpired ones for the group's quota. What is still in the store is
    looked at when it is read. Groups lie in buckets by that time, 50 ms wide: a group whose time has not come costs
    nothing.
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
        self._bucket_of: dict[OwnedGroup, int] = {}
        self._buckets: dict[int, dict[OwnedGroup, None]] = {}
        self._order: list[int] = []
        self._something = asyncio.Event()

    def watch(self, group: OwnedGroup) -> None:
        """The group has buffered something that expires (its `expires_us` is set)."""
        bucket, noted = -(-group.expires_us // BUCKET_US), self._bucket_of.get(group)
        if noted is not None and noted <= bucket:
            return
        self.forget(group)
        self._bucket_of[group] = bucket
        if bucket not in self._buckets:
            self._buckets[bucket] = {}
            heapq.heappush(self._order, bucket)
        self._buckets[bucket][group] = None
        self._something.set()

    def forget(self, group: OwnedGroup) -> None:
        """The group is let go of."""
        bucket = self._bucket_of.pop(group, None)
        if bucket is not None:
            del self._buckets[bucket][group]

    async def expire(self) -> None:
        """Take out what has expired. Ends by cancellation."""
        while True:
            await self._something.wait()
            async for group in in_slices(self._due(self._clock.now_us())):
                self._sift(group)
            if self._order:
                await asyncio.sleep(GRANULARITY_S)
            else:
                self._something.clear()

    def _due(self, now_us: int) -> list[OwnedGroup]:
        """Groups whose time has come; they are not watched any more."""
        groups: list[OwnedGroup] = []
        while self._order and self._order[0] * BUCKET_US <= now_us:
            groups += self._buckets.pop(heapq.heappop(self._order))
        for group in groups:
            del self._bucket_of[group]
        return groups

    def _sift(self, group: OwnedGroup) -> None:
        if group.stopping or not group.expires_us:
            return
        for message in group.take_expired(self._clock.now_us()):
            self._on_expired(group, message)
        self._on_drained(group)
        if group.expires_us:
            self.watch(group)
