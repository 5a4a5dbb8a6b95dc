"""The book of what is planned: what waits in the lanes of topics, in order of time, and taking it back."""

from __future__ import annotations

import heapq
import math
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Literal, NamedTuple

from emq import errors, message
from emq.clock import Clock, SystemClock
from emq.schedule import schedule as spec
from emq.schedule.schedule import Schedule
from emq.storage.answers import served
from emq.storage.store import LaneStore, Settle, Verdict, WaitingEntry
from emq.topics.model import Topic
from emq.trail.sink import NullTrail, TrailSink

PAGE = 100
"""Entries of one lane that are read at a time."""

CHUNK = 3000
"""Lanes, or verdicts, in one call to the store."""

OPEN_BYTES = 32 << 20
"""Most bytes of bodies in the open pages of all lanes, beside the page that is read last."""

LISTED_BYTES = 64 << 20
"""Most bytes of payloads in one list, where somebody asks for a list."""

NO_PRIORITY = -1
"""In the trail: the priority of what was taken back without having been looked at."""

Kind = Literal["delayed", "every", "cron", "retry"]


class Planned(NamedTuple):
    """Something that waits for its time.

    Attributes:
        topic, group, priority: where it belongs; `priority` is a name, "-" for a topic without names for them.
        id, key, payload: of the message.
        due_ms: milliseconds since the epoch; in the past if its group cannot keep up, or nobody consumes it.
        kind: "delayed" (also a dead letter that was put back), "retry", or, of a schedule, "every" or "cron".
        attempts: deliveries so far.
        text: of a schedule, what it is; of a retry, what failed.
        schedule: of "every" and "cron"; else None.
    """

    topic: str
    group: int
    priority: str
    id: str
    key: str | None
    payload: bytes
    due_ms: int
    kind: Kind
    attempts: int
    text: str
    schedule: Schedule | None


class _Lane:
    """A lane on its way through the book."""

    def __init__(self, topic: Topic, group: int) -> None:
        self.topic = topic
        self.group = group
        self.name = topic.group(group)
        self.waiting = 0
        self.page: list[WaitingEntry] = []
        self.at = 0
        self.read = 0

    @property
    def held_bytes(self) -> int:
        """Of the bodies that are still to be told of."""
        return sum([len(entry.body) for entry in self.page[self.at :]])

    async def turn(self, store: LaneStore) -> None:
        """Read the next page."""
        self.page = await store.waiting(self.name, self.read, PAGE)
        self.at = 0
        self.read += len(self.page)

    def forget(self) -> None:
        """Drop the rest of the page; it is read again when its turn comes."""
        self.read -= len(self.page) - self.at
        self.page, self.at = [], 0


class _Desk:
    """The pages that lie open, of which those are put away that come last when they are too large together."""

    def __init__(self, lanes: Sequence[_Lane]) -> None:
        self._lanes = lanes
        self._open: set[int] = set()
        self._bytes = 0

    async def turn(self, index: int, store: LaneStore) -> None:
        lane = self._lanes[index]
        await lane.turn(store)
        self._open.add(index)
        self._bytes += lane.held_bytes
        if self._bytes <= OPEN_BYTES:
            return
        # What was taken from the pages since is not counted off one by one.
        open_pages = [(i, self._lanes[i]) for i in self._open if i != index]
        self._bytes = lane.held_bytes + sum(other.held_bytes for _, other in open_pages)
        self._open = {index, *(i for i, other in open_pages if other.at < len(other.page))}
        last_first = sorted(self._open - {index}, key=lambda i: self._lanes[i].page[-1].due_ms, reverse=True)
        for i in last_first:
            if self._bytes <= OPEN_BYTES // 2:
                break
            self._bytes -= self._lanes[i].held_bytes
            self._lanes[i].forget()
            self._open.discard(i)


