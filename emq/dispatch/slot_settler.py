"""Settling the members of slots: acknowledgements in batches, and verdicts whose answers may get lost."""

from __future__ import annotations

import asyncio
import bisect
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from emq import errors
from emq.groups.owned import OwnedGroup
from emq.groups.owned_slot import OwnedSlot
from emq.loops.aside import Aside, Call
from emq.loops.troubles import Troubles
from emq.message import Message
from emq.storage.answers import FAILURES, of_each
from emq.storage.slot_store import Settle, SortedStore, Verdict

Done = Callable[[Sequence[int], Sequence[bool | errors.NotOwner]], None]

BATCH = 2_000
BATCH_BYTES = 4 << 20
"""Bounds of one call, or a single member."""

UNREACHABLE_S = 1.0
CLAIMING_S = 0.01


class _Settling:
    """Marks slots while a call that settles members of theirs is under way, and in doubt once its answer was lost."""

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
        """The answer for this slot was lost: the call may have been carried out there."""
        if slot not in self._unsure:
            self._unsure.add(slot)
            slot.unsure += 1

    def keep(self, slots_: Iterable[OwnedSlot]) -> None:
        """Only these are settled still; unmark the others."""
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
    """Tells the store what became of members.

    Attributes:
        refused: verdicts refused because their group has a newer owner.
        void: verdicts that came after the member had timed out; it is delivered again.
    """

    def __init__(
        self,
        store: SortedStore,
        *,
        on_acknowledged: Callable[[OwnedGroup, int], None],
        on_lost: Callable[[OwnedGroup], None],
    ) -> None:
        """Args:
        on_acknowledged: called with how many members of a group the store has let go of; they are in flight no more.
        on_lost: called when a group has a newer owner.
        """
        self._store = store
        self._on_acknowledged = on_acknowledged
        self._on_lost = on_lost
        self._done: deque[OwnedSlot] = deque()
        self._something = asyncio.Event()
        self._troubles = Troubles("messages that ran wait to be settled")
        self.refused = 0
        self.void = 0

    def acknowledge(self, group: OwnedGroup, m: Message) -> None:
        """The message was handled; the store is told soon."""
        slot, member = group.slot, m.member
        assert slot is not None
        assert member is not None
        if not slot.done:
            self._done.append(slot)
            self._something.set()
        slot.done.append((member, m.token))

    async def run(self) -> None:
        """Acknowledge what is done, a batch at a time. Ends by cancellation.

        Runs twice at once, so that the server removes one batch while this process gathers the next. A batch of which
        a part cannot be settled now steps aside; what is in flight bounds how much is there.
        """
        await Aside(None).run(self._calls)

    async def _calls(self) -> list[Call]:
        await self._something.wait()
        batch = self._next_batch()  # empty if the other loop was quicker
        if not self._done:
            self._something.clear()
        return [
            partial(self._acknowledge, part) for part in self._troubles.apart(batch, lambda done: done[0].slot.name)
        ]

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
        verdict = Verdict.ACK
        settles: list[Settle] = []
        spans: list[tuple[OwnedSlot, range]] = []
        for slot, done in batch:
            start = len(settles)
            settles += [Settle(slot.slot, member, verdict, token, slot.group.epoch) for member, token in done]
            spans.append((slot, range(start, len(settles))))

        def settled(places: Sequence[int], answers: Sequence[bool | errors.NotOwner]) -> None:
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
                    if of_slot.count(True) != len(of_slot):
                        self._refused(slot, of_slot)
                    self._on_acknowledged(slot.group, len(mine))

        await self.settle(settles, [slot for slot, _ in batch], settled)

    async def settle(self, settles: Sequence[Settle], owned: Sequence[OwnedSlot], done: Done) -> None:
        """Settle members of the slots `owned`, however often the store has to be asked.

        Args:
            done: called with places in `settles`, ascending, and the store's answers, as they come: what one server
                cannot settle now keeps nothing of the others waiting.

        A call whose answer was lost may have been carried out. Then a member may have been added and claimed anew,
        under the same token if that was in the same second, and a repeated verdict would hit that claim. So nothing is
        claimed from the slots concerned before the repeat (`OwnedSlot.unsure`), claims under way are awaited, and what
        may have been claimed anew is left out: if the host holds it twice, the verdict was carried out; if the answer
        of a claim was lost as well, the slot is recovered, and what is still in prepare is delivered again.
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
        settles: Sequence[Settle],
        places: Sequence[int],
        slots: Mapping[str, OwnedSlot],
        settling: _Settling,
        done: Done,
    ) -> list[int]:
        """Ask the store; returns the places that it could not settle."""
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
        settles: Sequence[Settle],
        places: Sequence[int],
        slots: Mapping[str, OwnedSlot],
        settling: _Settling,
        done: Done,
    ) -> list[int]:
        """What is to be sent again. What may have been claimed anew counts as settled."""
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
            self._on_lost(slot.group)


def _claimed_anew(slot: OwnedSlot, settle: Settle) -> bool:
    """Whether, after a verdict of unknown outcome, the member may be in prepare by a newer claim of the same second."""
    return settle.token // 1000 in slot.suspect or slot.held.get(settle.member, 0) > 1
