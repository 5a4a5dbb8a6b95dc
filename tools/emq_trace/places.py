"""Finds one message in the store, page by page, and changes nothing.

If the trail has a message's queue and offset, there is no search. Otherwise this pages through lanes and slots, which
takes longer the more they hold. Pages shift while hosts consume, so the search may miss a message between two states.
Queues can only be read offset by offset without disturbing their owner, so a search in them ends after `QUEUE_SEARCH`
messages.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from emq.groups.offset_tracker import OffsetTracker
from emq.observe import dead_letters
from emq.observe.dead_letters import Letter
from emq.offsets import lag
from emq.offsets.checkpoints import Checkpoint, CheckpointStore
from emq.storage import message
from emq.storage.answers import served
from emq.storage.lane_store import WaitingEntry
from emq.storage.log_store import LogStore
from emq.storage.slot_store import RETRIES, Slot, SlotKind, SlotState
from emq.storage.slot_store import Waiting as Member
from emq.storage.store import Store
from emq.topics.model import Topic
from emq.trail import events
from emq_trace.facts import Place, State, Where

PAGE = 500
QUEUE_SEARCH = 20_000
"""Most messages of a topic's queues that are looked at, one by one, if the offset is not known."""
AT_ONCE = 50

Progress = Callable[[int, int], None]
"""Called with the number of messages looked at so far, and about how many there are."""


