"""The settle loop: carries out what the store must know of before a message may be forgotten."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from emq import errors, message, slots
from emq.clock import Clock
from emq.dispatch import retry
from emq.dispatch.members import MemberSettler
from emq.owned import OwnedGroup
from emq.owned_slot import OwnedSlot
from emq.storage import Add, LaneStore, Settle, Verdict
from emq.trail.sink import TrailSink

log = logging.getLogger(__name__)

BATCH = 2_000
UNREACHABLE_S = 1.0

HISTORY = 16
"""Failed attempts that a message remembers."""


class _Pending(NamedTuple):
    group: OwnedGroup
    message: message.Message
    decision: retry.Decision | None
    """None for an acknowledgement."""

    @property
    def moves(self) -> bool:
        """True if the message has to be put into its group's lane before it may be forgotten where it is."""
        if self.message.member is None:
            return self.message.offset >= 0
        return self.decision is not None and self.decision.due_ms is not None and self.decision.score is None


class Settler:
    """Batches acknowledgements, retries and dead letters of all groups into few calls.

    A message that failed in its log queue, or that leaves its slot to be tried again later, is added to its group's
    lane first and finished where it was after that, so a crash between the two repeats it but cannot lose it. Every
    call may be repeated without harm: adding an id that is there changes nothing, and a verdict only acts on a
    prepared entry. What waits here is in flight still, so the in-flight bounds bound it.
    """

    def __init__(
        self,
        lanes: LaneStore,
        members: MemberSettler,
        clock: Clock,
        trail: TrailSink,
        *,
        on_acknowledged: Callable[[OwnedGroup, int], None],
        on_settled: Callable[[OwnedGroup, message.Message], None],
        on_due: Callable[[str, int], None],
        on_lost: Callable[[OwnedGroup], None],
        seed: int | None = None,
    ) -> None:
        """Args:
        on_acknowledged: called with a number of messages whose success the store knows; no longer in flight.
        on_settled: as that, with each message that failed or expired.
        on_due: called with lane and time (ms) of each retry that waits there.
        on_lost: called when the group has a newer owner, which will deliver the message again.
        """
        self._lanes = lanes
        self._members = members
        self.acknowledge_member = members.acknowledge
        self._clock = clock
        self._trail = trail
        self._on_acknowledged = on_acknowledged
        self._on_settled = on_settled
        self._on_due = on_due
        self._on_lost = on_lost
        self._random = random.Random(seed)
        self._pending: deque[_Pending] = deque()
        self._something = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._judged: dict[tuple[str, str], bool] = {}
        self._added: dict[tuple[str, str], bool] = {}
        self.retried = 0
        self.dead = 0
        self.refused = 0

    def acknowledge(self, group: OwnedGroup, m: message.Message) -> None:
        self._append(_Pending(group, m, None))

    def failed(self, group: OwnedGroup, m: message.Message, failure: BaseException) -> None:
        now, options = self._clock.now(), group.owner.topic.options
        asks_time = isinstance(failure, errors.Retry) and failure.after_s is not None
        if m.member is not None and options.retry == "rmq" and not (asks_time and m.token % 1000):
            decision = retry.roll_back(m.token % 1000, failure, now)
        else:
            decision = retry.decide(options, m.attempt, failure, now, self._random)
        if m.first_us == 0:
            m.first_us = m.started_us
        m.error = decision.reason
        m.history = [*(m.history or ())[1 - HISTORY :], (int(now * 1000), decision.reason)]
        self._append(_Pending(group, m, decision))

    def expired(self, group: OwnedGroup, m: message.Message) -> None:
        m.error = retry.EXPIRED.reason
        self._append(_Pending(group, m, retry.EXPIRED))

    def claimed(self, group: OwnedGroup, id_: str) -> None:
        """An entry of the group's lane was claimed.

        If a call that put it there is under way, or its answer was lost, it was carried out, and must not be repeated:
        it would act on the new claim.
        """
        for sent in (self._judged, self._added):
            if (group.name, id_) in sent:
                sent[group.name, id_] = True

    async def idle(self) -> None:
        """Return once nothing waits to be settled."""
        await self._idle.wait()

    async def settle(self) -> None:
        """Carry out what waits, a batch at a time. Ends by cancellation.

        Verdicts go before adds, and adds that find no room wait aside: a full server refuses them, but must not keep
        the verdicts from freeing room.
        """
        moving: list[_Pending] = []
        while True:
            await self._something.wait()
            batch = [self._pending.popleft() for _ in range(min(BATCH, len(self._pending)))]
            await self._settle_slots([p for p in batch if p.message.member is not None and not p.moves])
            await self._settle_lanes([p for p in batch if p.message.member is None and not p.moves])
            moving += [p for p in batch if p.moves]
            await self._move_all(moving)
            if not self._pending and not moving:
                self._something.clear()
                self._idle.set()

    def _append(self, pending: _Pending) -> None:
        self._pending.append(pending)
        if len(self._pending) == 1:
            self._something.set()
            self._idle.clear()

    async def _settle_slots(self, batch: list[_Pending]) -> None:
        answers = await self._members.settle([_slot_verdict(p) for p in batch], _slots_of(batch))
        for pending, answer in zip(batch, answers, strict=True):
            self._done(pending, answer)

    async def _settle_lanes(self, batch: list[_Pending]) -> None:
        while batch:
            try:
                with self._sending(batch):
                    answers = await self._lanes.settle([_lane_verdict(p) for p in batch])
            except (errors.StoreUnavailable, errors.StoreFull) as exc:
                await self._wait(exc, len(batch))
                batch = self._unproven(batch)
                continue
            for pending, answer in zip(batch, answers, strict=True):
                self._lane_done(pending, answer)
            return

    def _lane_done(self, pending: _Pending, answer: bool | errors.NotOwner) -> None:
        if pending.message.member is None and not pending.moves:
            pending.group.lane_out -= 1
        self._done(pending, answer or pending.message.member is None)

    @contextlib.contextmanager
    def _sending(self, batch: Sequence[_Pending]) -> Iterator[None]:
        """Listen for claims of what is sent; after a failure, go on until `_unproven` asks."""
        for p in batch:
            self._judged.setdefault((p.group.name, p.message.id), False)
        yield
        for p in batch:
            self._judged.pop((p.group.name, p.message.id), None)

    def _unproven(self, batch: Iterable[_Pending]) -> list[_Pending]:
        """What is to be sent again; the rest is known to be done."""
        left = []
        for p in batch:
            if self._judged.pop((p.group.name, p.message.id), False):
                self._lane_done(p, True)
            else:
                left.append(p)
        return left

    async def _move_all(self, moving: list[_Pending]) -> None:
        """Move what can be moved now, and take it out of the list."""
        while moving:
            try:
                await self._move(moving[:BATCH])
            except (errors.StoreUnavailable, errors.StoreFull) as exc:
                await self._wait(exc, len(moving))
                return
            del moving[:BATCH]

    async def _wait(self, exc: errors.EMQError, messages: int) -> None:
        log.warning("%s; %d messages wait to be settled", exc, messages + len(self._pending))
        await asyncio.sleep(UNREACHABLE_S)

    async def _move(self, batch: list[_Pending]) -> None:
        adds = [_add(p) for p in batch]
        places = [(add.slot, add.id) for add in adds]
        for place in places:
            self._added.setdefault(place, False)
        answers: list[bool | errors.NotOwner] = [True] * len(batch)
        unproven = [i for i, place in enumerate(places) if not self._added[place]]
        for i, answer in zip(unproven, await self._lanes.add([adds[i] for i in unproven]), strict=True):
            answers[i] = answer
        # What the lane refused must not leave its slot either.
        claimed = [i for i, p in enumerate(batch) if p.message.member is not None and isinstance(answers[i], bool)]
        if claimed:
            left = await self._members.settle([_slot_verdict(batch[i]) for i in claimed], _slots_of(batch))
            for i, answer in zip(claimed, left, strict=True):
                answers[i] = answer
        for place in places:
            self._added.pop(place, None)
        for pending, answer in zip(batch, answers, strict=True):
            self._lane_done(pending, answer)

    def _done(self, pending: _Pending, answer: bool | errors.NotOwner) -> None:
        group, m, decision = pending
        if isinstance(answer, errors.NotOwner):
            self.refused += 1
            self._on_lost(group)
        elif answer and decision is not None:
            self._record(m, decision)
            if decision.due_ms is not None and decision.score is None:
                self._on_due(group.name, decision.due_ms)
        if m.member is not None and group.slot is not None:
            group.slot.let_go((m.member,))
        if decision is None:
            self._on_acknowledged(group, 1)
        else:
            self._on_settled(group, m)

    def _record(self, m: message.Message, decision: retry.Decision) -> None:
        now_us = self._clock.now_us()
        if decision.due_ms is None:
            self.dead += 1
            if self._trail.enabled:
                self._trail.dead(m, now_us, decision.reason)
        else:
            self.retried += 1
            if self._trail.enabled:
                self._trail.retried(m, now_us, decision.due_ms, decision.reason)


