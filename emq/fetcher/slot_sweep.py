"""The sweep of slots: finds messages that came without a wake-up, and claims of lost consumers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from emq.fetcher.slot_returns import SlotReturns
from emq.groups.owned import OwnedSlot
from emq.runtime import pace
from emq.runtime.clock import Clock
from emq.storage.answers import FAILURES, of_each
from emq.storage.slot_store import SortedStore

SWEEP_S = 5.0
"""Seconds in which the host inspects every slot once for changes without a wake-up: members of foreign producers, and
claims of lost consumers."""
SWEEP_SLOTS = 500
"""Most slots inspected in one call. A sweep of many slots takes several steps within `SWEEP_S`."""


class SlotSweep:
    """Inspects the slots of this host in turn.

    Args:
        slots: the slots to inspect, by address; the claimer changes them.
    """

    def __init__(self, store: SortedStore, slots: Mapping[str, OwnedSlot], returns: SlotReturns, clock: Clock) -> None:
        self._store = store
        self._slots = slots
        self._returns = returns
        self._clock = clock

    async def run(self) -> None:
        """Inspect all slots once in `SWEEP_S`, a part of them in each step. Ends by cancellation."""
        while True:
            slots = list(self._slots.values())
            steps = max(-(-len(slots) // SWEEP_SLOTS), math.ceil(SWEEP_S) - 1) if slots else 1
            size = -(-len(slots) // steps)
            begin = self._clock.now()
            for step in range(steps):
                part = [s for s in slots[step * size : (step + 1) * size] if self._slots.get(s.address) is s]
                if part:
                    await self._inspect(part)
                following = begin + (step + 1) * (SWEEP_S - 0.5) / steps
                await pace.rest(max(0.05, following - self._clock.now()))

    async def _inspect(self, slots: Sequence[OwnedSlot]) -> None:
        now_ms = int(self._clock.now() * 1000)
        states = await of_each(self._store.inspect([slot.slot for slot in slots], now_ms), len(slots))
        lost = []
        for slot, state in zip(slots, states, strict=True):
            if isinstance(state, FAILURES):
                continue  # the next round looks at the slot again
            slot.note_times(state.next_score)
            if not slot.more:
                slot.look()
            timeout_ms = int(slot.group.owner.topic.options.prepare_timeout_s * 1000)
            if state.oldest_prepared_ms is not None and state.oldest_prepared_ms < now_ms - timeout_ms:
                lost.append((slot, timeout_ms))
        for slot, timeout_ms in lost:
            await self._returns.recover([slot], now_ms, now_ms - timeout_ms)
