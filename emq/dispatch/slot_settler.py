"""Settles the members of slots: acknowledges them in batches, and sends the settler's other verdicts on them."""

from __future__ import annotations

import asyncio
import bisect
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import Any, TypeAlias

from emq.groups.context import HostContext
from emq.groups.owned import OwnedGroup, OwnedSlot
from emq.runtime import errors
from emq.runtime.aside import Asides, Call
from emq.runtime.troubles import Troubles
from emq.storage.answers import Failure, of_each, unexpected
from emq.storage.message import Message
from emq.storage.slot_store import SlotSettle, SlotVerdict, SortedStore

BATCH = 2_000
BATCH_BYTES = 4 << 20
"""Most members and bytes of one call; a single larger member gets a call of its own."""

Answer: TypeAlias = bool | errors.NotOwner | Failure

Claimed: TypeAlias = tuple[bytes, int]
"""A claimed member, and the token of its claim."""

Left = Callable[[OwnedSlot, Sequence[tuple[Claimed, Answer]]], None]

_settle: Callable[[Any], SlotSettle] = partial(tuple.__new__, SlotSettle)
"""Makes a `SlotSettle` as `SlotSettle._make` does, in half the time; there is one for each message."""

_ACK = repeat(SlotVerdict.ACK)
_REST = [repeat(SlotSettle._field_defaults[name]) for name in SlotSettle._fields[5:]]


class MemberSettler:
    """Tells the store the verdicts on members; nearly all are acknowledgements.

    Each acknowledgement is sent once. What the store did not simply carry out is left to the settler, which repeats
    calls that failed.

    Args:
        troubles: the groups that the store could not serve, which the settler notes; their members go in other calls.
        left: called with the acknowledgements of a slot that the store did not carry out, and its answers.
    """

    def __init__(self, store: SortedStore, context: HostContext, troubles: Troubles, left: Left) -> None:
        self._events = context.events
        self._records = context.records
        self._store = store
        self._troubles = troubles
        self._left = left
        self._done: deque[OwnedSlot] = deque()
        self._something = asyncio.Event()
        self._asides = Asides(None)

    def acknowledge(self, group: OwnedGroup, m: Message) -> None:
        """Note that the message was handled; `run` tells the store soon."""
        slot = group.slot
        assert slot is not None
        if not slot.done:
            self._list(slot)
        slot.done.append((m.member, m.token))  # type: ignore[arg-type]  # a member of a slot has one

    def _list(self, slot: OwnedSlot) -> None:
        self._done.append(slot)
        self._something.set()

    async def run(self) -> None:
        """Acknowledge finished members, a batch at a time. Ends by cancellation.

        Two of these loops run, so that the server removes one batch while this process gathers the next. A batch that
        takes long steps aside (`emq.runtime.aside`); the in-flight bounds limit such batches.
        """
        await self._asides.run(self._calls)

    async def _calls(self) -> list[Call]:
        await self._something.wait()
        batch = self._next_batch()  # empty if the other loop was quicker
        if not self._done:
            self._something.clear()
        try:
            parts = self._troubles.apart(batch, lambda done: done[0].slot.name)
        except BaseException:
            self._put_back(batch)
            raise
        return [partial(self._acknowledge, part) for part in parts]

    def _put_back(self, batch: Iterable[tuple[OwnedSlot, list[Claimed]]]) -> None:
        for slot, done in batch:
            if not slot.done:
                self._list(slot)
            slot.done += done

    def _next_batch(self) -> list[tuple[OwnedSlot, list[Claimed]]]:
        batch: list[tuple[OwnedSlot, list[Claimed]]] = []
        members, left_bytes = 0, BATCH_BYTES
        while self._done and members < BATCH and left_bytes > 0:
            slot = self._done.popleft()
            sizes = list(itertools.accumulate([len(member) for member, _ in slot.done]))
            n = min(bisect.bisect_left(sizes, left_bytes) + 1, len(sizes))
            left_bytes -= sizes[n - 1]
            batch.append((slot, slot.done[:n]))
            members += n
            slot.done = slot.done[n:]
            if slot.done:
                self._done.append(slot)
        return batch

    async def _acknowledge(self, batch: Sequence[tuple[OwnedSlot, list[Claimed]]]) -> None:
        settles: list[SlotSettle] = []
        for slot, done in batch:
            members, tokens = zip(*done, strict=True)
            rows = zip(repeat(slot.slot), members, _ACK, tokens, repeat(slot.group.epoch), *_REST, strict=False)
            settles += map(_settle, rows)
        try:
            await self._records.written_at_last()
            answers = await self.settle(settles, [slot for slot, _ in batch])
        except BaseException as exc:  # the store may have carried out the call
            for slot, done in batch:
                self._left(slot, [(claimed, unexpected(exc)) for claimed in done])
            raise
        start = 0
        for slot, done in batch:
            of_slot = answers[start : start + len(done)]
            start += len(done)
            gone = done
            if of_slot.count(True) != len(done):
                gone = [claimed for claimed, answer in zip(done, of_slot, strict=True) if answer is True]
                self._left(slot, [each for each in zip(done, of_slot, strict=True) if each[1] is not True])
            if gone:
                slot.let_go([member for member, _ in gone])
                self._events.acknowledged(slot.group, len(gone))

    async def settle(self, settles: Sequence[SlotSettle], owned: Iterable[OwnedSlot]) -> Sequence[Answer]:
        """Ask the store once to settle members of the slots `owned`; return one answer for each."""
        slots = set(owned)
        for slot in slots:
            slot.begin_settling()
        try:
            return await of_each(self._store.settle(settles), len(settles))
        finally:
            for slot in slots:
                slot.end_settling()
