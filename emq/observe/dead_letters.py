"""Dead letters: look at them, put them back, or throw them away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import NamedTuple

from emq.producer.scores import score_of
from emq.runtime import errors, inputs
from emq.runtime.clock import Clock
from emq.storage import message, reasons, slot_store
from emq.storage.answers import served
from emq.storage.lane_store import DeadEntry, LaneSettle, LaneStore, LaneVerdict
from emq.storage.slot_store import RETRIES, DeadMember, SortedStore
from emq.storage.store import Store
from emq.topics.model import Kind, Topic
from emq.trail import events
from emq.trail.sink import NullTrail, TrailSink

PAGE = 500

LOWEST_PRIORITY = RETRIES + 1

EXPIRED = "expired"

NO_TRAIL = NullTrail()


class Attempt(NamedTuple):
    """A failed attempt.

    Attributes:
        at_ms: when it failed, milliseconds since the epoch.
        reason: its error.
        place: where the handler failed, `file:line in function`; empty if unknown, as for an HTTP push.
    """

    at_ms: int
    reason: str
    place: str = ""


class Letter(NamedTuple):
    """Attributes:
    topic, group, priority: the place to which the letter belongs; `priority` is a name, or "-" in a sorted topic.
    id, payload, attempts: those of the message.
    uid: the message's identity, which differs from `id` if the publisher chose the id; see `Selection.uids`.
    reason: the error of the last attempt.
    dead_ms: time of death, milliseconds since the epoch.
    history: its failed attempts, the last 16 at most.
    """

    topic: str
    group: int
    priority: str
    id: str
    payload: bytes
    attempts: int
    reason: str
    dead_ms: int
    history: tuple[Attempt, ...] = ()
    uid: str = ""


class Selection(NamedTuple):
    """Conditions that select dead letters; all given conditions must hold.

    Attributes:
        since_ms, until_ms: the time of death is in [since_ms, until_ms).
        reason: part of the reason, in upper or lower case.
        ids: message ids. An id selects all letters that have it.
    uids: identities of messages (`Letter.uid`). Each selects one letter. Empty, as `ids`, for all letters.
    """

    since_ms: int = 0
    until_ms: int = 1 << 62
    reason: str = ""
    ids: frozenset[str] = frozenset()
    uids: frozenset[str] = frozenset()

    def matches(self, letter: Letter) -> bool:
        return (
            self.since_ms <= letter.dead_ms < self.until_ms
            and self.reason.lower() in letter.reason.lower()
            and (not (self.ids or self.uids) or letter.id in self.ids or letter.uid in self.uids)
        )


EVERY = Selection()


async def find(store: Store, topic: Topic, selection: Selection = EVERY) -> AsyncIterator[Letter]:
    """Yield the topic's selected dead letters, group by group, oldest first in each; reads them in pages."""
    async for letter, _ in _find(store, topic, selection):
        yield letter


