"""The book of what is planned: what waits in the lanes of topics, in order of time, and taking it back."""

from __future__ import annotations

import heapq
import time
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Literal, NamedTuple

from emq import errors, message
from emq.model import Topic
from emq.schedule import spec
from emq.schedule.spec import Schedule
from emq.storage import LaneStore, Settle, Verdict, WaitingEntry
from emq.trail.sink import NullTrail, TrailSink

PAGE = 100
"""Entries of one lane that are read at a time."""

CHUNK = 3000
"""Lanes, or verdicts, in one call to the store."""

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
        self.page: list[WaitingEntry] = []
        self.at = 0
        self.read = 0

    async def turn(self, store: LaneStore) -> None:
        """Read the next page."""
        self.page = await store.waiting(self.name, self.read, PAGE)
        self.at = 0
        self.read += len(self.page)


async def find(
    store: LaneStore, topics: Sequence[Topic], *, skip: int = 0, limit: int | None = None
) -> AsyncIterator[Planned]:
    """What waits in the lanes of all groups of the topics, by due time.

    Lanes are read in pages and only as far as needed, so memory does not grow with what waits. The book is not closed
    while it is read: an entry that comes or goes meanwhile may be missing, or move others by a place.

    Args:
        skip: leave out so many at the front. They are walked over, so a late page takes longer than an early one.
        limit: most entries, None for all.

    Raises:
        StoreUnavailable: try again later.
    """
    lanes = [_Lane(topic, group) for topic in topics for group in range(topic.groups)]
    ahead: list[tuple[int, str, int]] = []
    for start in range(0, len(lanes), CHUNK):
        states = await store.inspect([lane.name for lane in lanes[start : start + CHUNK]])
        ahead += [(s.next_due_ms, "", start + i) for i, s in enumerate(states) if s.next_due_ms is not None]
    heapq.heapify(ahead)
    place = 0
    while ahead and (limit is None or place < skip + limit):
        _, _, index = heapq.heappop(ahead)
        lane = lanes[index]
        if lane.at == len(lane.page):
            # What stood for it in the heap was a bound; its true next entry may come after those of others.
            await lane.turn(store)
        else:
            entry = lane.page[lane.at]
            lane.at += 1
            place += 1
            if place > skip:
                yield _planned(lane, entry)
            if lane.at == len(lane.page) and len(lane.page) == PAGE:
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


async def recall(store: LaneStore, topic: Topic, ids: Collection[str], *, trail: TrailSink | None = None) -> set[str]:
    """Take back messages and schedules that wait for their time; answers the ids of those that did.

    Each is either taken back or delivered, never both. What is not answered was not waiting: it has started, is
    buffered on its host to start at any moment, is over, or never was; a schedule that is just being fired waits again
    a moment later. Taking back a schedule leaves the occurrences that it has published already.

    Args:
        trail: where to record it.

    Raises:
        StoreUnavailable: some may have been taken back; repeat it, those are missing from the answer then.
    """
    recalled: set[str] = set()
    distinct = list(dict.fromkeys(ids))
    wanted = [(group, message_id) for group in range(topic.groups) for message_id in distinct]
    sink = trail or NullTrail()
    for start in range(0, len(wanted), CHUNK):
        chunk = wanted[start : start + CHUNK]
        answers = await store.settle([Settle(topic.group(group), i, Verdict.RECALL) for group, i in chunk])
        for (group, message_id), answer in zip(chunk, answers, strict=True):
            if answer is True:
                recalled.add(message_id)
                sink.recalled(topic.name, group, NO_PRIORITY, [message_id], time.time_ns() // 1000)
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
