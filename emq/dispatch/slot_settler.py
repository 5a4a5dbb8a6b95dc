"""Settles the members of slots: sends acknowledgements in batches, and repeats verdicts whose answers were lost."""

from __future__ import annotations

import asyncio
import bisect
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any

from emq import errors
from emq.groups.context import HostContext
from emq.groups.owned import OwnedGroup, OwnedSlot
from emq.loops.aside import Asides, Call
from emq.loops.troubles import Troubles
from emq.message import Message
from emq.storage.answers import FAILURES, of_each
from emq.storage.slot_store import SlotSettle, SlotVerdict, SortedStore

Done = Callable[[Sequence[int], Sequence[bool | errors.NotOwner]], None]

BATCH = 2_000
BATCH_BYTES = 4 << 20
"""Most members and bytes of one call; a single larger member gets a call of its own."""

_settle: Callable[[Any], SlotSettle] = partial(tuple.__new__, SlotSettle)
"""Makes a `SlotSettle` as `SlotSettle._make` does, in half the time; there is one for each message."""

_ACK = repeat(SlotVerdict.ACK)
_REST = [repeat(SlotSettle._field_defaults[name]) for name in SlotSettle._fields[5:]]

UNREACHABLE_S = 1.0
CLAIMING_S = 0.01


class _Settling:
    """Marks slots while a call that settles their members is under way, and in doubt if its answer is lost."""

    def __init__(self, slots_: Iterable[OwnedSlot]) -> None:
        self._slots = set(slots_)
        self._unsure: set[OwnedSlot] = set()

    def __enter__(self) -> _Settling:
        for slot in self._slots:
            slot.settling += 1
        return self

    def is_in_doubt(self, slot: OwnedSlot) -> bool:
        return slot in self._unsure

    def lost(self, slot: OwnedSlot) -> None:
        """The answer for this slot was lost: the store may have carried out the call."""
        if slot not in self._unsure:
            self._unsure.add(slot)
            slot.unsure += 1

    def keep(self, slots_: Iterable[OwnedSlot]) -> None:
        """Keep the marks of these slots only; unmark the others."""
        for slot in self._slots.difference(slots_):
            self._unmark(slot)

    def claiming(self) -> bool:
        return any(slot.claiming for slot in self._slots)

    def __exit__(self, *exc_info: object) -> None:
        self.keep(())

    def _unmark(self, slot: OwnedSlot) -> None:
        self._slots.discard(slot)
        slot.settling -= 1
        if slot in self._unsure:
            self._unsure.discard(slot)
            slot.unsure -= 1


