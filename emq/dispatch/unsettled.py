"""The messages that wait until a call settles them, and those that rest after a call that failed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from itertools import islice

from emq.dispatch.settle_requests import Pending

BATCH = 2_000
BATCH_BYTES = 4 << 20
"""Most messages and bytes of one call, so that a call holds up this loop for some milliseconds only. A larger message
gets a call of its own."""

UNREACHABLE_S = 1.0


class Unsettled:
    """What the settler has to send, in the order in which it came."""

    def __init__(self) -> None:
        self._waiting: deque[Pending] = deque()
        self._something = asyncio.Event()

    def put(self, pending: Pending) -> None:
        self._waiting.append(pending)
        if len(self._waiting) == 1:
            self._something.set()

    async def next_batch(self) -> list[Pending]:
        """Wait until a message is there; return the first ones, which stay here until `remove`."""
        await self._something.wait()
        batch: list[Pending] = []
        left_bytes = BATCH_BYTES
        for pending in islice(self._waiting, BATCH):
            if left_bytes <= 0:
                break
            batch.append(pending)
            left_bytes -= pending.size
        return batch

    def remove(self, batch: list[Pending]) -> None:
        """Remove a batch that `next_batch` has just returned."""
        for _ in batch:
            self._waiting.popleft()
        if not self._waiting:
            self._something.clear()

    def rest(self, pendings: Iterable[Pending]) -> None:
        """Take messages, but hand them out only after `UNREACHABLE_S`."""
        if resting := list(pendings):
            asyncio.get_running_loop().call_later(UNREACHABLE_S, self._rested, resting)

    def _rested(self, pendings: Iterable[Pending]) -> None:
        self._waiting.extend(pendings)
        self._something.set()
