"""The slot loops: bring messages of sorted topics into their buffers, and find those that nobody told of."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence

from emq import errors, message
from emq.clock import Clock
from emq.fetcher.due import DueTimes
from emq.lease import Lease
from emq.owned import OwnedGroup
from emq.owned_slot import OwnedSlot
from emq.slots import RETRIES, Claim, Claimed, Recover, Settle, SlotKind, SortedStore, Verdict

log = logging.getLogger(__name__)

CLAIM_SLOTS = 200
CLAIM_MESSAGES = 2_000
CLAIM_BYTES = 8 << 20
"""Bounds of one claim, so that it holds up neither the server nor this loop for more than a few milliseconds."""

FIRST_CLAIM = 16
"""Most messages in the first claim of a slot, when it is not known yet how large they are."""

SWEEP_S = 5.0
"""How often a slot is looked at for what woke nobody: members added by foreign producers, claims of lost consumers."""
SWEEP_SLOTS = 200
"""Most slots looked at in a second; with more than `SWEEP_S` times as many, each is looked at less often."""

OVERHEAD_BYTES = 64

UNREACHABLE_S = 1.0

UNSURE_S = 0.05
"""How soon a slot is looked at again that may not be claimed from, because verdicts on its members are in doubt."""


class SlotClaimer:
    """Claims what is due from the slots of this host, many slots in one round trip.

    A slot is claimed when it is acquired, when its next member is due, when the store wakes it (something came in front
    of what it was armed with), and when its buffer has drained to half while more is due. An idle one costs a look
    every few seconds, and that only because other programs may add members without waking anybody. `claim` runs
    twice at once, so that the server works on one claim while this process works off the other.
    """

    def __init__(
        self,
        store: SortedStore,
        clock: Clock,
        *,
        on_buffered: Callable[[OwnedGroup], None],
        on_expiring: Callable[[OwnedGroup], None],
        on_lost: Callable[[OwnedGroup], None],
        lease: Lease | None = None,
    ) -> None:
        """Args: as for `emq.fetcher.lanes.LaneClaimer`."""
        self._store = store
        self._clock = clock
        self._on_buffered = on_buffered
        self._on_expiring = on_expiring
        self._on_lost = on_lost
        self._lease = lease or Lease()
        self._slots: dict[str, OwnedSlot] = {}
        self._due = DueTimes(clock)
        self.fetched = 0
        self.unreachable: str | None = None

    def acquire(self, slot: OwnedSlot) -> None:
        self._slots[slot.address] = slot
        self._due.at(slot.address, 0)

    def release(self, slot: OwnedSlot) -> None:
        if self._slots.get(slot.address) is slot:
            del self._slots[slot.address]
            self._due.forget(slot.address)

    def drained(self, slot: OwnedSlot) -> None:
        """Some of its messages were taken; claim more if there are any and half the buffer is free."""
        if slot.more and slot.buffered * 2 <= slot.group.capacity:
            slot.more = False
            self._at(slot, 0)

    def woken(self, addresses: Iterable[str]) -> None:
        for address in addresses:
            if address in self._slots:
                self._due.at(address, 0)

    async def claim(self) -> None:
        """Claim what is due, wait for what is next. Ends by cancellation."""
        while True:
            await self._lease.claiming()
            taken = self._take()
            if not taken:
                await self._due.wait()
                continue
            try:
                await self._claim(taken)
            finally:
                for slot, _ in taken:
                    self._claimed(slot)

    async def sweep(self) -> None:
        """Look at the slots in turn, `SWEEP_SLOTS` a second at most. Ends by cancellation."""
        while True:
            slots = list(self._slots.values())
            for start in range(0, max(1, len(slots)), SWEEP_SLOTS):
                part = [s for s in slots[start : start + SWEEP_SLOTS] if self._slots.get(s.address) is s]
                if part:
                    await self._look_at(part)
                await asyncio.sleep(max(1.0, SWEEP_S * SWEEP_SLOTS / max(SWEEP_SLOTS, len(slots))))

    def _at(self, slot: OwnedSlot, due_ms: int) -> None:
        if self._slots.get(slot.address) is slot:
            self._due.at(slot.address, due_ms)

    # --------------------------------------------------------------------------------------------------------- claiming

    def _take(self) -> list[tuple[OwnedSlot, int]]:
        """Slots that are due with how much each is to claim, together about `CLAIM_MESSAGES` and `CLAIM_BYTES`.

        Each is with one claim at a time. Sizes are those of its last messages.
        """
        taken: list[tuple[OwnedSlot, int]] = []
        messages, left_bytes = 0, float(CLAIM_BYTES)
        for address in self._due.pop(int(self._clock.now() * 1000), CLAIM_SLOTS):
            slot = self._slots[address]
            if slot.group.stopping:
                continue
            if slot.claiming:
                slot.again = True
            elif slot.unsure or (slot.suspect and slot.settling):
                self._due.at(address, int((self._clock.now() + UNSURE_S) * 1000))
            elif messages >= CLAIM_MESSAGES or left_bytes <= 0:
                self._due.at(address, 0)
            else:
                slot.claiming, slot.more = True, False
                limit = min(room(slot), max(1, int(left_bytes / slot.size)) if slot.size else FIRST_CLAIM)
                taken.append((slot, limit))
                expected = min(limit, slot.expected)
                messages += expected
                left_bytes -= expected * slot.size
        return taken

    async def _claim(self, taken: Sequence[tuple[OwnedSlot, int]]) -> None:
        now_ms = int(self._clock.now() * 1000)
        slots = [slot for slot, _ in taken]
        claims = [Claim(s.slot, limit, s.group.epoch, s.until_ms(now_ms)) for s, limit in taken]
        try:
            if suspects := [s for s in slots if s.suspect]:
                await self._recover(suspects, now_ms, older_than_ms=now_ms + 1000)
            answers = await self._store.claim(claims, now_ms)
        except (errors.StoreUnavailable, errors.StoreFull) as exc:
            if self.unreachable is None:
                log.warning("%s; trying again every second", exc)
            self.unreachable = str(exc)
            for slot in slots:
                slot.suspect.add(now_ms // 1000)  # what the lost answer brought is in prepare, and nobody has it
                self._at(slot, now_ms + 1)
            await asyncio.sleep(UNREACHABLE_S)
            return
        self.unreachable = None
        late: list[Settle] = []
        for slot, answer in zip(slots, answers, strict=True):
            if isinstance(answer, errors.NotOwner):
                self._on_lost(slot.group)
            elif not slot.group.stopping and self._slots.get(slot.address) is slot:
                self._buffer(slot, answer, now_ms)
            else:
                late += [give_back(slot, e.member, e.token, e.score) for e in answer.entries]
        if late:
            with contextlib.suppress(errors.StoreUnavailable, errors.StoreFull):  # then the next owner rolls them back
                await self._store.settle(late)

    def _claimed(self, slot: OwnedSlot) -> None:
        slot.claiming = False
        if slot.again:
            slot.again = False
            self._at(slot, 0)

    def _buffer(self, slot: OwnedSlot, claimed: Claimed, now_ms: int) -> None:
        entries, group = claimed.entries, slot.group
        slot.expected = max(1, 2 * len(entries))
        if entries:
            messages, before = self._decoded(slot, claimed), group.gauge.bytes
            slot.buffered += len(entries)
            slot.hold([entry.member for entry in entries])
            self.fetched += len(entries)
            group.push(0, messages)
            slot.size = (group.gauge.bytes - before) / len(messages) + OVERHEAD_BYTES
            if group.expires_us:
                self._on_expiring(group)
            self._on_buffered(group)
        due_ms = slot.due_ms(claimed.next_score)
        if due_ms is not None and group.owner.handler is not None:  # a resumed topic is looked at anew
            if due_ms > now_ms:
                self._at(slot, due_ms)
            elif room(slot) * 2 >= group.capacity:
                self._at(slot, 0)
            else:
                slot.more = True

    def _decoded(self, slot: OwnedSlot, claimed: Claimed) -> list[message.Message]:
        group = slot.group
        topic, index, now_us = group.owner.topic, group.index, self._clock.now_us()
        keyed, apart, name = topic.options.ordering != "none", slot.slot.apart, topic.name
        ttl_us = int((topic.options.ttl_s or 0) * 1e6)
        messages = []
        for member, score, token, body, note, merged in claimed.entries:
            m = message.Message(
                message.slot_id(index, member),
                body,
                attempt=RETRIES + 1 - token % 1000,
                topic=name,
                group=index,
                score=score,
                merged=merged,
                ready_us=now_us,
                member=member,
                token=token,
            )
            if apart and note:
                told = message.decode_note(note)
                m.key = told.key if keyed else None
                m.published_us, m.headers, m.expires_us = told.published_us, told.headers, told.expires_us
            if ttl_us:
                at_us = _ready_since_us(slot, m) + ttl_us
                m.expires_us = min(m.expires_us or at_us, at_us)
            if m.expires_us:
                group.expires_us = min(group.expires_us or m.expires_us, m.expires_us)
            messages.append(m)
        return messages

    # --------------------------------------------------------------------------------------------------------- sweeping

    async def _look_at(self, slots: Sequence[OwnedSlot]) -> None:
        now_ms = int(self._clock.now() * 1000)
        try:
            states = await self._store.inspect([slot.slot for slot in slots], now_ms)
            lost = []
            for slot, state in zip(slots, states, strict=True):
                due_ms = slot.due_ms(state.next_score)
                if due_ms is not None and not slot.more and room(slot) > 0:
                    self._at(slot, due_ms)
                timeout_ms = int(slot.group.owner.topic.options.prepare_timeout_s * 1000)
                if state.oldest_prepared_ms is not None and state.oldest_prepared_ms < now_ms - timeout_ms:
                    lost.append((slot, timeout_ms))
            for slot, timeout_ms in lost:
                await self._recover([slot], now_ms, now_ms - timeout_ms)
        except (errors.StoreUnavailable, errors.StoreFull) as exc:
            log.info("%s; slots are looked at later", exc)

    async def _recover(self, slots: Sequence[OwnedSlot], now_ms: int, older_than_ms: int) -> None:
        """Roll back what was claimed before `older_than_ms` and is not on this host."""
        asked = [Recover(s.slot, s.group.epoch, older_than_ms, list(s.held), "its consumer timed out") for s in slots]
        for slot, answer in zip(slots, await self._store.recover(asked, now_ms), strict=True):
            slot.suspect.clear()
            if isinstance(answer, errors.NotOwner):
                self._on_lost(slot.group)


def give_back(slot: OwnedSlot, member: bytes, token: int, score: float) -> Settle:
    """What was claimed and not started waits again as it did before, for the next owner; folded with its twin."""
    group = slot.group
    return Settle(slot.slot, member, Verdict.RETRY, token, group.epoch, score, fold=group.owner.topic.fold)


def room(slot: OwnedSlot) -> int:
    """Messages that the slot's buffer has room for; none while its group stops or its topic is paused.

    By priority, something more urgent than what is buffered may always come in: a quarter of the buffer is kept for
    it, and what is claimed takes its place by its score.
    """
    group = slot.group
    if group.stopping or group.owner.handler is None:
        return 0
    if group.gauge.full():
        return 0 if slot.buffered else 1
    capacity = group.capacity
    if slot.slot.kind is SlotKind.PRIORITY:
        return max(capacity // 4, capacity - slot.buffered) if slot.buffered < 2 * capacity else 0
    return max(0, capacity - slot.buffered)


def _ready_since_us(slot: OwnedSlot, m: message.Message) -> int:
    """When a member became ready: at its time, or by priority when it was published; where that is not known, now."""
    if slot.slot.kind is SlotKind.PRIORITY:
        return m.published_us or m.ready_us
    return int(m.score * 1000) if m.score > RETRIES else m.ready_us
