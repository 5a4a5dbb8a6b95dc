"""The times of the next polls of exhausted queues."""

from __future__ import annotations

import asyncio
import heapq
import math


class PollSchedule:
    """Due times of all armed queues in one heap; the heap skips a moved or disarmed entry when it surfaces."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._sooner = asyncio.Event()

    def __contains__(self, queue: str) -> bool:
        return queue in self._due

    def __len__(self) -> int:
        return len(self._due)

    def set(self, queue: str, due: float) -> None:
        """Arm `queue`, or move its poll, to the loop time `due`."""
        if self._due.get(queue) == due:
            return
        self._due[queue] = due
        if not self._heap or due < self._heap[0][0]:
            self._sooner.set()
        heapq.heappush(self._heap, (due, queue))
        if len(self._heap) > 64 + 4 * len(self._due):
            self._heap = [(at, name) for name, at in self._due.items() if at < math.inf]
            heapq.heapify(self._heap)

    def remove(self, queue: str) -> bool:
        """Disarm `queue`; return whether it was armed."""
        return self._due.pop(queue, None) is not None

    def due(self, now: float, limit: int) -> list[str]:
        """Return up to `limit` queues whose poll is due. They stay armed; call `set` or `remove` for each next."""
        found: list[str] = []
        while self._heap and len(found) < limit and self._heap[0][0] <= now:
            at, queue = heapq.heappop(self._heap)
            if self._due.get(queue) == at:
                found.append(queue)
                self._due[queue] = math.inf  # armed, and in no heap before the next `set`, even for the same time
        return found

    async def wait(self) -> None:
        """Wait until the earliest poll may be due. Cancel-safe."""
        now = asyncio.get_running_loop().time()
        self._sooner.clear()
        timeout = self._heap[0][0] - now if self._heap else None
        if timeout is not None and timeout <= 0:
            return
        try:
            async with asyncio.timeout(timeout):
                await self._sooner.wait()
        except TimeoutError:
            return
