"""The expiry loop: dead-letters buffered messages that have outlived their time to live, wherever they stand."""

from __future__ import annotations

import asyncio
import heapq

from emq.groups.context import HostContext
from emq.groups.owned import OwnedGroup
from emq.runtime.slicing import in_slices

GRANULARITY_S = 0.05
"""Most seconds until an expired message is found in its buffer. It never starts: the dispatcher checks the time,
too."""

BUCKET_US = 50_000


class Expiry:
    """Knows the groups that buffer messages with an expiry, and sifts a group when its first message expires.

    So an expired message does not wait behind unexpired ones for the group's quota. Messages that are still in the
    store are checked when a host reads them. Groups lie in buckets of 50 ms by the time of their first expiry: a group
    whose time has not come costs nothing.
    """

    def __init__(self, context: HostContext) -> None:
        self._clock = context.clock
        self._events = context.events
        self._bucket_of: dict[OwnedGroup, int] = {}
        self._buckets: dict[int, dict[OwnedGroup, None]] = {}
        self._order: list[int] = []
        self._something = asyncio.Event()

    def watch(self, group: OwnedGroup) -> None:
        """Watch a group that has buffered a message that expires (the group's `expires_us` is set)."""
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
        """Stop watching a released group."""
        bucket = self._bucket_of.pop(group, None)
        if bucket is not None:
            del self._buckets[bucket][group]

    async def expire(self) -> None:
        """Take expired messages out of the buffers and report them. Ends by cancellation."""
        while True:
            await self._something.wait()
            due = self._due(self._clock.now_us())
            try:
                async for group in in_slices(due):
                    try:
                        self._sift(group)
                    except Exception as exc:  # else the messages that were taken out would be lost
                        self._events.broken("expiry", group, exc)
            except BaseException:
                for group in [group for group in due if group.expires_us and not group.stopping]:
                    self.watch(group)
                raise
            if self._order:
                await asyncio.sleep(GRANULARITY_S)
            else:
                self._something.clear()

    def _due(self, now_us: int) -> list[OwnedGroup]:
        """Return the groups whose time has come, and stop watching them."""
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
            self._events.unstarted(group, message)
        self._events.drained(group)
        if group.expires_us:
            self.watch(group)
