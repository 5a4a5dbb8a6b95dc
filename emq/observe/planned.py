"""The book of planned messages: lists the messages that wait in topics' lanes, by due time, or finds them by id."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Literal, NamedTuple

from emq.runtime import errors
from emq.storage import message
from emq.storage.answers import served
from emq.storage.lane_store import MOST_FOUND, Asked, EntryState, LaneStore, WaitingEntry
from emq.timetable import schedule as spec
from emq.timetable.schedule import Schedule
from emq.topics.model import Topic

PAGE = 100
"""Most entries of one lane that are read at a time."""

CHUNK = 3000
"""Most lanes, or verdicts, in one call to the store."""

OPEN_BYTES = 32 << 20
"""Most bytes of bodies in the open pages of all lanes, not counting the page that was read last."""

LISTED_BYTES = 64 << 20
"""Most bytes of payloads in one list, for callers that ask for a list."""

Kind = Literal["delayed", "every", "cron", "retry"]


class Planned(NamedTuple):
    """A message or schedule that waits for its time.

    Attributes:
        topic, group, priority: the place to which it belongs; `priority` is a name, or "-" if the topic has no priority
            names.
        id, key, payload: those of the message.
        uid: the message's identity, which differs from `id` if the publisher chose the id.
        due_ms: milliseconds since the epoch; in the past if its group cannot keep up, or no host consumes it.
        kind: "delayed" (also a dead letter that was put back), "retry", or, for a schedule, "every" or "cron".
        attempts: deliveries so far.
        text: for a schedule, the schedule in words; for a retry, the error.
        schedule: the schedule, for kinds "every" and "cron"; else None.
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
    uid: str


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
        """Bytes of the page's bodies that were not yielded yet."""
        return sum([len(entry.body) for entry in self.page[self.at :]])

    async def turn(self, store: LaneStore) -> None:
        """Read the next page."""
        self.page = await store.waiting(self.name, self.read, PAGE)
        self.at = 0
        self.read += len(self.page)

    def forget(self) -> None:
        """Drop the rest of the page; the lane reads it again when its turn comes."""
        self.read -= len(self.page) - self.at
        self.page, self.at = [], 0


class _Desk:
    """The open pages. When they are too large together, the desk puts away the pages that come last."""

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
        # `_bytes` still counts the entries that were taken from the pages since, so count again.
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
    """Yield the entries that wait in the lanes of all groups of the topics, by due time.

    Lanes are read in pages, only as far as needed, and open pages are bounded in bytes, so memory does not grow with
    the number of entries. An entry that comes or goes during the reading may be missing, or shift others by one place.

    Args:
        store: the store of lanes.
        topics: the topics to list.
        skip: number of entries to leave out at the front. They are still read, so a late page takes longer.
        limit: most entries, None for all.
        max_bytes: end with the entry that brings the payloads to this many bytes; None for no bound.

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
            # The lane's item in the heap was only a lower bound; its true next entry may come after other lanes'.
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


async def get(store: LaneStore, topic: Topic, message_id: str, *, by_identity: bool = False) -> Planned | None:
    """Return one waiting entry, or None. Searches all lanes of the topic, because an id does not tell its group.

    Args:
        by_identity: `message_id` is the entry's identity; else its id, of which several entries may wait.
    """
    async for planned in find(store, [topic]):
        if message_id == (planned.uid if by_identity else planned.id):
            return planned
    return None


class Named(NamedTuple):
    """An entry that an id or an identity names.

    Attributes:
        id: the id or identity, as it was asked for.
        uid: the entry's identity.
    """

    group: int
    id: str
    uid: str
    state: EntryState


async def named(
    store: LaneStore, topic: Topic, ids: Collection[str], *states: EntryState, by_identity: bool = False
) -> AsyncIterator[list[Named]]:
    """Find the entries of a topic's lanes by id, in these states; yield some thousand at a time.

    Args:
        by_identity: `ids` are identities; each names one entry.

    Raises:
        StoreUnavailable: try again later.
    """
    left = deque((group, Asked(topic.group(group), id_)) for group in range(topic.groups) for id_ in dict.fromkeys(ids))
    while left:
        chunk = [left.popleft() for _ in range(min(CHUNK, len(left)))]
        found = served(await store.find([asked for _, asked in chunk]))
        hits = [
            Named(group, asked.id, entry.id, entry.state)
            for (group, asked), entries in zip(chunk, found, strict=True)
            for entry in entries
            if entry.state in states and asked.id == (entry.id if by_identity else message.label(entry.id))
        ]
        for (group, asked), entries in zip(chunk, found, strict=True):
            if len(entries) >= MOST_FOUND:
                left.append((group, asked._replace(after=entries[-1].id)))
        if hits:
            yield hits


def _planned(lane: _Lane, entry: WaitingEntry) -> Planned:
    try:
        m = message.decode(entry.body)
    except message.UNREADABLE:
        m = message.Message(uid=entry.id, payload=bytes(entry.body))
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
    id_ = message.label(entry.id)
    return Planned(*where, id_, m.key, m.payload, entry.due_ms, kind, attempts, text, schedule, entry.id)
