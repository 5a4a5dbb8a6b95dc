"""The firing loop: publishes due occurrences of the schedules of this host's groups."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from emq.groups.context import HostContext
from emq.groups.owned import OwnedGroup
from emq.runtime import errors
from emq.runtime.aside import Asides, Call
from emq.runtime.troubles import Troubles
from emq.storage import message
from emq.storage.answers import FAILURES, Failure, of_each, of_each_add, unexpected
from emq.storage.durability import Durability
from emq.storage.lane_store import LaneAdd, LaneSettle, LaneStore, LaneVerdict
from emq.storage.message import Message
from emq.storage.slot_store import SortedStore
from emq.timetable import merged_occurrences
from emq.timetable import occurrences as course
from emq.timetable import schedule as spec
from emq.trail import events

log = logging.getLogger(__name__)

BATCH = 1000
"""Approximate number of occurrences added in one call; also the most occurrences of one schedule in its turn."""
BATCH_BYTES = 8 << 20
"""Approximate bytes of messages in one call."""

UNREACHABLE_S = 1.0


@dataclass(slots=True, eq=False)
class _Turn:
    """One schedule's turn.

    Attributes:
        entry: the schedule's message, with the schedule's state after this turn.
        occurrences: (number, due time in ms) of each occurrence that is due now.
        due_ms: next due time of the schedule; None when it has ended.
        proven: ids of occurrences that were claimed since the schedule was, and the entry's id if it was claimed after
            its verdict was sent. The store has carried out these calls, now or for a former owner. A repeat would act
            on the new claim, or deliver a handled occurrence again.
        sent_ms: id of each occurrence whose add was sent -> when it was sent first.
        reason: why the schedule can never be fired; empty if it can.
        in_doubt: True after an add whose answer was lost. The occurrences may lie in the lane, or be handled.
    """

    group: OwnedGroup
    entry: Message
    occurrences: Sequence[tuple[int, int]]
    due_ms: int | None
    proven: set[str]
    sent_ms: dict[str, int]
    reason: str = ""
    in_doubt: bool = False

    @property
    def adds(self) -> list[LaneAdd]:
        group, m = self.group, self.entry
        if merged_occurrences.merges(group.owner.topic):
            return []
        return [
            LaneAdd(
                group.name,
                f"{m.uid}.{number}",
                _occurrence(group, m, number, due_ms),
                due_ms,
                epoch=group.epoch,
                priority=m.priority,
                since_ms=self.sent_ms.get(f"{m.uid}.{number}"),
            )
            for number, due_ms in self.occurrences
            if f"{m.uid}.{number}" not in self.proven
        ]

    @property
    def placed(self) -> list[merged_occurrences.Placed]:
        """The occurrences that wait in slots instead of lanes, because the topic merges within a time range."""
        topic, m = self.group.owner.topic, self.entry
        if not merged_occurrences.merges(topic):
            return []
        return [merged_occurrences.placed(topic, m, due_ms, m.expires_us) for _, due_ms in self.occurrences]

    @property
    def stays(self) -> bool:
        """True if the schedule goes on after this turn."""
        return not self.reason and self.due_ms is not None

    @property
    def entry_add(self) -> LaneAdd:
        """The add of a forgotten entry with its new state; only for a schedule that `stays`."""
        group, m = self.group, self.entry
        assert self.due_ms is not None
        body, priority, claimed_ms = message.encode_retry(m), m.priority, m.ready_us // 1000
        return LaneAdd(group.name, m.uid, body, self.due_ms, epoch=group.epoch, priority=priority, since_ms=claimed_ms)

    @property
    def verdict(self) -> LaneSettle:
        group, m = self.group, self.entry
        if self.reason:
            return LaneSettle(group.name, m.uid, LaneVerdict.DEAD, group.epoch, 0, message.encode_retry(m), self.reason)
        if self.due_ms is None:
            return LaneSettle(group.name, m.uid, LaneVerdict.ACK, group.epoch)
        body = message.encode_retry(m)
        return LaneSettle(group.name, m.uid, LaneVerdict.RETRY, group.epoch, self.due_ms, body, priority=m.priority)


class Firing:
    """Takes schedules that the lane claimer found due, and adds their occurrences to their group's lane.

    In a topic that merges within a time range, the occurrences are added to slots instead, as if they were published at
    their due time.

    An occurrence is a message of its own, `<schedule's id>.<number>`, so its failures are retried apart from the
    schedule and add nothing to it. The loop first adds the occurrences to the lane. Then it settles the schedule's
    entry: it puts the entry back with the next due time, or acknowledges the entry when the schedule has ended. A crash
    in between repeats the adds. A repeated add changes nothing if the occurrence is still there, and delivers it again
    if it was handled meanwhile. After a lost answer, the host does not repeat calls for entries that it has claimed
    since (`claimed`).

    Both steps carry the group's epoch. If a group stops before the first step, the loop drops its schedules; if a group
    is lost, the loop drops its schedules at any time. Dropped schedules stay claimed in the store until the next owner
    recovers them. Once the first step may have happened, the loop still ends the turns of a stopping group; otherwise
    the next owner would publish the same occurrences again.

    A schedule that the store cannot serve now rests for a second and then goes on with its present step; schedules of
    other groups do not wait for it.
    """

    def __init__(
        self,
        lanes: LaneStore,
        slots: SortedStore,
        context: HostContext,
    ) -> None:
        self._clock = context.clock
        self._events = context.events
        self._trail = context.trail
        self._lanes = lanes
        self._slots = slots
        self._pending: deque[tuple[OwnedGroup, Message]] = deque()
        self._proven: dict[tuple[str, str], set[str]] = {}  # by group and schedule, of those that are being fired
        self._turns: dict[int, _Turn] = {}
        self._sent: dict[tuple[str, str], _Turn] = {}
        self._to_add: list[_Turn] = []
        self._to_settle: list[_Turn] = []
        self._resting = False
        self._troubles = Troubles("schedules wait")
        self._asides = Asides()
        self._something = asyncio.Event()
        self.fired = 0

    def put(self, group: OwnedGroup, m: Message) -> None:
        """Fire a schedule's entry, which was claimed from the group's lane. Returns at once."""
        self._pending.append((group, m))
        self._proven[group.name, m.uid] = set()
        self._something.set()

    def claimed(self, group: OwnedGroup, id_: str) -> None:
        """An entry of the group's lane was claimed.

        So the store has carried out the call that put the entry there, even if the answer is still missing.
        """
        if self._proven:
            if (turn := self._sent.pop((group.name, id_), None)) is not None:
                turn.proven.add(id_)
            if (proven := self._proven.get((group.name, id_.rpartition(".")[0]))) is not None:
                proven.add(id_)

    def unsettled(self, group: OwnedGroup) -> int:
        """Return the number of the group's unsettled schedules; the number falls to 0 once the group stops."""
        waiting = sum(1 for of, _ in self._pending if of is group)
        return waiting + sum(1 for turn in self._turns.values() if turn.group is group)

    async def run(self) -> None:
        """Fire the schedules that wait, a batch at a time. Ends by cancellation."""
        await self._asides.run(self._calls)

    async def _calls(self) -> list[Call]:
        await self._something.wait()
        self._take()
        if not self._pending:
            self._something.clear()
        adding, self._to_add = self._to_add, []
        settling, self._to_settle = self._to_settle, []
        parts = [[turn for turn in adding if turn.group.durability == d] for d in Durability]  # one may take seconds
        calls: list[Call] = [partial(self._fire, part, ()) for part in parts if part]
        return [*calls, partial(self._fire, (), settling)]

    # ------------------------------------------------------------------------------------------------------- details

    def _take(self) -> None:
        """Begin the turns of schedules that wait, up to a batch. An error at one keeps those whose turns have begun."""
        now_ms = self._clock.now_us() // 1000
        taken = count = size = 0
        while self._pending and taken < BATCH and count < BATCH and size < BATCH_BYTES:
            group, m = self._pending.popleft()
            turn = _turn(group, m, now_ms, self._proven.setdefault((group.name, m.uid), set()))
            self._turns[id(turn)] = turn
            self._to_add.append(turn)
            taken += 1
            count += len(turn.occurrences)
            size += len(turn.occurrences) * message.size_of(turn.entry)

    async def _fire(self, adding: Sequence[_Turn], settling: Sequence[_Turn]) -> None:
        added: Sequence[_Turn] | None = None
        try:
            added = await self._add(adding)
            await self._settle([*added, *settling])
        except BaseException as exc:  # each goes on with the step that broke
            waiting = {id(turn) for turn in (*self._to_add, *self._to_settle)}
            for turn in [turn for turn in (*adding, *settling) if id(turn) in self._turns.keys() - waiting]:
                again = added is None and turn in adding
                turn.in_doubt |= again
                self._rest(self._to_add if again else self._to_settle, turn, unexpected(exc))
            raise

    async def _add(self, turns: Sequence[_Turn]) -> list[_Turn]:
        """Add occurrences; return the turns that may be settled."""
        turns = self._kept(turns, lambda turn: turn.group.lost or (turn.group.stopping and not turn.in_doubt))
        adds_of = [turn.adds for turn in turns]
        adds = [(add, turn.group.durability) for turn, each in zip(turns, adds_of, strict=True) for add in each]
        now_ms = self._clock.now_us() // 1000
        for turn, each in zip(turns, adds_of, strict=True):
            for add in each:
                turn.sent_ms.setdefault(add.id, now_ms)
        answers = iter(await of_each_add(self._lanes.add, adds))
        placed = [(each.add, turn.group.durability) for turn in turns for each in turn.placed]
        places = iter(await of_each_add(self._slots.add, placed))
        added = []
        for turn, mine in zip(turns, adds_of, strict=True):
            of_turn: list[object] = [next(answers) for _ in mine]
            of_turn += [next(places) for _ in turn.placed]
            if failures := [answer for answer in of_turn if isinstance(answer, FAILURES)]:
                turn.in_doubt |= any(isinstance(answer, errors.OutcomeUnknown) for answer in failures)
                self._rest(self._to_add, turn, failures[0])
            elif any(isinstance(answer, errors.NotOwner) for answer in of_turn):
                self._ended(turn)
                self._events.lost(turn.group)
            else:
                added.append(turn)
                self.fired += len(turn.occurrences)
                if turn.placed:
                    self._record_placed(turn, of_turn)
                elif turn.occurrences:
                    self._record(turn)
                    self._events.due(turn.group.name, turn.occurrences[0][1])
        return added

    async def _settle(self, turns: Sequence[_Turn]) -> None:
        turns = self._kept(turns, lambda turn: turn.group.lost)
        for turn in [turn for turn in turns if turn.entry.uid in turn.proven]:
            self._ended(turn)
            turn.group.lane_settled()
        turns = [turn for turn in turns if turn.entry.uid not in turn.proven]
        self._sent.update(((turn.group.name, turn.entry.uid), turn) for turn in turns)
        answers = await of_each(self._lanes.settle([turn.verdict for turn in turns]), len(turns)) if turns else ()
        # A store that came back from a crash may have forgotten an entry. The add leaves an existing entry as it is. If
        # an unanswered call had put the entry there, and an operator has taken it back since, the add changes nothing.
        vanished = [
            turn
            for turn, answer in zip(turns, answers, strict=True)
            if answer is False and turn.stays and turn.entry.uid not in turn.proven
        ]
        added = await of_each_add(self._lanes.add, [(turn.entry_add, turn.group.durability) for turn in vanished])
        unadded = {id(turn): a for turn, a in zip(vanished, added, strict=True) if isinstance(a, FAILURES)}
        for turn, answer in zip(turns, answers, strict=True):
            answer = unadded.get(id(turn), answer)
            if isinstance(answer, FAILURES):
                self._rest(self._to_settle, turn, answer)
                continue
            if isinstance(answer, errors.NotOwner):
                self._events.lost(turn.group)
            elif turn.reason:
                log.error("schedule %s of topic %s is a dead letter: %s", turn.entry.uid, turn.entry.topic, turn.reason)
            elif turn.due_ms is not None:
                self._events.due(turn.group.name, turn.due_ms)
            self._ended(turn)  # last: a turn that an error keeps from its end is settled again
            turn.group.lane_settled()

    def _kept(self, turns: Iterable[_Turn], is_dropped: Callable[[_Turn], bool]) -> list[_Turn]:
        kept = []
        for turn in turns:
            if is_dropped(turn):
                self._ended(turn)
            else:
                kept.append(turn)
        return kept

    def _ended(self, turn: _Turn) -> None:
        key = turn.group.name, turn.entry.uid
        if self._sent.get(key) is turn:
            del self._sent[key]
        if self._proven.get(key) is turn.proven:
            del self._proven[key]
        self._troubles.well(turn.group.name)
        self._turns.pop(id(turn), None)

    def _rest(self, where: list[_Turn], turn: _Turn, failure: Failure) -> None:
        self._troubles.failed(turn.group.name, failure)
        where.append(turn)
        if not self._resting:
            self._resting = True
            asyncio.get_running_loop().call_later(UNREACHABLE_S, self._rested)

    def _rested(self) -> None:
        self._resting = False
        self._something.set()

    def _record_placed(self, turn: _Turn, answers: Sequence[object]) -> None:
        """Record occurrences in slots. A repeated add merges with the first one, unless its message was started."""
        name, now_us = turn.group.owner.topic.name, self._clock.now_us()
        for each, answer in zip(turn.placed, answers, strict=True):
            published_us, due_ms = each.due_ms * 1000, [int(each.add.score)]
            if isinstance(answer, errors.EMQError):
                log.error("schedule %s of topic %s: an occurrence was dropped: %s", turn.entry.uid, name, answer)
            elif self._trail.enabled and answer:
                published = events.Published(now_us, name, each.group, [each.id], 0, published_us, due_ms=due_ms)
                self._trail.record(published)
            elif self._trail.enabled:
                self._trail.record(events.Merged(now_us, name, each.group, [each.id], published_us))

    def _record(self, turn: _Turn) -> None:
        """Record all occurrences, also if the lane had them before: the host that added them may have crashed."""
        if not self._trail.enabled:
            return
        group, m, now_us = turn.group, turn.entry, self._clock.now_us()
        topic = group.owner.topic.name
        keys = None if m.key is None else [m.key]
        for number, due_ms in turn.occurrences:
            ids = [f"{m.uid}.{number}"]
            published = events.Published(now_us, topic, group.index, ids, m.priority, due_ms * 1000, keys=keys)
            self._trail.record(published)


def _turn(group: OwnedGroup, m: Message, now_ms: int, proven: set[str]) -> _Turn:
    try:
        schedule = spec.decode(m.schedule or b"")
        limit = max(1, min(BATCH, BATCH_BYTES // (message.size_of(m) + 1)))
        occurrences, following = course.fire(schedule, now_ms, limit)
    except Exception as exc:  # a schedule that cannot be fired must not keep others from firing
        return _Turn(group, m, (), None, proven, {}, str(exc) or repr(exc))
    if following is None:
        return _Turn(group, m, occurrences, None, proven, {})
    m.schedule = following.encode()
    return _Turn(group, m, occurrences, following.due_ms, proven, {})


def _occurrence(group: OwnedGroup, m: Message, number: int, due_ms: int) -> bytes:
    return message.encode_retry(
        Message(
            uid=f"{m.uid}.{number}",
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
    """Return when an occurrence expires, by the shorter one of the schedule's and the topic's time to live."""
    of_topic = group.owner.topic.options.ttl_s
    spans_us = [span_us for span_us in (m.expires_us, int((of_topic or 0) * 1e6)) if span_us > 0]
    return due_ms * 1000 + min(spans_us) if spans_us else 0
