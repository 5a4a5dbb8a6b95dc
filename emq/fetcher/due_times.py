"""Due times of many lanes or slots, in one heap and one timer."""

from __future__ import annotations

import asyncio
import heapq
import itertools

from emq.runtime.clock import LONGEST_TIMER_S, Clock

_NEVER = 1 << 62

SPARE = 64
"""Outdated entries that the heap may hold before it is rebuilt."""


class DueTimes:
    """The names of lanes or slots, each with the time of its next look.

    An entry of the heap is only a hint: entries are never removed from the middle of the heap. `_due` holds the
    earliest time of each name; an entry with another time is outdated. When most entries are outdated, the heap is
    rebuilt.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: dict[str, int] = {}
        self._heap: list[tuple[int, int, str]] = []
        self._numbers = itertools.count()  # names that are due at the same time keep the order in which they came
        self._earlier = asyncio.Event()

    @property
    def entries(self) -> int:
        """Number of entries in the heap, outdated ones included."""
        return len(self._heap)

    def at(self, name: str, due_ms: int) -> None:
        """Make `name` due at `due_ms`, unless it is due earlier already."""
        if due_ms < self._due.get(name, _NEVER):
            self._due[name] = due_ms
            heapq.heappush(self._heap, (due_ms, next(self._numbers), name))
            if len(self._heap) > 2 * len(self._due) + SPARE:
                self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[0]]
                heapq.heapify(self._heap)
            if self._heap[0][2] == name:
                self._earlier.set()

    def forget(self, name: str) -> None:
        self._due.pop(name, None)

    def pop(self, now_ms: int, limit: int) -> list[str]:
        """Return up to `limit` names that are due, in order of their times, and forget their times."""
        names: list[str] = []
        while self._heap and self._heap[0][0] <= now_ms and len(names) < limit:
            due_ms, _, name = heapq.heappop(self._heap)
            if self._due.get(name) == due_ms:
                del self._due[name]
                names.append(name)
        return names

    async def wait(self) -> None:
        """Return when a name is due, or may be. Another waiter may take the name before the caller looks."""
        self._earlier.clear()
        delay = self._heap[0][0] / 1000 - self._clock.now() if self._heap else None
        try:
            async with asyncio.timeout(None if delay is None else min(max(0.001, delay), LONGEST_TIMER_S)):
                await self._earlier.wait()
        except TimeoutError:
            pass