def _body(pending: _Pending) -> bytes:
    """A retry carries the number of the attempt that comes next; a dead letter the number of the last one made."""
    m, decision = pending.message, pending.decision
    if decision is None:
        return b""
    attempt = m.attempt
    try:
        m.attempt = attempt + (decision.due_ms is not None)
        return message.encode_retry(m)
    finally:
        m.attempt = attempt


def _slots_of(batch: Sequence[_Pending]) -> list[OwnedSlot]:
    return [slot for p in batch if (slot := p.group.slot) is not None]


def _slot_verdict(pending: _Pending) -> slots.Settle:
    group, m, decision = pending
    assert group.slot is not None
    assert m.member is not None
    slot = group.slot.slot
    if decision is None or pending.moves:
        return slots.Settle(slot, m.member, slots.Verdict.ACK, m.token, group.epoch)
    verdict, score = slots.Verdict.RETRY, decision.score
    if score is None:
        verdict, score = slots.Verdict.DEAD, 0
    return slots.Settle(slot, m.member, verdict, m.token, group.epoch, score, decision.reason, group.owner.topic.fold)


def _lane_verdict(pending: _Pending) -> Settle:
    group, m, decision = pending
    if decision is None:
        return Settle(group.name, m.id, Verdict.ACK, group.epoch)
    if decision.due_ms is None:
        return Settle(group.name, m.id, Verdict.DEAD, group.epoch, body=_body(pending), reason=decision.reason)
    return Settle(group.name, m.id, Verdict.RETRY, group.epoch, decision.due_ms, _body(pending), priority=m.priority)


def _add(pending: _Pending) -> Add:
    group, m, decision = pending
    assert decision is not None
    if m.member is not None:
        # The id of a slot's message is that of its content, which may wait in the lane from an earlier failure.
        m.id = f"{m.id.partition('~')[0]}~{m.started_us:x}"
    if decision.due_ms is None:
        now_ms = (m.started_us or m.ready_us) // 1000
        return Add(group.name, m.id, _body(pending), now_ms, reason=decision.reason, epoch=group.epoch)
    return Add(group.name, m.id, _body(pending), decision.due_ms, epoch=group.epoch, priority=m.priority)
