"""The slot loops: bring messages of sorted topics into their buffers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from emq.fetcher.due_times import DueTimes
from emq.fetcher.slot_looks import LOOK_MESSAGES, SlotLooks, room
from emq.fetcher.slot_members import decoded
from emq.fetcher.slot_returns import SlotReturns
from emq.fetcher.slot_sweep import SlotSweep
from emq.groups.capacity import MAX_BUFFER
from emq.groups.claims import Claims
from emq.groups.context import HostContext
from emq.groups.owned import OwnedGroup, OwnedSlot, OwnedTopic
from emq.runtime import errors
from emq.runtime.aside import Asides, Call
from emq.storage import message
from emq.storage.answers import FAILURES, Failure, of_each
from emq.storage.slot_store import SlotClaim, SlotClaimed, SortedStore

CLAIM_SLOTS = 200
CLAIM_MESSAGES = 2_000
CLAIM_BYTES = 4 << 20
"""Most slots, messages and bytes of one claim, which then takes the server and this loop only a few milliseconds."""

FIRST_CLAIM = 16
"""Most messages in the first claim of a slot, before the size of its messages is known."""

OVERHEAD_BYTES = 64


class _Wanted(NamedTuple):
    """Attributes:
    limit: number of members to claim from the slot.
    startable: number of them that may start; the claimer only checks the others for expiry.
    """

    slot: OwnedSlot
    limit: int
    startable: int


class SlotClaimer(Claims):
    """Claims due members from the slots of this host, many slots in one round trip.

    The host claims from a slot when it acquires the slot, when the next member is due, when the store wakes the slot
    (an earlier member came), and when more due members can start. An idle slot costs a look every few seconds, because
    other programs may add members without a wake-up. Two `claim` loops run, so that the server works on one claim while
    this process handles the other.

    The claimer claims only members that can start now (`room`): as many as the group's counter still grants and as have
    room in flight, and one by one if the group runs one by one. The reason: a member that waits in the store merges
    with a newer publish of the same content or merge key and takes its newer time or priority; a member on a host does
    neither. A claimed member that cannot start after all goes back (`stuck`), as if it had not been claimed. A member
    that waits for a running key stays on the host, because the host would claim it again and again; before it starts,
    the claimer asks the store whether the member was published again (`SlotReturns.ask`).

    The state of a slot tells when to look at the slot next: whatever changes the state calls `look`, and there is no
    other schedule (`SlotLooks.next_ms`).

    A failed member may rest in the store until its next attempt. A claim tells when the first rest is over; at that
    time `recover` ends the rest, and the next claim may take the member.

    Time to live: if messages may expire and more members are due than can start (also in a paused topic), the claimer
    claims the first `LOOK_MESSAGES` of the slot every `LOOK_S`. It dead-letters the expired ones and gives the
    others back at once.

    Attributes:
        sweep: looks at all slots in turn, since not every change comes with a wake-up.
        fetched: number of members claimed.
    """

    def __init__(self, store: SortedStore, context: HostContext) -> None:
        self._clock = context.clock
        self._events = context.events
        self._lease = context.lease
        self._store = store
        self._slots: dict[str, OwnedSlot] = {}
        self._due = DueTimes(context.clock)
        self._looks = SlotLooks()
        self._returns = SlotReturns(store, context)
        self.sweep = SlotSweep(store, self._slots, self._returns, context.clock)
        self._troubles = self._returns.troubles
        self._asides = Asides()
        self.fetched = 0

    @property
    def unreachable(self) -> str | None:
        """The reason why some slot cannot be claimed from now; None if all can."""
        return self._troubles.latest

    def acquire(self, slot: OwnedSlot) -> None:
        slot.tell = self.look
        self._slots[slot.address] = slot
        self.look(slot)

    def release(self, slot: OwnedSlot) -> None:
        if self._slots.get(slot.address) is slot:
            del self._slots[slot.address]
            self._due.forget(slot.address)
            self._troubles.well(slot.address)

    async def give_back(self, slots: Sequence[OwnedSlot]) -> list[Failure]:
        """Give back what was claimed from slots of groups that stop; return a failure for each member that is left."""
        return await self._returns.give_back(slots)

    def drained(self, slot: OwnedSlot) -> None:
        """Some of the slot's messages were taken: claim more if more are due and half of its buffer is free."""
        group = slot.group
        if slot.more and slot.buffered * 2 <= (slot.run if group.serial else group.capacity):
            slot.more = False
            if not group.busy:
                slot.run = 1 if slot.waited else min(2 * slot.run, group.capacity)
                slot.waited = False
            self.look(slot)

    def stuck(self, group: OwnedGroup, room: bool = False) -> None:
        """See `Claims`. Members that go back are claimed again once they can start."""
        slot = group.slot
        if slot is None or self._slots.get(slot.address) is not slot:
            return
        slot.waited |= group.busy
        members = group.take_members() if slot.buffered else []
        slot.returning += members
        if members:
            slot.more = not room
            if room:
                slot.wait_for_room()
            self.look(slot)  # the claim loop gives the members back

    def has_room(self, owner: OwnedTopic) -> None:
        """See `Claims`.

        While all messages in flight only wait for their acknowledgement, room soon comes in large steps. Then a slot
        waits until its claim may bring `worthwhile` messages.
        """
        worthwhile = 1 if owner.pace.running else min(MAX_BUFFER // 2, max(1, owner.limit // 8))
        for _ in range(min(len(owner.thirsty), max(0, owner.room() - owner.coming) // worthwhile)):
            slot = owner.thirsty.popleft()
            slot.thirsty = False
            self.look(slot)

    def look(self, slot: OwnedSlot) -> None:
        """The slot has changed: plan the next look at it."""
        if (at_ms := self._looks.next_ms(slot, self._clock.now())) < math.inf:
            self._due.at(slot.address, math.ceil(at_ms))

    def due(self, address: str, due_ms: int) -> None:
        """A member of the slot rests until `due_ms`; 0: members may be due that the store was not armed for."""
        if (slot := self._slots.get(address)) is not None:
            if due_ms:
                slot.rest_ms = min(slot.rest_ms, due_ms)
            else:
                slot.next_ms = slot.retry_ms = 0
            self.look(slot)

    async def claim(self) -> None:
        """Claim due members; without any, wait for the next due time. Ends by cancellation."""
        await self._asides.run(self._claims)

    async def _claims(self) -> list[Call]:
        await self._lease.valid(self._clock)
        taken = self._take()
        try:
            parts = self._troubles.apart(taken, lambda w: w.slot.address)
        except BaseException:
            self._leave(taken)
            raise
        if not taken:
            await self._due.wait()
        return [partial(self._claim_all, part) for part in parts]

    def _take(self) -> list[_Wanted]:
        """Return due slots with the number of members to claim, about `CLAIM_MESSAGES` and `CLAIM_BYTES` in all.

        Only one claim at a time takes from a slot. The sizes of a slot's last messages serve as estimates.
        """
        taken: list[_Wanted] = []
        messages, left_bytes, now = 0, float(CLAIM_BYTES), self._clock.now()
        for address in self._due.pop(int(now * 1000), CLAIM_SLOTS):
            slot = self._slots[address]
            try:
                if at_ms := self._looks.next_ms(slot, now):
                    if at_ms < math.inf:
                        self._due.at(address, math.ceil(at_ms))
                elif messages >= CLAIM_MESSAGES or left_bytes <= 0:
                    self._due.at(address, 0)
                else:
                    taken.append(wanted := self._wanted(slot, now, left_bytes))
                    expected = min(wanted.limit, slot.expected)
                    messages += expected
                    left_bytes -= expected * slot.size
            except Exception as exc:  # a bug at one slot must not lose the slots that were taken before it
                self._events.broken("slots", slot.group, exc)
        return taken

    def _wanted(self, slot: OwnedSlot, now: float, left_bytes: float) -> _Wanted:
        """Return how many members to claim from a slot, whose claim begins."""
        if slot.returning or slot.freed:
            slot.claiming = True
            return _Wanted(slot, 0, 0)
        limit = startable = room(slot, now)
        if 0 < slot.look_ms <= now * 1000:
            limit = max(startable, LOOK_MESSAGES)
        limit = min(limit, max(1, int(left_bytes / slot.size)) if slot.size else FIRST_CLAIM)
        startable = min(startable, limit)
        slot.claiming, slot.more = True, False
        slot.group.owner.coming += startable
        return _Wanted(slot, limit, startable)

    async def _claim_all(self, taken: Sequence[_Wanted]) -> None:
        now_s = int(self._clock.now())
        try:
            returning = [wanted.slot for wanted in taken if wanted.slot.returning]
            if asking := [wanted.slot for wanted in taken if wanted.slot.freed]:
                await self._returns.ask(asking)
            if returning:
                await self._returns.give_back(returning)
            await self._claim([w for w in taken if w.slot not in returning and w.slot not in asking])
        except BaseException:  # as if the answers were lost
            for slot, _, _ in taken:
                for second in range(now_s, int(self._clock.now()) + 1):
                    slot.lost_claim(second)
            raise
        finally:
            self._leave(taken)

    def _leave(self, taken: Sequence[_Wanted]) -> None:
        """Note that the claims from these slots are over, and plan the next looks."""
        for slot, _, startable in taken:
            slot.group.owner.coming -= startable
            slot.claiming = False
        for slot, _, _ in taken:
            try:
                self.look(slot)
            except Exception as exc:  # a bug at one slot must not keep the others from being claimed
                self._events.broken("slots", slot.group, exc)

    async def _claim(self, taken: Sequence[_Wanted]) -> None:
        now_ms = int(self._clock.now() * 1000)
        if suspects := [wanted.slot for wanted in taken if wanted.slot.suspect]:
            await self._returns.recover(suspects, now_ms, lost=True)
            taken = [wanted for wanted in taken if not wanted.slot.suspect]
        if rested := [wanted.slot for wanted in taken if wanted.slot.rest_ms <= now_ms]:
            await self._returns.recover(rested, now_ms)
        for slot, _, _ in taken:
            slot.next_ms = slot.rest_ms = math.inf  # what is told from now on may be later than the answer
        claims = [SlotClaim(s.slot, limit, s.group.epoch, s.until_ms(now_ms)) for s, limit, _ in taken]
        answers = await of_each(self._store.claim(claims, now_ms, CLAIM_BYTES), len(claims)) if claims else ()
        late: list[OwnedSlot] = []
        for wanted, answer in zip(taken, answers, strict=True):
            slot = wanted.slot
            if isinstance(answer, errors.NotOwner):
                self._events.lost(slot.group)
            elif isinstance(answer, FAILURES):
                slot.lost_claim(now_ms // 1000)
                self._returns.rest(slot, answer)
            elif not slot.group.stopping:
                slot.known = True
                try:
                    self._buffer(wanted, answer)
                except Exception as exc:  # a failure of one slot must not stop the others
                    self._events.broken("slots", slot.group, exc)
            else:
                slot.hold([entry.member for entry in answer.entries])
                slot.returning += decoded(slot, answer, self._clock.now_us())
                late.append(slot)
        if late:
            await self._returns.give_back(late)

    def _buffer(self, wanted: _Wanted, claimed: SlotClaimed) -> None:
        slot, entries, group = wanted.slot, claimed.entries, wanted.slot.group
        self._troubles.well(slot.address)
        slot.retry_ms, slot.expected = 0, max(1, 2 * len(entries))
        slot.note_times(claimed.next_score, claimed.rest_ms)
        if entries:
            messages = decoded(slot, claimed, self._clock.now_us())
            for m in messages if slot.settling or slot.unsure else ():
                if m.member in slot.held:
                    self._events.claimed(group, m.uid)
            slot.hold([entry.member for entry in entries])
            self.fetched += len(entries)
            slot.size = sum([m.size for m in messages]) / len(messages) + OVERHEAD_BYTES
            if slot.slot.apart:
                messages = self._sound(slot, messages)
            if wanted.limit > wanted.startable:
                messages = self._looked_at(wanted, messages)
            if messages:
                slot.buffered += len(messages)
                group.push(0, messages)
                self._events.ready(group)

    def _sound(self, slot: OwnedSlot, messages: list[message.Message]) -> list[message.Message]:
        """Dead-letter messages whose stored records are damaged, with the bytes that are there; return the others."""
        sound = []
        for m in messages:
            if why := message.damage_of_member(m):
                self._events.damaged(slot.group, m, why)
            else:
                sound.append(m)
        return sound

    def _looked_at(self, wanted: _Wanted, messages: list[message.Message]) -> list[message.Message]:
        """Dead-letter expired messages, return the messages that can start now, and give the others back."""
        slot, now_us = wanted.slot, self._clock.now_us()
        alive = []
        for m in messages:
            if 0 < m.expires_us <= now_us:
                self._events.unstarted(slot.group, m)
            else:
                alive.append(m)
        slot.look_ms = 0
        slot.returning += alive[wanted.startable :]
        return alive[: wanted.startable]