class Finder:
    """Looks for one message of a topic.

    Args:
        message_id: as it was published; its copies in lanes are found, too.
        by_identity: `message_id` is the identity of one message.
        now_ms: decides what is due.
    """

    def __init__(
        self,
        store: Store,
        checkpoints: CheckpointStore,
        topic: Topic,
        message_id: str,
        now_ms: int,
        on_progress: Progress = lambda _done, _all: None,
        *,
        by_identity: bool = False,
    ) -> None:
        self._store = store
        self._checkpoints = checkpoints
        self._topic = topic
        self._id = message_id
        self._by_identity = by_identity
        self._now_ms = now_ms
        self._on_progress = on_progress

    # ----------------------------------------------------------------------------------------------------------- queues

    async def at_offset(self, group: int, priority: int, offset: int) -> Place:
        """The message of a known offset: still in its queue, or finished there."""
        queues = self._topic.queues(group)
        queue = queues[priority]
        [bounds] = served(await self._store.log.bounds([queue]))
        saved = (await self._checkpoints.load([queue])).get(queue, Checkpoint(queue, 0, bounds.head))
        start = max(bounds.head, saved.watermark)
        finished = offset < start or OffsetTracker(saved.watermark, saved.finished).is_finished(offset)
        where, name = (group, self._id, offset), self._topic.priorities[priority]
        if finished or offset >= bounds.tail:
            return Place(Where.QUEUE, State.FINISHED, queue, *where, priority=name)
        ahead, above = saved.unfinished(bounds.head, offset), await self._unfinished(queues[:priority])
        return Place(Where.QUEUE, State.WAITING, queue, *where, priority=name, ahead=ahead, above=above)

    async def in_queues(self) -> tuple[Place | None, bool]:
        """Search the unfinished part of every queue; the second answer is whether all of it was looked at."""
        log, topic = self._store.log, self._topic
        places = [(g, p) for g in range(topic.groups) for p in range(len(topic.priorities))]
        queues = [topic.queue(g, p) for g, p in places]
        saved = await self._checkpoints.load(queues)
        left = QUEUE_SEARCH
        for (group, priority), queue, bounds in zip(places, queues, served(await log.bounds(queues)), strict=True):
            checkpoint = saved.get(queue)
            start = bounds.head if checkpoint is None else max(bounds.head, checkpoint.watermark)
            end = min(bounds.tail, start + left)
            offset = await self._search(log, queue, range(start, end))
            if offset is not None:
                return await self.at_offset(group, priority, offset), True
            left -= end - start
            if end < bounds.tail:
                return None, False
        return None, True

    async def _search(self, log: LogStore, queue: str, offsets: range) -> int | None:
        for start in range(offsets.start, offsets.stop, AT_ONCE):
            self._on_progress(start - offsets.start, len(offsets))
            part = offsets[start - offsets.start :][:AT_ONCE]
            bodies = await asyncio.gather(*(log.get(queue, offset) for offset in part))
            for offset, body in zip(part, bodies, strict=True):
                if body is not None and (m := _decoded(body)) is not None and self._is(m.uid):
                    return offset
        return None

    async def _unfinished(self, queues: Sequence[str]) -> int:
        return sum(await lag.unfinished(self._store.log, self._checkpoints, queues)) if queues else 0

    # ------------------------------------------------------------------------------------------------------------ lanes

    async def in_lanes(self, groups: Iterable[int]) -> Place | None:
        """Search the lanes of these groups: waiting entries, then dead letters, then claimed entries."""
        claimed = None
        for group in groups:
            name = self._topic.group(group)
            [state] = served(await self._store.lanes.inspect([name]))
            place = await self._waiting(group, state.waiting) if state.waiting else None
            if place is None and state.dead:
                letters = dead_letters.in_lane(self._store.lanes, self._topic, group)
                place = await self._dead(Where.LANE, name, letters, state.dead)
            if place is not None:
                return place
            if state.prepared:
                claimed = claimed or Place(Where.LANE, State.CLAIMED, name, group)
        return claimed

    async def _waiting(self, group: int, total: int) -> Place | None:
        name, skip = self._topic.group(group), 0
        ready: Counter[int] = Counter()
        while page := await self._store.lanes.waiting(name, skip, PAGE):
            for entry in page:
                if self._is(entry.id):
                    return await self._in_lane(group, entry, ready)
                if entry.due_ms <= self._now_ms and (m := _decoded(entry.body)) is not None:
                    ready[m.priority] += 1
            skip += len(page)
            self._on_progress(skip, max(skip, total))
        return None

    async def _in_lane(self, group: int, entry: WaitingEntry, ready: Counter[int]) -> Place:
        m = _decoded(entry.body) or message.Message(entry.id, b"")
        names = self._topic.priorities
        higher = self._topic.queues(group)[: m.priority]
        due = entry.due_ms <= self._now_ms
        return Place(
            Where.LANE,
            State.WAITING,
            self._topic.group(group),
            group,
            entry.id,
            due_ms=entry.due_ms,
            priority=names[min(m.priority, len(names) - 1)] if names else "",
            attempt=m.attempt,
            error=m.error or "",
            ahead=ready[m.priority],
            above=sum(n for p, n in ready.items() if p < m.priority) + await self._unfinished(higher) if due else 0,
            recurring=m.schedule is not None,
        )

    async def _dead(
        self, where: Where, name: str, letters: AsyncIterator[tuple[Letter, object]], total: int
    ) -> Place | None:
        seen = 0
        async for letter, _ in letters:
            if self._is(letter.uid):
                error, since_ms = letter.reason, letter.dead_ms
                return Place(where, State.DEAD, name, letter.group, letter.uid, error=error, since_ms=since_ms)
            seen += 1
            if seen % PAGE == 0:
                self._on_progress(seen, max(seen, total))
        return None

    def _is(self, entry_id: str) -> bool:
        return events.is_named(entry_id, self._id, by_identity=self._by_identity)

    # ------------------------------------------------------------------------------------------------------------ slots

    async def in_slot(self) -> Place | None:
        """Search the slot of the id: waiting members, then dead ones, then whether any is claimed.

        None also if the id belongs to no slot of the topic.
        """
        index, _, digest = self._id.partition("-")
        if not (index.isascii() and index.isdigit() and digest) or int(index) >= self._topic.slots:
            return None
        group, slot = int(index), self._topic.slot(int(index))
        [state] = served(await self._store.sorted.inspect([slot], self._now_ms))
        place = await self._waiting_member(group, slot, state)
        if place is None and state.dead:
            letters = dead_letters.in_slot(self._store.sorted, self._topic, group)
            place = await self._dead(Where.SLOT, slot.name, letters, state.dead)
        if place is None and state.prepared:
            return Place(Where.SLOT, State.CLAIMED, slot.name, group)
        return place

    async def _waiting_member(self, group: int, slot: Slot, state: SlotState) -> Place | None:
        position, score_from, score = 0, 0, math.nan
        while state.waiting and (page := await self._store.sorted.waiting(slot, position, PAGE)):
            for member in page:
                if member.score != score:
                    score_from, score = position, member.score
                if message.slot_id(group, member.member) == self._id:
                    return self._in_slot(group, slot, member, position, score_from)
                position += 1
            self._on_progress(position, max(position, state.waiting))
        return None

    def _in_slot(self, group: int, slot: Slot, member: Member, position: int, score_from: int) -> Place:
        """Args:
        position: in the order of claims, from 0.
        score_from: position of the first member with the same score.
        """
        retry = member.score <= RETRIES
        by_priority = slot.kind is SlotKind.PRIORITY
        return Place(
            Where.SLOT,
            State.WAITING,
            slot.name,
            group,
            self._id,
            due_ms=None if by_priority or retry else self._due_ms(member.score),
            priority=f"{member.score:g}" if by_priority and not retry else "",
            attempt=RETRIES + 2 - max(1, int(member.score)) if retry else 1,
            ahead=position - score_from if by_priority else position,
            above=score_from if by_priority else 0,
        )

    def _due_ms(self, score: float) -> int:
        if self._topic.kind == "fixed_time" and self._topic.options.precision == "second":
            return math.ceil(score / 1000) * 1000
        return math.ceil(score)


def _decoded(body: bytes) -> message.Message | None:
    try:
        return message.decode(body)
    except message.UNREADABLE:
        return None
