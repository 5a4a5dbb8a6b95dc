"""What goes back into a slot: members that cannot start, members sent again meanwhile, members that no host has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from emq.fetcher.slot_members import give_back
from emq.groups.context import HostContext
from emq.groups.owned import OwnedSlot
from emq.runtime import errors
from emq.runtime.troubles import Troubles
from emq.storage.answers import FAILURES, Failure, of_each
from emq.storage.slot_store import Recover, SlotVerdict, SortedStore


class SlotReturns:
    """Gives claimed members back to their slots, so that the next claim may take them.

    Attributes:
        troubles: the slots that the store could not serve.
    """

    def __init__(self, store: SortedStore, context: HostContext) -> None:
        self._clock, self._events, self._store = context.clock, context.events, store
        self.troubles = Troubles("what lies there waits")
        self._under_way: dict[OwnedSlot, asyncio.Future[None]] = {}

    def rest(self, slot: OwnedSlot, failure: Failure) -> None:
        """Leave the slot alone for a while, because the store could not serve it; longer each time."""
        if not slot.group.stopping:
            slot.retry_ms = int((self._clock.now() + self.troubles.failed(slot.address, failure)) * 1000) + 1

    async def give_back(self, slots: Sequence[OwnedSlot]) -> list[Failure]:
        """Give back members that cannot start now; return a failure for each that the store could not take.

        Until they are back, nothing is claimed from these slots. Of each slot, one call at a time gives members back: a
        second verdict on a member could act on the next claim of the same second, which has the same token.
        """
        while under_way := {self._under_way[slot] for slot in slots if slot in self._under_way}:
            await asyncio.wait(under_way)
        ended = asyncio.get_running_loop().create_future()
        self._under_way.update(dict.fromkeys(slots, ended))
        try:
            return await self._give_back(slots)
        finally:
            for slot in slots:
                del self._under_way[slot]
            ended.set_result(None)

    async def _give_back(self, slots: Sequence[OwnedSlot]) -> list[Failure]:
        # While the call is under way, `slot.returning` may grow.
        given = [(slot, [m for m in slot.returning if m.member is not None]) for slot in slots]
        settles = [give_back(slot, m.member or b"", m.token, m.score) for slot, mine in given for m in mine]
        answered = await of_each(self._store.settle(settles), len(settles)) if settles else ()
        start = 0
        for slot, mine in given:
            answers = answered[start : start + len(mine)]
            start += len(mine)
            gone = {id(m): m.member or b"" for m, a in zip(mine, answers, strict=True) if not isinstance(a, FAILURES)}
            # Members that the store could not take stay in `returning`; nothing else happens to them until it can.
            slot.returning = [m for m in slot.returning if id(m) not in gone]
            slot.let_go(list(gone.values()))
            slot.next_ms = 0
            if any(isinstance(answer, errors.NotOwner) for answer in answers):
                self._events.lost(slot.group)
            elif failures := [answer for answer in answers if isinstance(answer, FAILURES)]:
                self.rest(slot, failures[0])
        return [answer for answer in answered if isinstance(answer, FAILURES)]

    async def ask(self, slots: Sequence[OwnedSlot]) -> None:
        """Ask the store about members that waited for keys that run no more; let the next member of each key start.

        A member that was published again meanwhile merges in the store. Then all members that wait for its key go back,
        so that the store decides again which is the first.
        """
        waiting = [(slot, key, m) for slot in slots for key in slot.freed for m in slot.group.blocked.get((0, key), ())]
        asked = [(slot, key, m, m.member) for slot, key, m in waiting if m.member is not None]
        settles = [give_back(slot, member, m.token, m.score, SlotVerdict.YIELD) for slot, _, m, member in asked]
        answers = await of_each(self._store.settle(settles), len(settles)) if settles else ()
        gone: set[int] = set()
        back: set[tuple[str, str]] = set()
        for (slot, key, m, _), answer in zip(asked, answers, strict=True):
            if answer is not False:  # also one of which it is not known
                back.add((slot.address, key))
            if answer is True:
                gone.add(id(m))
        for slot in slots:
            group, freed = slot.group, list(slot.freed)
            slot.freed.clear()
            if group.lost or group.stopping:
                continue
            slot.next_ms = 0
            try:
                for key in freed:
                    if (slot.address, key) in back or group.owner.handler is None:
                        taken = group.take_blocked(key)
                        slot.let_go([m.member for m in taken if m.member and id(m) in gone])
                        slot.returning += [m for m in taken if id(m) not in gone]
                    group.release_key(key)
                if group.buffered:
                    self._events.ready(group)
            except Exception as exc:  # else the messages of the keys that are left would wait for ever
                self._events.broken("slots", group, exc)

    async def recover(
        self, slots: Sequence[OwnedSlot], now_ms: int, older_than_ms: int | None = None, *, lost: bool = False
    ) -> None:
        """Roll back members that are not on this host and were claimed before `older_than_ms`, or `lost`.

        If that fails for a slot, the slot stays suspect.
        """
        why = "its consumer timed out"
        asked = [Recover(s.slot, s.group.epoch, older_than_ms, list(s.held), why, lost) for s in slots]
        answers = await of_each(self._store.recover(asked, now_ms), len(asked))
        for slot, answer in zip(slots, answers, strict=True):
            if isinstance(answer, FAILURES):
                if older_than_ms is None:  # else the next sweep tries again
                    self.rest(slot, answer)
                continue
            if lost:
                slot.suspect.clear()
            if isinstance(answer, errors.NotOwner):
                self._events.lost(slot.group)
