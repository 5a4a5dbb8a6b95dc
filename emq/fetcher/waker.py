"""The readiness loop: turns the store's wake-ups into queues to read, lanes and slots to claim."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from emq.fetcher.readiness import Readiness
from emq.groups.owned import OwnedGroup, OwnedQueue
from emq.loops.slicing import in_slices
from emq.storage.store import Store

log = logging.getLogger(__name__)

T = TypeVar("T")

SWEEP_S = 120.0
"""In this time every owned queue and lane is looked at once, in slices, in case a wake-up was lost in a way that the
store's own sweep cannot see (a failover to a replica that lagged). At 60,000 queues of 20,000 groups that is one read
of 500 queues and one claim of 170 lanes a second."""

SLICES = 120

TOGETHER = 500
"""Names that are looked at before the event loop serves everybody else."""


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
        on_doubt: Callable[[OwnedGroup], None],
    ) -> None:
        """Args:
        on_lanes: called with the names of lanes that have an earlier due time than they were armed with.
        on_slots: called with the addresses of slots that have something in front of what they were armed with.
        on_doubt: called with each group when wake-ups may have been lost, and the store may have come back from a
            crash; looks at its lane.
        """
        self._store = store
        self._queues = queues
        self._groups = groups
        self._readiness = readiness
        self._on_lanes = on_lanes
        self._on_slots = on_slots
        self._on_doubt = on_doubt
        self._wakeups: AsyncIterator[Sequence[str] | None] | None = None

    def open(self) -> None:
        """Start watching the store. Raises `HostConflict` where only one host may and another does."""
        self._wakeups = self._store.watch()

    async def listen(self) -> None:
        """Pass on wake-ups as they come. Ends by cancellation, or when the store closes."""
        if self._wakeups is None:  # it broke before: what was told meanwhile is lost
            self.open()
            await self._doubt()
        assert self._wakeups is not None
        wakeups, self._wakeups = self._wakeups, None
        async for names in wakeups:
            if names is None:
                await self._doubt()
                continue
            async for name in in_slices(names, TOGETHER):
                if (queue := self._queues.get(name)) is not None:
                    self._readiness.woken(queue)
                elif name.endswith("/"):
                    self._on_slots((name,))
                else:
                    self._on_lanes((name,))

    async def _doubt(self) -> None:
        """Look at everything, lanes first: they note the moment."""
        groups = list(self._groups.values())
        async for group in in_slices(groups, TOGETHER):
            if self._groups.get(group.name) is group:
                self._on_doubt(group)
                self.look_at(group.queues)
                if group.slot is not None:
                    self._on_slots((group.slot.address,))

    async def sweep(self) -> None:
        """Look at a slice of all queues and lanes each second. Ends by cancellation."""
        while True:
            queues, lanes = list(self._queues.values()), list(self._groups)
            for i in range(SLICES):
                await asyncio.sleep(SWEEP_S / SLICES)
                self.look_at(q for q in _slice(queues, i) if self._queues.get(q.name) is q)
                self._on_lanes(_slice(lanes, i))

    def look_at(self, queues: Iterable[OwnedQueue]) -> None:
        for queue in queues:
            if queue.more:
                self._readiness.add(queue)  # unless it is on its way
            else:
                self._readiness.woken(queue)


def _slice(names: Sequence[T], i: int) -> Sequence[T]:
    """The `i`-th of `SLICES` parts."""
    size = -(-len(names) // SLICES)
    return names[i * size : (i + 1) * size]