async def find(
    store: LaneStore, topics: Sequence[Topic], *, skip: int = 0, limit: int | None = None, max_bytes: int | None = None
) -> AsyncIterator[Planned]:
    """What waits in the lanes of all groups of the topics, by due time.

    Lanes are read in pages and only as far as needed, and open pages are bounded in bytes, so memory does not grow with
    what waits. The book is not closed while it is read: an entry that comes or goes meanwhile may be missing, or move
    others by a place.

    Args:
        skip: leave out so many at the front. They are walked over, so a late page takes longer than an early one.
        limit: most entries, None for all.
        max_bytes: end with the entry that brings the payloads to so many bytes; None for no such bound.

    Raises:
        StoreUnavailable: try again later.
    """
    lanes = [_Lane(topic, group) for topic in topics for group in range(topic.groups)]
    desk = _Desk(lanes)
    ahead: list[tuple[int, str, int]] = []
    for start in range(0, len(lanes), CHUNK):
        states = served(await store.inspect([lane.name for lane in lanes[start : start + CHUNK]]))
        for index, state in enumerate(states, start):
            lanes[index].waiting = state.waiting
            if state.next_due_ms is not None:
                ahead.append((state.next_due_ms, "", index))
    heapq.heapify(ahead)
    place, left_bytes = 0, max_bytes or math.inf
    while ahead and (limit is None or place < skip + limit) and left_bytes > 0:
        _, _, index = heapq.heappop(ahead)
        lane = lanes[index]
        if lane.at == len(lane.page):
            # What stood for it in the heap was a bound; its true next entry may come after those of others.
            await desk.turn(index, store)
        else:
            entry = lane.page[lane.at]
            lane.at += 1
            place += 1
            if place > skip:
                planned = _planned(lane, entry)
                left_bytes -= len(planned.payload)
                yield planned
            if lane.at == len(lane.page) and lane.read < lane.waiting:
                heapq.heappush(ahead, (entry.due_ms, entry.id, index))
        if lane.at < len(lane.page):
            following = lane.page[lane.at]
            heapq.heappush(ahead, (following.due_ms, following.id, index))


async def get(store: LaneStore, topic: Topic, message_id: str) -> Planned | None:
    """One entry that waits, or None. It is searched for, since only its group's lane knows it."""
    async for planned in find(store, [topic]):
        if planned.id == message_id:
            return planned
    return None


async def recall(
    store: LaneStore, topic: Topic, ids: Collection[str], *, trail: TrailSink | None = None, clock: Clock | None = None
) -> set[str]:
    """Take back messages and schedules that wait for their time; answers the ids of those that did.

    Each is either taken back or delivered, never both. What is not answered was not waiting: it has started, is
    buffered on its host to start at any moment, is over, or never was; a schedule that is just being fired waits again
    a moment later. Taking back a schedule leaves the occurrences that it has published already.

    Args:
        trail, clock: where to record it, and with which time.

    Raises:
        StoreUnavailable: some may have been taken back; repeat it, those are missing from the answer then.
    """
    recalled: set[str] = set()
    distinct = list(dict.fromkeys(ids))
    wanted = [(group, message_id) for group in range(topic.groups) for message_id in distinct]
    sink, clock = trail or NullTrail(), clock or SystemClock()
    for start in range(0, len(wanted), CHUNK):
        chunk = wanted[start : start + CHUNK]
        answers = await store.settle([Settle(topic.group(group), i, Verdict.RECALL) for group, i in chunk])
        for (group, message_id), answer in zip(chunk, answers, strict=True):
            if answer is True:
                recalled.add(message_id)
                sink.recalled(topic.name, group, NO_PRIORITY, [message_id], clock.now_us())
        served(answers)
    return recalled


def _planned(lane: _Lane, entry: WaitingEntry) -> Planned:
    try:
        m = message.decode(entry.body)
    except message.UNREADABLE:
        m = message.Message(id=entry.id, payload=bytes(entry.body))
    names = lane.topic.priorities
    priority = names[min(m.priority, len(names) - 1)] if names else "-"
    kind: Kind = "delayed"
    text, schedule = "", None
    if m.schedule is not None:
        kind = "every"
        try:
            schedule = spec.decode(m.schedule)
            kind, text = "cron" if schedule.cron else "every", str(schedule)
        except errors.InvalidMessage as exc:
            text = str(exc)
    elif m.attempt > 1:
        kind, text = "retry", m.error or ""
    attempts = m.attempt - 1
    where = (lane.topic.name, lane.group, priority)
    return Planned(*where, entry.id, m.key, m.payload, entry.due_ms, kind, attempts, text, schedule)