async def replay(
    store: Store,
    topic: Topic,
    selection: Selection = EVERY,
    *,
    clock: Clock,
    rate_per_s: float | None = None,
    priority: float | None = None,
    on_replayed: Callable[[int], None] = lambda _: None,
    trail: TrailSink = NO_TRAIL,
) -> int:
    """Deliver dead letters again, as first attempts at their own priority; returns how many.

    Each letter moves from dead to waiting in one step, so an interrupted replay neither loses nor doubles a letter.
    The exception is a member that would expire again at once: it is added as a new member before it leaves the dead.

    Args:
        store: the environment's store.
        topic: the topic whose letters are replayed.
        selection: the letters to replay.
        clock: keeps the time by which the store stamps dead letters: the environment's.
        rate_per_s: most letters put back in a second, so that a large replay does not crowd out new messages; the
            letters also count against the topic's quota. None for no limit of its own.
        priority: for topics of kind priority, whose slots do not keep the priority of failed members; above 16. None
            for the lowest.
        on_replayed: called with the number so far.
        trail: records each letter as replayed, with the time just before it was put back.

    Raises:
        InvalidMessage: the priority is out of range, or the topic is of another kind.
    """
    check_priority(topic, priority)
    count, started = 0, time.monotonic()
    now_ms = clock.now_us() // 1000
    # A message that dies again during the replay is not replayed twice.
    selection = selection._replace(until_ms=min(selection.until_ms, now_ms + 1))
    async for letter, dead in _find(store, topic, selection):
        now = clock.now()
        if isinstance(dead, DeadMember):
            score = _score(topic, priority, now)
            done = await _put_back(store.sorted, topic, dead, score, int(now * 1e6))
            index = 0
        else:
            m = _decoded(dead)
            m.attempt, m.error, m.topic, m.history, m.expires_us = 1, None, topic.name, None, 0
            body, index = message.encode_retry(m), m.priority
            replay = LaneSettle(dead.lane, dead.id, LaneVerdict.REPLAY, None, int(now * 1000), body, priority=index)
            [answer] = served(await store.lanes.settle([replay]))
            done = answer is True
        if done:
            count += 1
            trail.record(events.Replayed(int(now * 1e6), topic.name, letter.group, index, letter.uid))
        on_replayed(count)
        if rate_per_s is not None:
            await asyncio.sleep(max(0.0, started + count / rate_per_s - time.monotonic()))
    return count


async def _put_back(store: SortedStore, topic: Topic, dead: DeadMember, score: float, now_us: int) -> bool:
    """Let a dead member wait again, in one step. If it would expire again at once, add it as a new member first.

    The new member counts as one message. (A fold that counts would count its body again, so with such a fold the member
    moves in one step.)
    """
    told = message.decode_note(dead.note)
    ends = bool(told.expires_us) or (topic.kind is Kind.PRIORITY and topic.options.ttl_s is not None)
    verdict = slot_store.SlotSettle(dead.slot, dead.member, slot_store.SlotVerdict.REPLAY, score=score, fold=topic.fold)
    if dead.slot.apart and ends and topic.fold.name != "count":
        note = message.encode_note(message.Note(told.key, now_us, told.headers))
        add = slot_store.SlotAdd(dead.slot, dead.member, score, topic.keep, dead.body, note, topic.fold)
        [added] = served(await store.add([add], topic.options.durability))
        if isinstance(added, errors.EMQError):
            raise added
        verdict = slot_store.SlotSettle(dead.slot, dead.member, slot_store.SlotVerdict.PURGE)
    [done] = served(await store.settle([verdict]))
    return done is True


def check_priority(topic: Topic, priority: float | None) -> None:
    """Raise `InvalidMessage` if letters of the topic cannot be replayed at this priority; None fits every topic."""
    if priority is not None:
        inputs.number("priority", priority)
    if priority is not None and topic.kind is not Kind.PRIORITY:
        own = "its letters go by time" if topic.is_sorted else "its letters keep their own"
        raise errors.InvalidMessage(
            f"priority {priority:g} is for topics of kind priority; {topic.name!r} is of kind {topic.kind}: {own}"
        )
    _score(topic, priority, time.time())


def check_rate(rate_per_s: float | None) -> None:
    """Raise `InvalidMessage` if a replay cannot have this rate."""
    if rate_per_s is not None and not inputs.number("rate_per_s", rate_per_s) > 0:
        raise errors.InvalidMessage(f"rate_per_s {rate_per_s:g} must be above 0")


def check_selection(selection: object) -> None:
    """Raise `InvalidMessage` if this is not a `Selection`, or its ids or uids are one text instead of a set."""
    if not isinstance(selection, Selection):
        raise errors.InvalidMessage(
            f"selection {inputs.shown(selection)} must be an emq.Selection, such as emq.Selection(reason='timeout')"
        )
    for name, given in (("ids", selection.ids), ("uids", selection.uids)):
        if isinstance(given, str):
            raise errors.InvalidMessage(f"{name} {inputs.shown(given)} must be a set of message {name}")