class MemberSettler:
    """Tells the store the verdicts on members.

    Attributes:
        refused: number of verdicts refused because their group has a newer owner.
        void: number of verdicts that came after their member had timed out; such a member is delivered again.
    """

    def __init__(self, store: SortedStore, context: HostContext) -> None:
        self._events = context.events
        self._records = context.records
        self._store = store
        self._done: deque[OwnedSlot] = deque()
        self._something = asyncio.Event()
        self._troubles = Troubles("handled messages wait to be settled")
        self._asides = Asides(None)
        self.refused = 0
        self.void = 0

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

        Two of these loops run, so that the server removes one batch while this process gathers the next. If a part of a
        batch cannot be settled now, the batch steps aside (`emq.loops.aside`); the in-flight bounds limit such batches.
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

    def _put_back(self, batch: Iterable[tuple[OwnedSlot, list[tuple[bytes, int]]]]) -> None:
        for slot, done in batch:
            if done and not slot.done:
                self._list(slot)
            slot.done += done

    def _next_batch(self) -> list[tuple[OwnedSlot, list[tuple[bytes, int]]]]:
        batch: list[tuple[OwnedSlot, list[tuple[bytes, int]]]] = []
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

    async def _acknowledge(self, batch: Sequence[tuple[OwnedSlot, list[tuple[bytes, int]]]]) -> None:
        settles: list[SlotSettle] = []
        spans: list[tuple[OwnedSlot, range]] = []
        for slot, done in batch:
            start = len(settles)
            members, tokens = zip(*done, strict=True)
            rows = zip(repeat(slot.slot), members, _ACK, tokens, repeat(slot.group.epoch), *_REST, strict=False)
            settles += map(_settle, rows)
            spans.append((slot, range(start, len(settles))))
        told: list[Sequence[int]] = []

        def settled(places: Sequence[int], answers: Sequence[bool | errors.NotOwner]) -> None:
            told.append(places)
            found = dict(zip(places, answers, strict=True)) if len(places) < len(settles) else None
            for slot, span in spans:
                mine: Sequence[int] = span
                if found is None:
                    of_slot = answers[span.start : span.stop]
                else:
                    mine = [place for place in span if place in found]
                    of_slot = [found[place] for place in mine]
                if mine:
                    slot.let_go([settles[place].member for place in mine])
                    try:
                        if of_slot.count(True) != len(of_slot):
                            self._refused(slot, of_slot)
                    except Exception as bug:  # the store has settled these members, and those of other slots
                        self._events.broken("settle", slot.group, bug)
                    self._events.acknowledged(slot.group, len(mine))

        try:
            await self._records.written_at_last()
            await self.settle(settles, [slot for slot, _ in batch], settled)
        except BaseException:
            over = set(itertools.chain.from_iterable(told))
            self._put_back(
                (slot, [(settles[place].member, settles[place].token) for place in span if place not in over])
                for slot, span in spans
            )
            raise

    async def settle(self, settles: Sequence[SlotSettle], owned: Sequence[OwnedSlot], done: Done) -> None:
        """Settle members of the slots `owned`; ask the store again until every verdict is settled.

        Args:
            done: called with places in `settles`, ascending, and the store's answers as they come, so that a server in
                trouble delays no verdicts of others.

        The store may have carried out a call whose answer was lost. Then a producer may have added the member again,
        and this host may have claimed it again, under the same token if both claims fell in one second. A repeated
        verdict would act on that new claim. Three rules prevent this:

        - Nothing is claimed from the slots concerned before the repeat (`OwnedSlot.unsure`).
        - The repeat waits for the claims that are under way.
        - The repeat leaves out members that may have been claimed again. If the host holds a member twice, the store
          carried out the verdict. If the answer of a claim was lost as well, the slot is recovered, and members still
          in prepare are delivered again.
        """
        slots = {slot.slot.name: slot for slot in owned}
        left: Sequence[int] = range(len(settles))
        with _Settling(owned) as settling:
            while left:
                failed: list[int] = []
                for part in self._troubles.apart(left, lambda place: settles[place].slot.name):
                    failed += await self._settle_once(settles, part, slots, settling, done)
                failed.sort()
                if not failed:
                    return
                settling.keep({slots[settles[i].slot.name] for i in failed})
                await self._wait(settling)
                left = self._not_claimed_anew(settles, failed, slots, settling, done)

    async def _settle_once(
        self,
        settles: Sequence[SlotSettle],
        places: Sequence[int],
        slots: Mapping[str, OwnedSlot],
        settling: _Settling,
        done: Done,
    ) -> list[int]:
        """Ask the store once; return the places that the store could not settle."""
        part = settles if len(places) == len(settles) else [settles[i] for i in places]
        answers = await of_each(self._store.settle(part), len(part))
        if answers.count(True) == len(answers) and not self._troubles.latest:
            done(places, [True] * len(places))  # as nearly always
            return []
        settled: list[int] = []
        found: list[bool | errors.NotOwner] = []
        failed: list[int] = []
        for place, answer in zip(places, answers, strict=True):
            if isinstance(answer, FAILURES):
                failed.append(place)
                slot = slots[settles[place].slot.name]
                if isinstance(answer, errors.OutcomeUnknown):
                    settling.lost(slot)
                self._troubles.failed(slot.slot.name, answer)
            else:
                settled.append(place)
                found.append(answer)
        if self._troubles.latest:
            for name in {settles[place].slot.name for place in settled}:
                self._troubles.well(name)
        if settled:
            done(settled, found)
        return failed

    @staticmethod
    def _not_claimed_anew(
        settles: Sequence[SlotSettle],
        places: Sequence[int],
        slots: Mapping[str, OwnedSlot],
        settling: _Settling,
        done: Done,
    ) -> list[int]:
        """Return the places to send again. Members that may have been claimed again count as settled."""
        left: list[int] = []
        anew: list[int] = []
        for place in places:
            settle = settles[place]
            slot = slots[settle.slot.name]
            (anew if settling.is_in_doubt(slot) and _claimed_anew(slot, settle) else left).append(place)
        if anew:
            done(anew, [True] * len(anew))
        return left

    async def _wait(self, settling: _Settling) -> None:
        await asyncio.sleep(UNREACHABLE_S)
        while settling.claiming():  # noqa: ASYNC110
            await asyncio.sleep(CLAIMING_S)

    def _refused(self, slot: OwnedSlot, answers: Sequence[bool | errors.NotOwner]) -> None:
        self.void += sum(answer is False for answer in answers)
        if refused := sum(isinstance(answer, errors.NotOwner) for answer in answers):
            self.refused += refused
            self._events.lost(slot.group)


def _claimed_anew(slot: OwnedSlot, settle: SlotSettle) -> bool:
    """Return True if, after a verdict of unknown outcome, a newer claim of the same second may hold the member."""
    return settle.token // 1000 in slot.suspect or slot.held.get(settle.member, 0) > 1
