"""The settle loop: sends acknowledgements, retries and dead letters to the store before the host forgets a message."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from emq.dispatch import retry
from emq.dispatch.failure_log import FailureLog
from emq.dispatch.failure_place import place_of
from emq.dispatch.settle_requests import Pending, lane_add, lane_verdict, slot_verdict
from emq.dispatch.slot_settler import Answer, Claimed, MemberSettler
from emq.dispatch.unsettled import Unsettled
from emq.groups.context import HostContext
from emq.groups.owned import OwnedGroup, OwnedSlot
from emq.groups.waiting_messages import is_by_score
from emq.runtime import errors
from emq.runtime.aside import Asides, Call
from emq.runtime.troubles import Troubles
from emq.storage import message, slot_store
from emq.storage.answers import FAILURES, Failure, of_each, of_each_add, unexpected
from emq.storage.durability import Durability
from emq.storage.lane_store import LaneStore
from emq.storage.slot_store import SortedStore
from emq.trail import events

HISTORY = 16
"""Most failed attempts that a message remembers."""


class Settler:
    """Batches acknowledgements, retries and dead letters of all groups into few calls.

    The settler first adds a message that failed in its log queue to its group's lane, and then finishes its offset. So
    a crash between the two steps repeats the message but cannot lose it. A message that failed in its slot stays there;
    a newer publish of the same member merges with it, or waits until the failed one is over. Every call may be repeated
    without harm: adding an id that is there changes nothing, and a verdict only acts on a prepared entry. Messages that
    wait here are still in flight, so the in-flight bounds limit them. If a server cannot take messages now, the settler
    sends them again after a second. A call that takes long steps aside (`emq.runtime.aside`).

    Attributes:
        members: acknowledges members of slots; leaves to this settler what the store did not carry out at once.
        refused: number of calls refused because their group has a newer owner.
    """

    def __init__(self, lanes: LaneStore, sorted_: SortedStore, context: HostContext) -> None:
        self._clock = context.clock
        self._events = context.events
        self._trail = context.trail
        self._records = context.records
        self._lanes = lanes
        self._random = random.Random()
        self._unsettled = Unsettled()
        self._sent: dict[tuple[str, str], Pending] = {}
        self._troubles = Troubles("handled messages wait to be settled")
        self._asides = Asides(None)
        self.members = MemberSettler(sorted_, context, self._troubles, self._take_over)
        self.failures = FailureLog(context.clock)
        self.retried = 0
        self.dead = 0
        self.refused = 0

    def acknowledge(self, group: OwnedGroup, m: message.Message) -> None:
        if m.member is not None:
            self.members.acknowledge(group, m)
        else:
            self._unsettled.put(Pending(group, m, None))

    def failed(self, group: OwnedGroup, m: message.Message, failure: BaseException) -> None:
        now = self._clock.now()
        decision = _decided(group, m, failure, now, self._random)._replace(place=place_of(failure))
        if m.first_us == 0:
            m.first_us = m.started_us
        m.error = decision.recorded
        m.history = [*(m.history or ())[1 - HISTORY :], (int(now * 1000), decision.reason_with_place)]
        self.failures.failed(group, m, failure, decision)
        self._unsettled.put(Pending(group, m, decision))  # last: if this method raises, the message does not wait here

    def expired(self, group: OwnedGroup, m: message.Message) -> None:
        m.error = retry.EXPIRED.reason
        self._unsettled.put(Pending(group, m, retry.EXPIRED))

    def damaged(self, group: OwnedGroup, m: message.Message, reason: str) -> None:
        m.error = reason
        self._unsettled.put(Pending(group, m, retry.Decision(None, reason, cause=events.UNFIT)))

    def claimed(self, group: OwnedGroup, id_: str) -> None:
        """An entry of the group's lane was claimed, or a member of its slot while the host had it in hand.

        So the store has carried out the call that put the entry there, even if the answer is still missing. The trail
        tells of it now, before the next start of the message.
        """
        if (pending := self._sent.pop((group.name, id_), None)) is not None:
            pending.proven = True
            if pending.decision is not None:
                self._record(pending, pending.decision)

    async def settle(self) -> None:
        """Settle the messages that wait, a batch at a time. Ends by cancellation.

        Verdicts go before adds, and a message that finds no room rests: a full server refuses adds, but adds must not
        keep the verdicts from freeing room.
        """
        await self._asides.run(self._calls)

    async def _calls(self) -> list[Call]:
        batch = await self._unsettled.next_batch()
        moving = [p for p in batch if p.moves]
        parts = (
            ([p for p in batch if p.message.member is not None and not p.moves], self._settle_slots),
            ([p for p in batch if p.message.member is None and not p.moves], self._settle_lanes),
            # Apart, since a server may wait for seconds for a replica that is gone.
            *(([p for p in moving if p.group.durability == d], self._move) for d in Durability),
        )
        calls: list[Call] = [
            partial(self._whole, call, some)
            for part, call in parts
            for some in self._troubles.apart(part, lambda pending: pending.group.name)
        ]
        self._unsettled.remove(batch)  # not before: an error on the way here must lose none
        return calls

    async def _whole(self, call: Callable[[Sequence[Pending]], Awaitable[None]], batch: Sequence[Pending]) -> None:
        """Write the records of a batch, and then settle it.

        The messages that are not settled then, for whatever reason, are sent again later: only now, since no message
        may be in two calls at once.
        """
        try:
            await self._records.written_at_last()
            await call(batch)
        except BaseException as exc:
            for pending in batch:
                if not pending.is_settled:
                    self._failed(pending, unexpected(exc))
            raise
        finally:
            self._unsettled.rest(pending for pending in batch if not pending.is_settled)

    def _take_over(self, slot: OwnedSlot, left: Sequence[tuple[Claimed, Answer]]) -> None:
        """Follow up acknowledgements of members that were sent, and that the store did not simply carry out."""
        group, resting = slot.group, list[Pending]()
        for (member, token), answer in left:
            m = message.Message(message.slot_id(group.index, member), b"", member=member, token=token)
            pending = Pending(group, m, None)
            if isinstance(answer, FAILURES):
                self._failed(pending, answer)
                resting.append(pending)
            else:
                self._done(pending, answer)
        self._unsettled.rest(resting)

    async def _settle_slots(self, batch: Sequence[Pending]) -> None:
        left = self._to_send(batch)
        settles, slots = [slot_verdict(p) for p in left], [p.slot for p in left]
        answers = await self.members.settle(settles, slots) if left else []
        for pending, answer in self._answered(left, answers):
            self._done(pending, answer)

    async def _settle_lanes(self, batch: Sequence[Pending]) -> None:
        """Send verdicts. Add a failed message again if its entry has vanished from its lane.

        If the call is a repeat, the entry may be there in another state, or an operator has taken it: then the add
        changes nothing.
        """
        left = self._to_send(batch)
        answers = await of_each(self._lanes.settle([lane_verdict(p) for p in left]), len(left)) if left else []
        vanished = []
        for pending, answer in self._answered(left, answers):
            if answer is False and pending.decision is not None:
                pending.group.lane_settled()
                pending.vanished = True
                vanished.append(pending)
            else:
                self._done(pending, answer)
        if vanished:
            await self._move(vanished)

    async def _move(self, batch: Sequence[Pending]) -> None:
        """Add messages to their lanes, and then finish them in their present places."""
        now_ms, left = self._clock.now_us() // 1000, self._to_send(batch)
        moved = [(lane_add(p, now_ms), p.group.durability) for p in left]
        added = await of_each_add(self._lanes.add, moved)
        for pending, answer in self._answered(left, [_of_add(answer) for answer in added]):
            self._done(pending, answer)

    def _to_send(self, batch: Sequence[Pending]) -> list[Pending]:
        """Return the messages to send now; those that need not be sent again are settled."""
        left: list[Pending] = []
        for pending in batch:
            if pending.must_wait:  # first: the claim under way may tell whether the verdict was carried out
                continue
            if pending.is_carried_out:
                self._done(pending, True)
            else:
                self._sent[pending.group.name, pending.message.uid] = pending
                left.append(pending)
        return left

    def _answered(
        self, sent: Sequence[Pending], answers: Sequence[Answer]
    ) -> list[tuple[Pending, bool | errors.NotOwner]]:
        """Return the messages that the store has settled, with its answers."""
        settled: list[tuple[Pending, bool | errors.NotOwner]] = []
        for pending, answer in zip(sent, answers, strict=True):
            if isinstance(answer, FAILURES):
                self._failed(pending, answer)
            else:
                settled.append((pending, answer))
        return settled

    def _failed(self, pending: Pending, failure: Failure) -> None:
        self._troubles.failed(pending.group.name, failure)
        if isinstance(failure, errors.OutcomeUnknown) and pending.message.member is not None and not pending.in_doubt:
            pending.in_doubt = True
            pending.slot.begin_doubt()

    def _done(self, pending: Pending, answer: bool | errors.NotOwner) -> None:
        group, m, decision = pending.group, pending.message, pending.decision
        pending.is_settled = True
        place = (group.name, m.uid)
        if self._sent.get(place) is pending:
            del self._sent[place]  # no claim of the message can prove more
        if pending.in_doubt:
            pending.slot.end_doubt()
        if m.member is None and not pending.moves:
            group.lane_settled()
        elif m.member is not None and group.slot is not None:
            group.slot.let_go((m.member,))
        try:
            self._follow(pending, answer)
        except Exception as bug:  # the store has settled the message, and the others of its batch must not wait
            self._events.broken("settle", group, bug)
        if decision is None:
            self._events.acknowledged(group, 1)
        elif isinstance(answer, errors.NotOwner):
            self._events.refused(group, m)
        else:
            self._events.settled(group, m)

    def _follow(self, pending: Pending, answer: bool | errors.NotOwner) -> None:
        """Count and log the outcome of a message, and plan what follows from it."""
        group, m, decision = pending.group, pending.message, pending.decision
        if self._troubles.latest:
            self._troubles.well(group.name)
        if isinstance(answer, errors.NotOwner):
            self.refused += 1
            self._events.lost(group)
        elif answer and decision is not None:
            if not pending.proven:
                self._record(pending, decision)
            if decision is retry.EXPIRED:
                self.failures.buried(group, m, decision.reason + _told(group, m))
            elif decision.cause == events.UNFIT:
                self.failures.buried(group, m, decision.reason)
            if m.member is None:
                group.lane_holds()
                if decision.due_ms is not None:
                    self._events.due(group.name, decision.due_ms)
        if group.slot is not None and decision is not None and decision.rests and decision.due_ms is not None:
            self._events.due(group.slot.address, decision.due_ms)

    def _record(self, pending: Pending, decision: retry.Decision) -> None:
        m, now_us, counts = pending.message, self._clock.now_us(), pending.group.owner.deliveries
        if decision.due_ms is None:
            self.dead += 1
            counts.count_dead(is_expired=decision is retry.EXPIRED)
            if self._trail.enabled:
                self._trail.record(events.Dead(now_us, m, decision.recorded))
        else:
            self.retried += 1
            counts.count_retried()
            if self._trail.enabled:
                self._trail.record(events.Retried(now_us, m, decision.reason, decision.due_ms))


def _of_add(answer: Answer | errors.QueueSealed | None) -> Answer:
    """Return the answer to an owner's add as that to a verdict: False if the message is over."""
    assert not isinstance(answer, errors.QueueSealed), "an owner's add is fenced instead"
    # False: an unanswered call has put the entry there already. None: an operator has taken it, so it is over.
    return answer is not None and (answer or True)


