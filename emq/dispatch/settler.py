"""The settle loop: carries out what the store must know of before a message may be forgotten."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from emq import errors, message
from emq.clock import Clock
from emq.dispatch import retry
from emq.owned import OwnedGroup
from emq.storage import Add, LaneStore, Settle, Verdict
from emq.trail.sink import TrailSink

log = logging.getLogger(__name__)

BATCH = 500
UNREACHABLE_S = 1.0


class _Pending(NamedTuple):
    group: OwnedGroup
    message: message.Message
    decision: retry.Decision | None
    """None for an acknowledgement."""


class Settler:
    """Batches acknowledgements, retries and dead letters of all groups into few calls.

    A message of a log queue that failed is added to its group's retry slot (or dead letters) first and its offset
    finished after that, so a crash between the two repeats it but cannot lose it. Every call may be repeated without
    harm: adding an id that is there changes nothing, and a verdict only acts on a prepared entry. What waits here is
    in flight still, so the in-flight bounds bound it.
    """

    def __init__(
        self,
        store: LaneStore,
        clock: Clock,
        trail: TrailSink,
        *,
        on_settled: Callable[[OwnedGroup, message.Message], None],
        on_due: Callable[[str, int], None],
        on_lost: Callable[[OwnedGroup], None],
        seed: int | None = None,
    ) -> None:
        """Args:
        on_settled: called when the store knows; the message is no longer in flight.
        on_due: called with slot and time (ms) of each retry.
        on_lost: called when the group has a newer owner, which will deliver the message again.
        """
        self._store = store
        self._clock = clock
        self._trail = trail
        self._on_settled = on_settled
        self._on_due = on_due
        self._on_lost = on_lost
        self._random = random.Random(seed)
        self._pending: deque[_Pending] = deque()
        self._something = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.retried = 0
        self.dead = 0
        self.refused = 0

    def acknowledge(self, group: OwnedGroup, m: message.Message) -> None:
        self._append(_Pending(group, m, None))

    def failed(self, group: OwnedGroup, m: message.Message, failure: BaseException) -> None:
        now = self._clock.now()
        decision = retry.decide(group.owner.topic.options, m.attempt, failure, now, self._random)
        if m.first_us == 0:
            m.first_us = m.started_us
        m.error = decision.reason
        self._append(_Pending(group, m, decision))

    async def idle(self) -> None:
        """Return once nothing waits to be settled."""
        await self._idle.wait()

    async def settle(self) -> None:
        """Carry out what waits, a batch at a time. Ends by cancellation."""
        while True:
            await self._something.wait()
            batch = [self._pending.popleft() for _ in range(min(BATCH, len(self._pending)))]
            # Verdicts before adds: a full server refuses the adds, but must not keep the verdicts from freeing room.
            await self._until_done([p for p in batch if p.message.offset < 0], self._settle)
            await self._until_done([p for p in batch if p.message.offset >= 0], self._add)
            if not self._pending:
                self._something.clear()
                self._idle.set()

    def _append(self, pending: _Pending) -> None:
        self._pending.append(pending)
        self._something.set()
        self._idle.clear()

    async def _until_done(self, batch: list[_Pending], carry_out: Callable[[list[_Pending]], Awaitable[None]]) -> None:
        while batch:
            try:
                await carry_out(batch)
                return
            except (errors.StoreUnavailable, errors.StoreFull) as exc:
                log.warning("%s; %d messages wait to be settled", exc, len(batch) + len(self._pending))
                await asyncio.sleep(UNREACHABLE_S)

    async def _settle(self, batch: list[_Pending]) -> None:
        answers = await self._store.settle([_verdict(p) for p in batch])
        for pending, answer in zip(batch, answers, strict=True):
            self._done(pending, refused=isinstance(answer, errors.NotOwner))

    async def _add(self, batch: list[_Pending]) -> None:
        answers = await self._store.add([_add(p) for p in batch])
        for pending, answer in zip(batch, answers, strict=True):
            self._done(pending, refused=isinstance(answer, errors.NotOwner))

    def _done(self, pending: _Pending, *, refused: bool) -> None:
        group, m, decision = pending
        if refused:
            self.refused += 1
            self._on_lost(group)
        elif decision is not None:
            self._record(m, decision)
            if decision.due_ms is not None:
                self._on_due(group.name, decision.due_ms)
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


def _verdict(pending: _Pending) -> Settle:
    group, m, decision = pending
    if decision is None:
        return Settle(group.name, m.id, Verdict.ACK, group.epoch)
    if decision.due_ms is None:
        return Settle(group.name, m.id, Verdict.DEAD, group.epoch, body=_body(pending), reason=decision.reason)
    return Settle(group.name, m.id, Verdict.RETRY, group.epoch, decision.due_ms, _body(pending))


def _add(pending: _Pending) -> Add:
    group, m, decision = pending
    assert decision is not None
    if decision.due_ms is None:
        now_ms = m.started_us // 1000
        return Add(group.name, m.id, _body(pending), now_ms, reason=decision.reason, epoch=group.epoch)
    return Add(group.name, m.id, _body(pending), decision.due_ms, epoch=group.epoch)
