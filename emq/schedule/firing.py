"""The firing loop: publishes what is due of the schedules of this host's groups."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from emq import errors, message
from emq.clock import Clock
from emq.message import Message
from emq.owned import OwnedGroup
from emq.schedule import course, spec
from emq.storage import Add, LaneStore, Settle, Verdict
from emq.trail.sink import TrailSink

log = logging.getLogger(__name__)

BATCH = 1000
"""Occurrences added in one call, about; also the most of one schedule in its turn."""
BATCH_BYTES = 8 << 20
"""Bytes of payload in one call, about."""

UNREACHABLE_S = 1.0


class _Turn(NamedTuple):
    """One schedule's turn.

    Attributes:
        entry: its message, with the schedule as it is to be from now on.
        occurrences: (number, due time in ms) of what is due now.
        due_ms: when it is due next; None when it has ended.
        reason: why it can never be fired; empty if all is well.
    """

    group: OwnedGroup
    entry: Message
    occurrences: Sequence[tuple[int, int]]
    due_ms: int | None
    reason: str = ""

    @property
    def adds(self) -> list[Add]:
        group, m = self.group, self.entry
        return [
            Add(
                group.name,
                f"{m.id}.{number}",
                _occurrence(group, m, number, due_ms),
                due_ms,
                epoch=group.epoch,
                priority=m.priority,
            )
            for number, due_ms in self.occurrences
        ]

    @property
    def verdict(self) -> Settle:
        group, m = self.group, self.entry
        if self.reason:
            return Settle(group.name, m.id, Verdict.DEAD, group.epoch, 0, message.encode_retry(m), self.reason)
        if self.due_ms is None:
            return Settle(group.name, m.id, Verdict.ACK, group.epoch)
        body = message.encode_retry(m)
        return Settle(group.name, m.id, Verdict.RETRY, group.epoch, self.due_ms, body, priority=m.priority)


class Firing:
    """Takes schedules that their group's claimer found due, and adds their occurrences to the group's lane.

    An occurrence is a message of its own, `<schedule's id>.<number>`, so its failures are retried apart from the
    schedule and never add to it. A schedule's entry is settled only after its occurrences are in the lane: put back
    with its next due time, or acknowledged when it has ended. A crash in between repeats the adds, which change
    nothing for those that are there still; one that was handled meanwhile is delivered again.

    Both steps carry the group's epoch. Schedules of a group that stops before the first step are dropped, those of a
    lost one at any time; they are still claimed in the store, from where the next owner recovers them. After the first
    step a stopping group's are settled, or the next owner would publish the same occurrences again.
    """

    def __init__(
        self,
        lanes: LaneStore,
        clock: Clock,
        trail: TrailSink,
        *,
        on_due: Callable[[str, int], None],
        on_lost: Callable[[OwnedGroup], None],
    ) -> None:
        """Args:
        on_due: called with lane and time (ms) of what came to wait there.
        on_lost: called when the group has a newer owner, which will fire the schedule again.
        """
        self._lanes = lanes
        self._clock = clock
        self._trail = trail
        self._on_due = on_due
        self._on_lost = on_lost
        self._pending: deque[tuple[OwnedGroup, Message]] = deque()
        self._turns: list[_Turn] = []
        self._something = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.fired = 0

    def put(self, group: OwnedGroup, m: Message) -> None:
        """Fire a schedule's entry, which was claimed from the group's lane. Returns at once."""
        self._pending.append((group, m))
        self._something.set()
        self._idle.clear()

    async def idle(self) -> None:
        """Return once no schedule is being fired."""
        await self._idle.wait()

    def unsettled(self, group: OwnedGroup) -> int:
        """Schedules of the group that were put and are not settled; after it began to stop it comes down to 0."""
        waiting = sum(1 for of, _ in self._pending if of is group)
        return waiting + sum(1 for turn in self._turns if turn.group is group)

    async def run(self) -> None:
        """Fire what waits, a batch at a time. Ends by cancellation."""
        while True:
            await self._something.wait()
            self._turns = self._take()
            await self._until_done(self._add, lambda group: group.stopping or group.lost)
            await self._until_done(self._settle, lambda group: group.lost)
            self._turns = []
            if not self._pending:
                self._something.clear()
                self._idle.set()

    # ------------------------------------------------------------------------------------------------------- details

    def _take(self) -> list[_Turn]:
        now_ms = self._clock.now_us() // 1000
        turns: list[_Turn] = []
        count = size = 0
        while self._pending and len(turns) < BATCH and count < BATCH and size < BATCH_BYTES:
            turn = _turn(*self._pending.popleft(), now_ms)
            turns.append(turn)
            count += len(turn.occurrences)
            size += len(turn.occurrences) * len(turn.entry.payload)
        return turns

    async def _until_done(
        self, step: Callable[[list[_Turn]], Awaitable[list[_Turn]]], is_dropped: Callable[[OwnedGroup], bool]
    ) -> None:
        while True:
            self._turns = [turn for turn in self._turns if not is_dropped(turn.group)]
            if not self._turns:
                return
            try:
                self._turns = await step(self._turns)
                return
            except (errors.StoreUnavailable, errors.StoreFull) as exc:
                log.warning("%s; %d schedules wait", exc, len(self._turns) + len(self._pending))
                await asyncio.sleep(UNREACHABLE_S)

    async def _add(self, turns: list[_Turn]) -> list[_Turn]:
        """Add occurrences; answers the turns that may be settled."""
        adds = [turn.adds for turn in turns]
        answers = iter(await self._lanes.add([add for of_turn in adds for add in of_turn]) if any(adds) else ())
        kept = []
        for turn in turns:
            refused = [isinstance(next(answers), errors.NotOwner) for _ in turn.occurrences]
            if any(refused):
                self._on_lost(turn.group)
                continue
            kept.append(turn)
            if turn.occurrences:
                self.fired += len(turn.occurrences)
                self._record(turn)
                self._on_due(turn.group.name, turn.occurrences[0][1])
        return kept

    async def _settle(self, turns: list[_Turn]) -> list[_Turn]:
        answers = await self._lanes.settle([turn.verdict for turn in turns])
        for turn, answer in zip(turns, answers, strict=True):
            turn.group.lane_out -= 1
            if isinstance(answer, errors.NotOwner):
                self._on_lost(turn.group)
            elif turn.reason:
                log.error("schedule %s of topic %s is a dead letter: %s", turn.entry.id, turn.entry.topic, turn.reason)
            elif turn.due_ms is not None:
                self._on_due(turn.group.name, turn.due_ms)
        return []

    def _record(self, turn: _Turn) -> None:
        """Also those that were there before: whoever added them may not have lived to record it."""
        if not self._trail.enabled:
            return
        group, m, now_us = turn.group, turn.entry, self._clock.now_us()
        topic = group.owner.topic.name
        keys = None if m.key is None else [m.key]
        for number, due_ms in turn.occurrences:
            ids = [f"{m.id}.{number}"]
            self._trail.published(topic, group.index, m.priority, None, ids, keys, due_ms * 1000, now_us)


def _turn(group: OwnedGroup, m: Message, now_ms: int) -> _Turn:
    try:
        schedule = spec.decode(m.schedule or b"")
        limit = max(1, min(BATCH, BATCH_BYTES // (len(m.payload) + 1)))
        occurrences, following = course.fire(schedule, now_ms, limit)
    except Exception as exc:  # one that cannot be fired must not keep the others from it
        return _Turn(group, m, (), None, str(exc) or repr(exc))
    if following is None:
        return _Turn(group, m, occurrences, None)
    m.schedule = following.encode()
    return _Turn(group, m, occurrences, following.due_ms)


def _occurrence(group: OwnedGroup, m: Message, number: int, due_ms: int) -> bytes:
    return message.encode_retry(
        Message(
            id=f"{m.id}.{number}",
            payload=m.payload,
            key=m.key,
            published_us=due_ms * 1000,
            headers=m.headers,
            priority=m.priority,
            topic=group.owner.topic.name,
            group=group.index,
            expires_us=_expires_us(group, m, due_ms),
            score=m.score,
        )
    )


def _expires_us(group: OwnedGroup, m: Message, due_ms: int) -> int:
    """The schedule's own time to live counts unless the topic's is shorter."""
    of_topic = group.owner.topic.options.ttl_s
    spans_us = [span_us for span_us in (m.expires_us, int((of_topic or 0) * 1e6)) if span_us > 0]
    return due_ms * 1000 + min(spans_us) if spans_us else 0