def _score(topic: Topic, priority: float | None, now: float) -> float:
    """Return the score with which a letter of a slot waits again."""
    if topic.kind is not Kind.PRIORITY:
        return int(now * 1000)
    return score_of(topic, LOWEST_PRIORITY if priority is None else priority, None, None, int(now * 1e6))


async def purge(store: Store, topic: Topic, selection: Selection = EVERY) -> int:
    """Throw dead letters away for good; returns how many."""
    count = 0
    async for _, dead in _find(store, topic, selection):
        if isinstance(dead, DeadMember):
            [gone] = served(
                await store.sorted.settle([slot_store.SlotSettle(dead.slot, dead.member, slot_store.SlotVerdict.PURGE)])
            )
        else:
            verdict = LaneSettle(dead.lane, dead.id, LaneVerdict.PURGE, for_good=True)
            [gone] = served(await store.lanes.settle([verdict]))
        count += gone is True
    return count


async def _find(
    store: Store, topic: Topic, selection: Selection
) -> AsyncIterator[tuple[Letter, DeadEntry | DeadMember]]:
    for group in range(topic.groups):
        async for letter, dead in in_lane(store.lanes, topic, group, selection):
            if selection.matches(letter):
                yield letter, dead
        if topic.is_sorted:
            async for of_slot, member in in_slot(store.sorted, topic, group, selection):
                if selection.matches(of_slot):
                    yield of_slot, member


async def in_lane(
    store: LaneStore, topic: Topic, group: int, selection: Selection = EVERY
) -> AsyncIterator[tuple[Letter, DeadEntry]]:
    """Yield the letters in the lane of a group, oldest first; the selection only bounds their time."""
    after = (max(0, selection.since_ms - 1), "\U0010ffff") if selection.since_ms else (0, "")
    while page := await store.dead(topic.group(group), after, PAGE):
        after = (page[-1].dead_ms, page[-1].id)
        for dead in page:
            yield letter_of(topic, group, dead), dead
        if page[-1].dead_ms >= selection.until_ms:
            return


def letter_of(topic: Topic, group: int, dead: DeadEntry) -> Letter:
    """Return the letter of an entry in the lane of a group."""
    m, names = _decoded(dead), topic.priorities
    name = names[min(m.priority, len(names) - 1)] if names else "-"
    history = _attempts(m.history or ())
    id_ = message.label(dead.id)
    return Letter(topic.name, group, name, id_, m.payload, m.attempt, dead.reason, dead.dead_ms, history, dead.id)


async def in_slot(
    store: SortedStore, topic: Topic, group: int, selection: Selection = EVERY
) -> AsyncIterator[tuple[Letter, DeadMember]]:
    """Yield the letters in a slot, as `in_lane`."""
    after = (max(0, selection.since_ms - 1), b"\xff" * 64) if selection.since_ms else (0, b"")
    while page := await store.dead(topic.slot(group), after, PAGE):
        after = (page[-1].dead_ms, page[-1].member)
        for dead in page:
            id_ = message.slot_id(group, dead.member)
            history = _attempts((*dead.history, (dead.dead_ms, dead.reason)))
            attempts, reason = sum(each.reason != EXPIRED for each in history), history[-1].reason
            yield Letter(topic.name, group, "-", id_, dead.body, attempts, reason, dead.dead_ms, history, id_), dead
        if page[-1].dead_ms >= selection.until_ms:
            return


def _attempts(history: Iterable[tuple[int, str]]) -> tuple[Attempt, ...]:
    return tuple(Attempt(at_ms, *reasons.parted(reason)) for at_ms, reason in history)


def _decoded(dead: DeadEntry) -> message.Message:
    try:
        return message.decode(dead.body)
    except message.UNREADABLE:
        return message.Message(uid=dead.id, payload=bytes(dead.body))
