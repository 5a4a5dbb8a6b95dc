"""The readiness loop: turns the store's wake-ups into queues to read, and lanes and slots to claim from."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TypeVar

from emq.fetcher.readiness import Readiness
from emq.groups.context import HostContext
from emq.groups.owned import OwnedGroup, OwnedQueue
from emq.loops.slicing import in_slices
from emq.storage.store import Store

log = logging.getLogger(__name__)

T = TypeVar("T")

SWEEP_S = 120.0
"""Seconds in which the host looks at every owned queue and lane once, in slices, in case a wake-up was lost in a way
that the store's own sweep cannot see (a failover to a replica that lagged). At 60,000 queues of 20,000 groups, the
sweep costs one read of 500 queues and one claim of 170 lanes a second."""

SLICES = 120

TOGETHER = 500
"""Most names that are looked at before the event loop serves other tasks."""


class Waker:
    """Listens to the store; knows queues, lanes and slots by name.

    Attributes:
        woken: number of wake-ups received.
        doubts: number of times that wake-ups may have been lost, so that the host looked at everything.
    """

    def __init__(
        self,
        store: Store,
        queues: Mapping[str, OwnedQueue],
        groups: Mapping[str, OwnedGroup],
        readiness: Readiness,
        context: HostContext,
    ) -> None:
        self._events = context.events
        self._store = store
        self._queues = queues
        self._groups = groups
        self._readiness = readiness
        self._wakeups: AsyncIterator[Sequence[str] | None] | None = None
        self.woken = 0
        self.doubts = 0

    def open(self) -> None:
        """Start watching the store. Raises `HostConflict` if only one host may watch it and another host does."""
        self._wakeups = self._store.watch()

    async def listen(self) -> None:
        """Pass on wake-ups as they come. Ends by cancellation, or when the store closes."""
        if self._wakeups is None:  # the watch broke before: wake-ups since then are lost
            self.open()
            await self._doubt()
        assert self._wakeups is not None
        wakeups, self._wakeups = self._wakeups, None
        async for names in wakeups:
            if names is None:
                await self._doubt()
                continue
            self.woken += len(names)
            async for name in in_slices(names, TOGETHER):
                if (queue := self._queues.get(name)) is not None:
                    self._readiness.woken(queue)
                elif name.endswith("/"):
                    self._events.slots_woken((name,))
                else:
                    self._events.lanes_woken((name,))

    async def _doubt(self) -> None:
        """Look at all lanes, queues and slots of the host. A group's lane is first: it notes the time of this look."""
        self.doubts += 1
        groups = list(self._groups.values())
        async for group in in_slices(groups, TOGETHER):
            if self._groups.get(group.name) is group:
                self._events.doubted(group)
                self.look_at(group.queues)
                if group.slot is not None:
                    self._events.slots_woken((group.slot.address,))

    async def sweep(self) -> None:
        """Look at a slice of all queues and lanes each second. Ends by cancellation."""
        while True:
            queues, lanes = list(self._queues.values()), list(self._groups)
            for i in range(SLICES):
                await asyncio.sleep(SWEEP_S / SLICES)
                self.look_at(q for q in _slice(queues, i) if self._queues.get(q.name) is q)
                self._events.lanes_woken(_slice(lanes, i))

    def look_at(self, queues: Iterable[OwnedQueue]) -> None:
        """Have queues read, once more if a read is under way: the store may have forgotten that this read armed it."""
        for queue in queues:
            self._readiness.woken(queue)


def _slice(names: Sequence[T], i: int) -> Sequence[T]:
    """Return the `i`-th of `SLICES` parts of the names."""
    size = -(-len(names) // SLICES)
    return names[i * size : (i + 1) * size]
