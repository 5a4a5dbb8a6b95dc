"""The forwarding loop: moves due lane entries to another lane if their key belongs to another group now."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from emq.groups.context import HostContext
from emq.groups.owned import OwnedGroup
from emq.runtime import errors, plurals
from emq.storage.answers import FAILURES, of_each, of_each_add
from emq.storage.lane_store import LaneAdd, LaneSettle, LaneStore, LaneVerdict
from emq.storage.message import Message
from emq.topics.key_layouts import group_of_key
from emq.topics.model import Topic

log = logging.getLogger(__name__)

BATCH = 500

DEAD_PAGE = 1_000

UNREACHABLE_S = 1.0

AGAIN_MS = 250
"""Milliseconds until the next try for an entry that its new lane did not take."""


@dataclass(slots=True, eq=False)
class _Entry:
    """A claimed entry on its way to another lane.

    Attributes:
        to: the group that its key belongs to, by the latest look at the catalog.
        added: True if that group's lane has taken the entry, False if the entry stays, None while neither is known.
        sent_ms: when the entry was first sent to that lane, by lane.
        taken: an unanswered call had put the entry into that lane, and an operator has taken it from there.
    """

    group: OwnedGroup
    message: Message
    body: bytes
    due_ms: int
    to: int = field(init=False)
    added: bool | None = None
    sent_ms: dict[str, int] = field(default_factory=dict)
    taken: bool = False

    def __post_init__(self) -> None:
        self.to = self.group.index

    @property
    def lane(self) -> str:
        """The lane of the group that its key belongs to."""
        return self.group.owner.topic.group(self.to)

    @property
    def add(self) -> LaneAdd:
        m, since_ms = self.message, self.sent_ms.get(self.lane)
        return LaneAdd(self.lane, m.uid, self.body, self.due_ms, priority=m.priority, since_ms=since_ms)


class Forwarder:
    """Moves claimed entries to the lane of the group that their key belongs to by the topic's newest layout.

    Entries move because the number of the topic's groups has changed since they were added (see
    `emq.topics.key_layouts`). The forwarder first adds an entry to the other lane and then removes it from this one. A
    crash between the two steps leaves the entry in both lanes; the next owner forwards it again, and replaces the copy
    in the other lane.

    Two rules keep an entry from leaving both lanes:

    - An entry leaves this lane only if the other lane has taken it. A claimed entry of the same id in the other lane is
      not enough: another host, with another view of the catalog, may be about to move it to this lane.
    - The forwarder reads the catalog before it adds the entry, and again afterwards. If the other group was retired in
      between, the forwarder takes the entry back from there. The host that retires a group looks at the group's lane
      once more after the catalog has changed, so one of the two sees the entry.
    """

    def __init__(self, lanes: LaneStore, topic_now: Callable[[str], Awaitable[Topic]], context: HostContext) -> None:
        """Args:
        topic_now: reads the topic of that name from the catalog.
        """
        self._clock = context.clock
        self._events = context.events
        self._lanes = lanes
        self._topic_now = topic_now
        self._pending: deque[_Entry] = deque()
        self._batch: list[_Entry] = []
        self._something = asyncio.Event()

    def put(self, group: OwnedGroup, m: Message, body: bytes, due_ms: int) -> None:
        """Forward an entry that was claimed from the group's lane. Returns at once."""
        self._pending.append(_Entry(group, m, body, due_ms))
        self._something.set()

    def unsettled(self, group: OwnedGroup) -> int:
        """Return the number of the group's forwarded entries that have not left its lane yet."""
        return sum(entry.group is group for entry in (*self._pending, *self._batch))

    async def run(self) -> None:
        """Forward the entries that wait, a batch at a time. Ends by cancellation."""
        while True:
            await self._something.wait()
            self._batch = [self._pending.popleft() for _ in range(min(BATCH, len(self._pending)))]
            self._batch = [entry for entry in self._batch if not entry.group.lost]
            try:
                await self._forward(self._batch)
            finally:
                left, self._batch = self._batch, []
                self._pending.extend(left)
            if left:
                waiting = plurals.count(len(self._pending), "entry", "entries")
                log.warning("keys moved, and %s cannot follow yet: store or database does not answer", waiting)
                await asyncio.sleep(UNREACHABLE_S)
            if not self._pending:
                self._something.clear()

    async def _forward(self, batch: list[_Entry]) -> None:
        """Move each entry as far as the servers allow; take those that are finished out of the batch."""
        try:
            await self._add([entry for entry in batch if entry.added is None])
            await self._take_back([entry for entry in batch if entry.added and not entry.taken])
        except errors.DatabaseUnavailable:
            return
        decided = [entry for entry in batch if entry.added is not None]
        verdicts = [_leave(entry) if entry.added else _stay(entry) for entry in decided]
        answers = await of_each(self._lanes.settle(verdicts), len(verdicts)) if verdicts else ()
        for entry, answer in zip(decided, answers, strict=True):
            if isinstance(answer, FAILURES):
                continue
            batch.remove(entry)
            entry.group.lane_settled()
            entry.group.count(entry.message, -1)
            if isinstance(answer, errors.NotOwner):
                self._events.lost(entry.group)

    async def _add(self, batch: list[_Entry]) -> None:
        topics = await self._topics(batch)
        for entry in batch:
            topic = topics.get(entry.group.owner.topic.name)
            entry.to = entry.group.index if topic is None else _home(entry.message, topic)
        away = []
        for entry in batch:
            if entry.to == entry.group.index:
                entry.added = False  # the topic has changed again since the claim, or is deleted
            else:
                away.append(entry)
        if known := await self._put(away):
            # A crash or a lost answer has left a copy there. Recall the copy if it is not claimed, and add again.
            recalls = [LaneSettle(entry.lane, entry.message.uid, LaneVerdict.RECALL) for entry in known]
            answers = await of_each(self._lanes.settle(recalls), len(recalls))
            await self._put([entry for entry, answer in zip(known, answers, strict=True) if answer is True])
            for entry, answer in zip(known, answers, strict=True):
                if answer is False:
                    entry.added = await self._is_dead(entry)

    async def _is_dead(self, entry: _Entry) -> bool:
        """Return True if the other lane has the entry as a dead letter, from before a crash."""
        after = (0, "")
        with contextlib.suppress(*FAILURES):
            while page := await self._lanes.dead(entry.lane, after, DEAD_PAGE):
                if any(letter.id == entry.message.uid for letter in page):
                    return True
                after = page[-1].dead_ms, page[-1].id
        return False

    async def _put(self, batch: list[_Entry]) -> list[_Entry]:
        """Add entries to their other lanes; return the entries whose id the other lane knows already."""
        moved = [(e.add, e.group.durability) for e in batch]
        now_ms = self._clock.now_us() // 1000
        for entry in batch:
            entry.sent_ms.setdefault(entry.lane, now_ms)
        answers = await of_each_add(self._lanes.add, moved)
        for entry, answer in zip(batch, answers, strict=True):
            entry.taken = answer is None
            entry.added = None if isinstance(answer, FAILURES) else entry.taken or answer is True
        return [entry for entry, answer in zip(batch, answers, strict=True) if answer is False]

    async def _take_back(self, batch: list[_Entry]) -> None:
        """Take entries back from the lanes of groups that were retired meanwhile, to place them again."""
        topics = await self._topics(batch)
        gone = [e for e in batch if (t := topics.get(e.group.owner.topic.name)) is not None and e.to >= t.groups]
        recalls = [LaneSettle(entry.lane, entry.message.uid, LaneVerdict.RECALL) for entry in gone]
        answers = await of_each(self._lanes.settle(recalls), len(recalls)) if recalls else ()
        for entry, answer in zip(gone, answers, strict=True):
            # If the entry had left that lane, the host that retired the group has moved it, perhaps to this very lane,
            # where its id is claimed. So this entry stays: rather delivered twice than never.
            entry.added = None if answer is True or isinstance(answer, FAILURES) else False

    async def _topics(self, batch: list[_Entry]) -> dict[str, Topic]:
        """Return the entries' topics by name, as the catalog has them now, without deleted topics."""
        found: dict[str, Topic] = {}
        for name in {entry.group.owner.topic.name for entry in batch}:
            with contextlib.suppress(errors.UnknownTopic):
                found[name] = await self._topic_now(name)
        return found


def is_moved(group: OwnedGroup, m: Message) -> bool:
    """Return True if an entry of the group's lane belongs to another lane by its key."""
    topic = group.owner.topic
    return m.key is not None and not topic.is_sorted and _home(m, topic) != group.index


def _home(m: Message, topic: Topic) -> int:
    return group_of_key(m.key or "", topic.active_groups)


def _leave(entry: _Entry) -> LaneSettle:
    return LaneSettle(entry.group.name, entry.message.uid, LaneVerdict.ACK, entry.group.epoch)


def _stay(entry: _Entry) -> LaneSettle:
    """Put the entry back; the host looks at it again after `AGAIN_MS`, when catalog and other lane may have changed."""
    group, m, due_ms = entry.group, entry.message, entry.due_ms + AGAIN_MS
    return LaneSettle(group.name, m.uid, LaneVerdict.RETRY, group.epoch, due_ms, entry.body, priority=m.priority)
