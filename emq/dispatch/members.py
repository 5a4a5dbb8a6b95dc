"""Settling the members of slots: acknowledgements in batches, and verdicts whose answers may get lost."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from emq import errors
from emq.message import Message
from emq.owned import OwnedGroup
from emq.owned_slot import OwnedSlot
from emq.slots import Settle, SortedStore, Verdict

log = logging.getLogger(__name__)

BATCH = 2_000
UNREACHABLE_S = 1.0
CLAIMING_S = 0.01


class _Settling:
    """Marks slots while a call that settles members of theirs is under way, and in doubt once its answer was lost."""

    def __init__(self, slots_: Iterable[OwnedSlot]) -> None:
        self._slots = set(slots_)
        self.in_doubt = False

    def __enter__(self) -> _Settling:
        for slot in self._slots:
            slot.settling += 1
        return self

    def lost(self) -> None:
        """The call's answer was lost: it may have been carried out."""
        if not self.in_doubt:
            self.in_doubt = True
            for slot in self._slots:
                slot.unsure += 1

    def claiming(self) -> bool:
        return any(slot.claiming for slot in self._slots)

    def __exit__(self, *exc_info: object) -> None:
        for slot in self._slots:
            slot.settling -= 1
            slot.unsure -= self.in_doubt


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

        Runs twice at once, so that the server removes one batch while this process gathers the next.
        """
        while True:
            await self._something.wait()
            batch: list[tuple[OwnedSlot, list[tuple[bytes, int]]]] = []
            members = 0
            while self._done and members < BATCH:
                slot = self._done.popleft()
                batch.append((slot, slot.done))
                members += len(slot.done)
                slot.done = []
            if not self._done:
                self._something.clear()
            if not batch:
                continue  # the other loop was quicker
            verdict = Verdict.ACK
            settles = [
                Settle(slot.slot, member, verdict, token, slot.group.epoch)
                for slot, done in batch
                for member, token in done
            ]
            answers = iter(await self.settle(settles, [slot for slot, _ in batch]))
            for slot, done in batch:
                slot.let_go([member for member, _ in done])
                of_slot = list(itertools.islice(answers, len(done)))
                if not all(answer is True for answer in of_slot):
                    self._refused(slot, of_slot)
                self._on_acknowledged(slot.group, len(done))

    async def settle(self, settles: Sequence[Settle], owned: Sequence[OwnedSlot]) -> Sequence[bool | errors.NotOwner]:
        """Settle members of the slots `owned`, however often the store has to be asked; answers as it does.

        A call whose answer was lost may have been carried out. Then a member may have been added and claimed anew,
        under the same token if that was in the same second, and a repeated verdict would hit that claim. So nothing is
        claimed from the slots concerned before the repeat (`OwnedSlot.unsure`), claims under way are awaited, and what
        may have been claimed anew is left out: if the host holds it twice, the verdict was carried out; if the answer
        of a claim was lost as well, the slot is recovered, and what is still in prepare is delivered again.
        """
        if not settles:
            return ()
        with _Settling(owned) as settling:
            while True:
                try:
                    return await self._store.settle(settles)
                except (errors.StoreUnavailable, errors.StoreFull) as exc:
                    await self._wait(exc, len(settles), settling)
                if settling.in_doubt:
                    return await self._settle_rest(settles, {slot.slot.name: slot for slot in owned}, settling)

    async def _settle_rest(
        self, settles: Sequence[Settle], owned: Mapping[str, OwnedSlot], settling: _Settling
    ) -> Sequence[bool | errors.NotOwner]:
        """Repeat a call whose answer was lost, without what may have been claimed anew."""
        answers: list[bool | errors.NotOwner] = [True] * len(settles)
        while todo := [i for i, s in enumerate(settles) if not _claimed_anew(owned[s.slot.name], s)]:
            try:
                found = await self._store.settle([settles[i] for i in todo])
            except (errors.StoreUnavailable, errors.StoreFull) as exc:
                await self._wait(exc, len(todo), settling)
                continue
            for i, answer in zip(todo, found, strict=True):
                answers[i] = answer
            break
        return answers

    async def _wait(self, exc: errors.EMQError, members: int, settling: _Settling) -> None:
        if isinstance(exc, errors.OutcomeUnknown):
            settling.lost()
        log.warning("%s; %d messages wait to be settled", exc, members)
        await asyncio.sleep(UNREACHABLE_S)
        while settling.claiming():  # noqa: ASYNC110
            await asyncio.sleep(CLAIMING_S)

    def _refused(self, slot: OwnedSlot, answers: list[bool | errors.NotOwner]) -> None:
        self.void += sum(answer is False for answer in answers)
        if refused := sum(isinstance(answer, errors.NotOwner) for answer in answers):
            self.refused += refused
            self._on_lost(slot.group)


def _claimed_anew(slot: OwnedSlot, settle: Settle) -> bool:
    """Whether, after a verdict of unknown outcome, the member may be in prepare by a newer claim of the same second."""
    return settle.token // 1000 in slot.suspect or slot.held.get(settle.member, 0) > 1
