"""The slot loops: bring messages of sorted topics into their buffers, and find messages that came without a wake-up."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from emq import errors, message, plurals
from emq.fetcher.due_times import DueTimes
from emq.fetcher.slot_members import decoded, give_back
from emq.groups.capacity import MAX_BUFFER
from emq.groups.context import HostContext
from emq.groups.owned import Claims, OwnedGroup, OwnedSlot, OwnedTopic
from emq.loops import pace
from emq.loops.aside import Asides, Call
from emq.loops.troubles import Troubles
from emq.storage.answers import FAILURES, Failure, of_each
from emq.storage.slot_store import (
    Recover,
    SlotClaim,
    SlotClaimed,
    SlotSettle,
    SlotVerdict,
    SortedStore,
)

log = logging.getLogger(__name__)

CLAIM_SLOTS = 200
CLAIM_MESSAGES = 2_000
CLAIM_BYTES = 4 << 20
"""Most slots, messages and bytes of one claim, so that a claim holds up neither the server nor this loop for more than
a few milliseconds."""

FIRST_CLAIM = 16
"""Most messages in the first claim of a slot, before the size of its messages is known."""

SWEEP_S = 5.0
"""Seconds in which every slot is inspected once for changes without a wake-up: members that foreign producers added,
and claims of lost consumers."""
SWEEP_SLOTS = 500
"""Most slots inspected in one call. A sweep of many slots takes several steps within `SWEEP_S`."""

OVERHEAD_BYTES = 64

LOOK_S = 1.0
"""Seconds within which an expired message is found while it waits behind others; see `SlotClaimer`."""
LOOK_MESSAGES = 500
"""Most members that a look for expired members claims from a slot, unless more can start."""
LOOKED_AT_PER_S = 5_000
"""Most members in a second that a host looks at for expiry. If many slots have a backlog, each has its turn less
often."""

HELD_BACK_S = 0.05
"""Seconds until the loop looks again at a slot whose topic has used up its share of the host's memory."""

UNSURE_S = 0.05
"""Seconds until the loop looks again at a slot from which nothing may be claimed because verdicts on its members are
in doubt."""