def _told(group: OwnedGroup, m: message.Message) -> str:
    """Call the topic's `on_expired`; return a text for the log line if it fails."""
    if group.owner.on_expired is not None:
        try:
            group.owner.on_expired(m)
        except (Exception, asyncio.CancelledError) as exc:  # such as the `result()` of a task that was cancelled
            return f"; its on_expired failed: {type(exc).__name__}: {exc}"
    return ""


def _decided(
    group: OwnedGroup, m: message.Message, failure: BaseException, now: float, random_: random.Random
) -> retry.Decision:
    """Decide on a message that failed now, by the rules of its topic and of where it waits."""
    options, failure = group.owner.topic.options, retry.sole(failure)
    if m.member is None or options.retry != "rmq":
        decision = retry.decide(options, m.attempt, failure, now, random_)
    else:
        decision = retry.roll_back(m.token % 1000, failure, now)
        wait_s = retry.asked_s(failure)
        if wait_s is None or decision.due_ms is None:
            return decision
        decision = decision._replace(due_ms=int((now + wait_s) * 1000))
    if decision.due_ms is None:
        return decision
    if 0 < m.expires_us < decision.due_ms * 1000:
        decision = decision._replace(due_ms=-(-m.expires_us // 1000))  # it waits no longer than it lives
    return decision if m.member is None else _in_slot(group, m, decision, now)


def _in_slot(group: OwnedGroup, m: message.Message, decision: retry.Decision, now: float) -> retry.Decision:
    """Add to the decision how a member waits in its slot for its next attempt: the score, and `rests`."""
    assert decision.due_ms is not None
    if not is_by_score(group):
        return decision._replace(score=decision.due_ms)
    score = m.score if m.score > slot_store.RETRIES else m.token % 1000
    return decision._replace(score=score, rests=decision.due_ms > now * 1000)
