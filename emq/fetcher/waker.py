"""The readiness loop: turns the store's wake-ups into queues to read, lanes and slots to claim."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

from emq.fetcher.readiness import Readiness
from emq.owned import OwnedGroup, OwnedQueue
from emq.storage import Store

log = logging.getLogger(__name__)

SWEEP_S = 120.0
"""In this time every owned queue is looked at once, in slices, in case a wake-up was lost in a way that the store's own
sweep cannot see (a failover to a replica that lagged). At 60,000 queues that is one read of 500 a second."""

SLICES = 120


class Waker:
    """Listens to the store; knows queues, lanes and slots by name."""

    def __init__(
        self,
        store: Store,
        queues: Mapping[str, OwnedQueue],
        groups: Mapping[str, OwnedGroup],
        readiness: Readiness,
        on_lanes: Callable[[Iterable[str]], None],
        on_slots: Callable[[Iterable[str]], None],
    ) -> None:
        """Args:
        on_lanes: called with the names of lanes that have an earlier due time than they were armed with.
        on_slots: called with the addresses of slots that have something in front of what they were armed with.
        """
        self._store = store
        self._queues = queues
        self._groups = groups
        self._readiness = readiness
        self._on_lanes = on_lanes
        self._on_slots = on_slots
        self._wakeups: AsyncIterator[Sequence[str] | None] | None = None

    def open(self) -> None:
        """Start watching the store. Raises `HostConflict` where only one host may and another does."""
        self._wakeups = self._store.watch()

    async def listen(self) -> None:
        """Pass on wake-ups as they come. Ends by cancellation, or when the store closes."""
        assert self._wakeups is not None, "open() comes first"
        async for names in self._wakeups:
            if names is None:
                self.look_at(self._queues.values())
                self._on_lanes(self._groups)
                self._on_slots([g.slot.address for g in self._groups.values() if g.slot is not None])
                continue
            for name in names:
                if (queue := self._queues.get(name)) is not None:
                    self._readiness.woken(queue)
                elif name.endswith("/"):
                    self._on_slots((name,))
                else:
                    self._on_lanes((name,))

    async def sweep(self) -> None:
        """Look at a slice of all queues each second. Ends by cancellation."""
        while True:
            queues = list(self._queues.values())
            size = -(-len(queues) // SLICES)
            for i in range(SLICES):
                await asyncio.sleep(SWEEP_S / SLICES)
                self.look_at(q for q in queues[i * size : (i + 1) * size] if self._queues.get(q.name) is q)

    def look_at(self, queues: Iterable[OwnedQueue]) -> None:
        for queue in queues:
            if queue.more:
                self._readiness.add(queue)  # unless it is on its way
            else:
                self._readiness.woken(queue)