OTHERS_CLAIM_S = 0.005
"""Seconds until the loop looks again at a slot while claims from other slots of its topic may use up the quota."""


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

    A slot is claimed from when it is acquired, when its next member is due, when the store wakes it (a member came
    before the time with which the slot was armed), and when more due members can start. An idle slot costs a look every
    few seconds, because other programs may add members without a wake-up. `claim` runs twice at once, so that the
    server works on one claim while this process works off the other.

    The claimer claims only members that can start now (`room`): as many as the group's counter still grants and as have
    room in flight, and one by one if the group runs one by one. The reason: a member that waits in the store merges
    with a newer publish of the same content or merge key and takes its newer time or priority; a member on a host does
    neither. A claimed member that cannot start after all goes back (`stuck`), as if it had not been claimed. A member
    that waits for a running key stays on the host, because the host would claim it again and again; before it starts,
    the claimer asks the store whether the member was published again (`_ask`).

    A failed member may rest in the store until its next attempt. A claim tells when the first rest is over; at that
    time `recover` ends the rest, and the next claim may take the member.

    Time to live: while more members are due than can start, also of a paused topic, the claimer claims the first
    `LOOK_MESSAGES` of a slot once in `LOOK_S` if messages may expire. It dead-letters the expired ones and gives the
    others back at once.
    """

    def __init__(
        self,
        store: SortedStore,
        context: HostContext,
    ) -> None:
        self._clock = context.clock
        self._events = context.events
        self._lease = context.lease
        self._store = store
        self._slots: dict[str, OwnedSlot] = {}
        self._due = DueTimes(context.clock)
        self._troubles = Troubles("what lies there waits")
        self._asides = Asides()
        self._looks_s = 0.0
        self.fetched = 0

    @property
    def unreachable(self) -> str | None:
        """The reason why some slot cannot be claimed from now; None if all can."""
        return self._troubles.latest

    def acquire(self, slot: OwnedSlot) -> None:
        slot.claims = self
        self._slots[slot.address] = slot
        self._due.at(slot.address, 0)

    def release(self, slot: OwnedSlot) -> None:
        if self._slots.get(slot.address) is slot:
            del self._slots[slot.address]
            self._due.forget(slot.address)
            self._troubles.well(slot.address)

    def drained(self, slot: OwnedSlot) -> None:
        """Some of the slot's messages were taken: claim more if more are due and half of its buffer is free."""
        group = slot.group
        if slot.more and slot.buffered * 2 <= (slot.run if group.serial else group.capacity):
            slot.more = False
            if not group.busy:
                slot.run = 1 if slot.waited else min(2 * slot.run, group.capacity)
                slot.waited = False
            self._again(slot)

    def stuck(self, group: OwnedGroup, room: bool = False) -> None:
        """See `Claims`. Members that go back are claimed again once they can start."""
        slot = group.slot
        if slot is None or self._slots.get(slot.address) is not slot:
            return
        slot.waited |= group.busy
        members = group.take_members() if slot.buffered else []
        slot.returning += members
        if members:
            slot.more = False
            if room:
                self._wait_for_room(slot)
            self._at(slot, 0)  # the claim loop gives the members back
            if not room:
                slot.more = True

    def has_room(self, owner: OwnedTopic) -> None:
        """See `Claims`.

        While no handler runs and all messages in flight wait for their acknowledgement, room soon comes in large steps.
        Then a slot waits until its claim may bring `worthwhile` messages.
        """
        worthwhile = 1 if owner.pace.running else min(MAX_BUFFER // 2, max(1, owner.limit // 8))
        for _ in range(min(len(owner.thirsty), max(0, owner.room() - owner.coming) // worthwhile)):
            slot = owner.thirsty.popleft()
            slot.thirsty = False
            self._at(slot, 0)

    def freed(self, slot: OwnedSlot) -> None:
        """See `Claims`."""
        self._at(slot, 0)

    def due(self, address: str, due_ms: int) -> None:
        """A member of the slot rests until `due_ms`; 0: members may be due that the store was not armed for."""
        if (slot := self._slots.get(address)) is not None:
            slot.rest_ms = min(slot.rest_ms or due_ms, due_ms or slot.rest_ms)
            self._due.at(address, due_ms)

    async def claim(self) -> None:
        """Claim due members; without any, wait for the next due time. Ends by cancellation."""
        await self._asides.run(self._claims)

    async def _claims(self) -> list[Call]:
        await self._lease.valid(self._clock)
        taken = self._take()
        if not taken:
            await self._due.wait()
        return [partial(self._claim_all, part) for part in self._troubles.apart(taken, lambda w: w.slot.address)]

    async def sweep(self) -> None:
        """Inspect all slots once in `SWEEP_S`, a part of them in each step. Ends by cancellation."""
        while True:
            slots = list(self._slots.values())
            steps = max(1, -(-len(slots) // SWEEP_SLOTS), math.ceil(SWEEP_S) - 1)
            size = -(-len(slots) // steps)
            begin = self._clock.now()
            for step in range(steps):
                part = [s for s in slots[step * size : (step + 1) * size] if self._slots.get(s.address) is s]
                if part:
                    await self._look_at(part)
                following = begin + (step + 1) * (SWEEP_S - 0.5) / steps
                await pace.rest(max(0.05, following - self._clock.now()))

    def _at(self, slot: OwnedSlot, due_ms: int) -> None:
        if self._slots.get(slot.address) is slot:
            self._due.at(slot.address, due_ms)

    def _again(self, slot: OwnedSlot) -> None:
        """More members of the slot are due: claim them as soon as they can start."""
        group, owner, now = slot.group, slot.group.owner, self._clock.now()
        if group.stopping:
            return
        if room(slot, now) > 0:
            self._at(slot, 0)
            return
        self._plan_look(slot, now)
        if owner.handler is None or slot.thirsty:
            return  # the slots of a resumed topic are looked at again
        if slot.buffered or group.busy:
            slot.more = True
        elif owner.room() <= owner.coming:
            self._wait_for_room(slot)
        elif group.memory_room(now) <= 0:
            self._at(slot, int((now + HELD_BACK_S) * 1000))
        elif group.counter.available(now) > 0:  # for the claims under way, which may find less
            self._at(slot, int((now + OTHERS_CLAIM_S) * 1000))
        elif (next_at := group.counter.next_at(now)) < math.inf:
            self._at(slot, math.ceil(next_at * 1000))
        else:
            slot.more = True

    def _plan_look(self, slot: OwnedSlot, now: float) -> None:
        """Plan a look for expired members behind members that cannot start yet, if messages of the topic may expire."""
        if slot.group.owner.topic.may_expire:
            if not slot.look_ms:
                self._looks_s = max(self._looks_s + LOOK_MESSAGES / LOOKED_AT_PER_S, now + LOOK_S)
                slot.look_ms = int(self._looks_s * 1000)
            self._at(slot, slot.look_ms)

    def _wait_for_room(self, slot: OwnedSlot) -> None:
        if not slot.thirsty:
            slot.thirsty = True
            slot.group.owner.thirsty.append(slot)
            slot.group.owner.note_waiting()

    # --------------------------------------------------------------------------------------------------------- claiming

    def _take(self) -> list[_Wanted]:
        """Return due slots with how many members to claim, together about `CLAIM_MESSAGES` and `CLAIM_BYTES`.

        Only one claim at a time takes from a slot. The sizes of a slot's last messages serve as estimates.
        """
        taken: list[_Wanted] = []
        messages, left_bytes, now = 0, float(CLAIM_BYTES), self._clock.now()
        for address in self._due.pop(int(now * 1000), CLAIM_SLOTS):
            slot = self._slots[address]
            if slot.group.stopping:
                continue
            if slot.claiming:
                slot.again = True
            elif slot.unsure or (slot.suspect and slot.settling):
                self._due.at(address, int((now + UNSURE_S) * 1000))
            elif messages >= CLAIM_MESSAGES or left_bytes <= 0:
                self._due.at(address, 0)
            elif slot.returning or slot.freed:
                slot.claiming = True
                taken.append(_Wanted(slot, 0, 0))
            elif (startable := room(slot, now)) <= 0 and slot.known and not _look_is_due(slot, now):
                self._again(slot)
            else:
                slot.claiming, slot.more = True, False
                limit = max(startable, LOOK_MESSAGES) if _look_is_due(slot, now) else startable
                limit = min(limit, max(1, int(left_bytes / slot.size)) if slot.size else FIRST_CLAIM)
                startable = min(startable, limit)
                slot.group.owner.coming += startable
                taken.append(_Wanted(slot, limit, startable))
                expected = min(limit, slot.expected)
                messages += expected
                left_bytes -= expected * slot.size
        return taken

    async def _claim_all(self, taken: Sequence[_Wanted]) -> None:
        try:
            returning = [wanted.slot for wanted in taken if wanted.slot.returning]
            if asking := [wanted.slot for wanted in taken if wanted.slot.freed]:
                await self._ask(asking)
            if returning:
                await self._return(returning)
            await self._claim([w for w in taken if w.slot not in returning and w.slot not in asking])
        except BaseException:  # as if the answers were lost
            for slot, _, _ in taken:
                slot.suspect.add(int(self._clock.now()))
                self._at(slot, 0)
            raise
        finally:
            for slot, _, startable in taken:
                slot.group.owner.coming -= startable
                self._claimed(slot)

    async def _claim(self, taken: Sequence[_Wanted]) -> None:
        now_ms = int(self._clock.now() * 1000)
        if suspects := [wanted.slot for wanted in taken if wanted.slot.suspect]:
            await self._recover(suspects, now_ms, None, lost=True)
            taken = [wanted for wanted in taken if not wanted.slot.suspect]
        if rested := [wanted.slot for wanted in taken if 0 < wanted.slot.rest_ms <= now_ms]:
            await self._recover(rested, now_ms, None)
        claims = [SlotClaim(s.slot, limit, s.group.epoch, s.until_ms(now_ms)) for s, limit, _ in taken]
        answers = await of_each(self._store.claim(claims, now_ms, CLAIM_BYTES), len(claims)) if claims else ()
        late: list[SlotSettle] = []
        for wanted, answer in zip(taken, answers, strict=True):
            slot = wanted.slot
            if isinstance(answer, errors.NotOwner):
                self._events.lost(slot.group)
            elif isinstance(answer, FAILURES):
                self._failed(slot, answer, now_ms)
            elif not slot.group.stopping and self._slots.get(slot.address) is slot:
                slot.known = True
                try:
                    self._buffer(wanted, answer, now_ms)
                except Exception as exc:  # a failure of one slot must not stop the others
                    self._events.broken("slots", slot.group, exc)
            else:
                late += [give_back(slot, e.member, e.token, e.score) for e in answer.entries]
        if late:
            with contextlib.suppress(errors.StoreUnavailable, errors.StoreFull):  # the next owner rolls them back
                await self._store.settle(late)

    def _claimed(self, slot: OwnedSlot) -> None:
        slot.claiming = False
        if slot.again:
            slot.again = False
            self._at(slot, 0)

    def _failed(self, slot: OwnedSlot, failure: Failure, now_ms: int) -> None:
        slot.suspect.add(now_ms // 1000)  # the members of a lost answer are in prepare, but no host has them
        self._rest(slot, failure)

    def _rest(self, slot: OwnedSlot, failure: Failure) -> None:
        if self._slots.get(slot.address) is slot:
            rest_s = self._troubles.failed(slot.address, failure)
            self._at(slot, int((self._clock.now() + rest_s) * 1000) + 1)

    def _buffer(self, wanted: _Wanted, claimed: SlotClaimed, now_ms: int) -> None:
        slot, entries, group = wanted.slot, claimed.entries, wanted.slot.group
        self._troubles.well(slot.address)
        slot.expected = max(1, 2 * len(entries))
        slot.rest_ms = claimed.rest_ms or 0
        if slot.rest_ms:
            self._at(slot, slot.rest_ms)
        if entries:
            messages = decoded(slot, claimed, self._clock.now_us())
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
                if group.expires_us:
                    self._events.expiring(group)
                self._events.ready(group)
        due_ms = slot.due_ms(claimed.next_score)
        if due_ms is None:
            return
        if due_ms > now_ms:
            self._at(slot, due_ms)
        else:
            self._again(slot)

    def _sound(self, slot: OwnedSlot, messages: list[message.Message]) -> list[message.Message]:
        """Dead-letter messages whose stored records are damaged, with the bytes that are there; return the others."""
        sound, damaged = [], []
        for m in messages:
            if why := message.damage_of_member(m):
                damaged.append((m, why))
            else:
                sound.append(m)
        if not damaged:
            return sound
        log.error(
            "%s of slot %s, such as %r: %s; each is a dead letter now, see emq dead",
            plurals.count(len(damaged), "member"),
            slot.group.name,
            damaged[0][0].member,
            damaged[0][1],
        )
        for m, why in damaged:
            self._events.damaged(slot.group, m, why)
        return sound

    def _looked_at(self, wanted: _Wanted, messages: list[message.Message]) -> list[message.Message]:
        """Dead-letter expired messages, return the messages that can start now, and give the others back."""
        slot, now_us = wanted.slot, self._clock.now_us()
        alive = []
        for m in messages:
            if 0 < m.expires_us <= now_us:
                self._events.expired(slot.group, m)
            else:
                alive.append(m)
        slot.look_ms = 0
        if slot.returning or len(alive) > wanted.startable:
            slot.returning += alive[wanted.startable :]
            self._at(slot, 0)
        return alive[: wanted.startable]

    async def _return(self, slots: Sequence[OwnedSlot]) -> None:
        """Give back members that cannot start now. Until they are back, nothing is claimed from these slots."""
        # While the call is under way, `slot.returning` may grow.
        given = [(slot, m, m.member) for slot in slots for m in slot.returning if m.member is not None]
        settles = [give_back(slot, member, m.token, m.score) for slot, m, member in given]
        answers = list(zip(given, await of_each(self._store.settle(settles), len(settles)), strict=True))
        for slot in slots:
            mine = [answer for (of, _, _), answer in answers if of is slot]
            gone = {id(m): member for (of, m, member), a in answers if of is slot and not isinstance(a, FAILURES)}
            # Members that the store could not take stay in `returning`; nothing else happens to them until it can.
            slot.returning = [m for m in slot.returning if id(m) not in gone]
            slot.let_go(list(gone.values()))
            if any(isinstance(answer, errors.NotOwner) for answer in mine):
                self._events.lost(slot.group)
            elif failures := [answer for answer in mine if isinstance(answer, FAILURES)]:
                self._rest(slot, failures[0])
            else:
                self._again(slot)

    async def _ask(self, slots: Sequence[OwnedSlot]) -> None:
        """Ask the store about members that waited for keys that run no more; let the next member of each key start.

        A member that was published again meanwhile merges in the store. Then all members that wait for its key go back,
        so that the store decides again which is the first.
        """
        asked = [(slot, key, m) for slot in slots for key in slot.freed for m in slot.group.blocked.get((0, key), ())]
        asked = [(slot, key, m) for slot, key, m in asked if m.member is not None]
        settles = [
            give_back(slot, m.member, m.token, m.score, SlotVerdict.YIELD)
            for slot, _, m in asked
            if m.member is not None
        ]
        answers = await of_each(self._store.settle(settles), len(settles)) if settles else ()
        gone: set[int] = set()
        back: set[tuple[str, str]] = set()
        for (slot, key, m), answer in zip(asked, answers, strict=True):
            if answer is not False:  # also one of which it is not known
                back.add((slot.address, key))
            if answer is True:
                gone.add(id(m))
        for slot in slots:
            group, freed = slot.group, list(slot.freed)
            slot.freed.clear()
            if group.lost or self._slots.get(slot.address) is not slot:
                continue
            for key in freed:
                if (slot.address, key) in back or group.owner.handler is None:
                    taken = group.take_blocked(key)
                    slot.let_go([m.member for m in taken if m.member and id(m) in gone])
                    slot.returning += [m for m in taken if id(m) not in gone]
                group.release_key(key)
            if group.buffered:
                self._events.ready(group)
            if slot.returning:
                self._at(slot, 0)
            else:
                self._again(slot)

    # --------------------------------------------------------------------------------------------------------- sweeping

    async def _look_at(self, slots: Sequence[OwnedSlot]) -> None:
        now_ms = int(self._clock.now() * 1000)
        states = await of_each(self._store.inspect([slot.slot for slot in slots], now_ms), len(slots))
        lost = []
        for slot, state in zip(slots, states, strict=True):
            if isinstance(state, FAILURES):
                continue  # the next round looks at the slot again
            due_ms = slot.due_ms(state.next_score)
            if due_ms is not None and not slot.more:
                if due_ms > now_ms:
                    self._at(slot, due_ms)
                else:
                    self._again(slot)
            timeout_ms = int(slot.group.owner.topic.options.prepare_timeout_s * 1000)
            if state.oldest_prepared_ms is not None and state.oldest_prepared_ms < now_ms - timeout_ms:
                lost.append((slot, timeout_ms))
        for slot, timeout_ms in lost:
            await self._recover([slot], now_ms, now_ms - timeout_ms)

    async def _recover(
        self, slots: Sequence[OwnedSlot], now_ms: int, older_than_ms: int | None, lost: bool = False
    ) -> None:
        """Roll back members that are not on this host and were claimed before `older_than_ms`, or `lost`.

        If that fails for a slot, the slot stays suspect.
        """
        why = "its consumer timed out"
        asked = [Recover(s.slot, s.group.epoch, older_than_ms, list(s.held), why, lost) for s in slots]
        answers = await of_each(self._store.recover(asked, now_ms), len(asked))
        for slot, answer in zip(slots, answers, strict=True):
            if isinstance(answer, FAILURES):
                if slot.suspect or slot.rest_ms:
                    self._rest(slot, answer)
                continue
            if lost:
                slot.suspect.clear()
            if isinstance(answer, errors.NotOwner):
                self._events.lost(slot.group)


def _look_is_due(slot: OwnedSlot, now: float) -> bool:
    return 0 < slot.look_ms <= now * 1000


def room(slot: OwnedSlot, now: float) -> int:
    """Return how many messages of the slot can start now; 0 while its group stops or its topic is paused.

    The number is that of the starts that the group's counter still grants and that no claim from another slot of the
    topic waits for, up to the room in flight and in buffers. It is at most an even part, so that the slots of a
    topic take turns. If messages run one by one, the number is 1, or as many as have run lately without waiting
    (`OwnedSlot.run`).
    """
    group, owner = slot.group, slot.group.owner
    if group.stopping or owner.handler is None or group.busy:
        return 0
    allowed = group.memory_room(now)
    if allowed <= 0:
        allowed = group.scant_room(slot.buffered, now)
    ready = group.buffered  # members that wait for their key use up no quota
    if any(group.retries.values()):
        ready = sum([m.member is not None for m in group.buffers[0]])
    left = group.counter.available(now) - owner.coming
    startable = min(left - ready, owner.counter.most - ready, group.capacity - slot.buffered, allowed)
    if group.serial:
        startable = min(startable, slot.run - slot.buffered)
    return max(0, min(startable, owner.room() - owner.coming))
