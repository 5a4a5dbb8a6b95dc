"""The physical cap of each queue."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from aiolimiter import AsyncLimiter

_BURST_SHARE = 0.1
"""Share of a second's cap that may pass at once."""


class _Entry:
    __slots__ = ("limiter", "used_at", "waiting")

    def __init__(self, limiter: AsyncLimiter) -> None:
        self.limiter = limiter
        self.used_at = 0.0
        self.waiting = 0


class QueueLimits:
    """Keeps each queue's operations to `cap_per_s` in any second, with a limiter only for queues in use.

    An aiolimiter bucket of size b that leaks r a second lets b + r operations through in its first second. So b is a
    tenth of the cap, and r is the rest. No second has more operations than the cap, and a lasting load reaches nine
    tenths of it.

    Args:
        cap_per_s: operations per second, at least 2.
    """

    def __init__(self, cap_per_s: float) -> None:
        self._burst = max(1.0, float(int(cap_per_s * _BURST_SHARE)))
        self._period_s = self._burst / (cap_per_s - self._burst)
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of queues that have a limiter now."""
        return len(self._entries)

    async def acquire(self, queue: str) -> None:
        """Wait until one more operation on `queue` is within its cap. Cancel-safe."""
        loop = asyncio.get_running_loop()
        entry = self._entries.get(queue)
        if entry is None:
            entry = self._entries[queue] = _Entry(AsyncLimiter(self._burst, self._period_s))
        entry.waiting += 1
        try:
            await entry.limiter.acquire()
        finally:
            entry.waiting -= 1
            entry.used_at = loop.time()
            self._entries.move_to_end(queue)
            self._drop_idle(loop.time())

    def _drop_idle(self, now: float) -> None:
        """Drop idle queues whose bucket is empty, at most two a call; one call adds at most one, so they stay few."""
        for _ in range(2):
            queue, entry = next(iter(self._entries.items()))
            if entry.waiting:
                self._entries.move_to_end(queue)
            elif entry.used_at + self._period_s < now:
                del self._entries[queue]
            else:
                return
