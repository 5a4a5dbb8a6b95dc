"""The forwarding loop: hands on what is due in a lane of a key whose group is another one now."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from emq import errors
from emq.groups.owned import OwnedGroup
from emq.message import Message
from emq.storage.answers import FAILURES, of_each
from emq.storage.store import Add, LaneStore, Settle, Verdict
from emq.topics.key_layouts import group_of_key
from emq.topics.model import Topic

log = logging.getLogger(__name__)

BATCH = 500

DEAD_PAGE = 1_000

UNREACHABLE_S = 1.0

AGAIN_MS = 250
"""When an entry is looked at again that its new lane did not take."""


class _Entry:
    """A claimed entry on its way.

    Attributes:
        to: the group that its key belongs to, by the catalog as it was read last.
        added: that group's lane has it; False where the entry stays; None while neither is known.
    """

    __slots__ = ("added", "body", "due_ms", "group", "message", "to")

    def __init__(self, group: OwnedGroup, m: Message, body: bytes, due_ms: int) -> None:
        self.group = group
        self.message = m
        self.body = body
        self.due_ms = due_ms
        self.to = group.index
        self.added: bool | None = None

    @property
    def lane(self) -> str:
        """The lane of the group that its key belongs to."""
        return self.group.owner.topic.group(self.to)


class Forwarder:
    """Moves claimed entries to the lane of the group that their key belongs to by the topic's newest layout.

    The number of a topic's groups has changed since the entry was added (see `emq.topics.key_layouts`). The entry is
    added to the other lane first and leaves this one after that. A crash between the two leaves it in both; the next
    owner forwards it again, and what waits there is then replaced.

    Two rules keep an entry from leaving both lanes:

    - It leaves this one only if the other lane has taken it. An entry of that id that is claimed there may itself be on
      its way here, by another host's view of the catalog, and about to leave.
    - The catalog is read before the entry is added, and again after that. If the other group has been retired in
      between, the entry is taken back from there. Whoever retires a group looks at its lane once more after the catalog
      has changed, so one of the two sees the entry.
    """

    def __init__(
        self,
        lanes: LaneStore,
        *,
        topic_now: Callable[[str], Awaitable[Topic]],
        on_lost: Callable[[OwnedGroup], None],
    ) -> None:
        """Args:
        topic_now: the topic of that name as the catalog has it.
        on_lost: called when the group has a newer owner, which will forward the entry again.
        """
        self._lanes = lanes
        self._topic_now = topic_now
        self._on_lost = on_lost
        self._pending: deque[_Entry] = deque()
        self._batch: list[_Entry] = []
        self._something = asyncio.Event()
        self.forwarded = 0

    def put(self, group: OwnedGroup, m: Message, body: bytes, due_ms: int) -> None:
        """Forward an entry that was claimed from the group's lane. Returns at once."""
        self._pending.append(_Entry(group, m, body, due_ms))
        self._something.set()

    def unsettled(self, group: OwnedGroup) -> int:
        """Entries of the group that were put and have not left its lane yet."""
        return sum(entry.group is group for entry in (*self._pending, *self._batch))

    async def run(self) -> None:
        """Forward what waits, a batch at a time. Ends by cancellation."""
        while True:
            await self._something.wait()
            self._batch = [self._pending.popleft() for _ in range(min(BATCH, len(self._pending)))]
            left = await self._forward([entry for entry in self._batch if not entry.group.lost])
            self._pending.extend(left)
            self._batch = []
            if left:
                log.warning("%d entries of keys that moved wait for store and database", len(self._pending))
                await asyncio.sleep(UNREACHABLE_S)
            if not self._pending:
                self._something.clear()

    async def _forward(self, batch: list[_Entry]) -> list[_Entry]:
        """Take each entry as far as the servers let it; returns those that are not done."""
        try:
            await self._add([entry for entry in batch if entry.added is None])
            await self._take_back([entry for entry in batch if entry.added])
        except errors.DatabaseUnavailable:
            return batch
        decided = [entry for entry in batch if entry.added is not None]
        verdicts = [_leave(entry) if entry.added else _stay(entry) for entry in decided]
        answers = await of_each(self._lanes.settle(verdicts), len(verdicts)) if verdicts else ()
        left = [entry for entry in batch if entry.added is None]
        for entry, answer in zip(decided, answers, strict=True):
            if isinstance(answer, FAILURES):
                left.append(entry)
                continue
            entry.group.lane_out -= 1
            entry.group.retries[entry.message.priority] -= 1
            if isinstance(answer, errors.NotOwner):
                self._on_lost(entry.group)
            else:
                self.forwarded += bool(entry.added)
        return left

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
            # It waits there since a crash, or since an answer was lost: replaced by this one, which is not claimed.
            recalls = [Settle(entry.lane, entry.message.id, Verdict.RECALL) for entry in known]
            answers = await of_each(self._lanes.settle(recalls), len(recalls))
            await self._put([entry for entry, answer in zip(known, answers, strict=True) if answer is True])
            for entry, answer in zip(known, answers, strict=True):
                if answer is False:
                    entry.added = await self._is_dead(entry)

    async def _is_dead(self, entry: _Entry) -> bool:
        """Whether it is a dead letter of the other lane: the copy that a crash had left there was tried to the end."""
        after = (0, "")
        with contextlib.suppress(*FAILURES):
            while page := await self._lanes.dead(entry.lane, after, DEAD_PAGE):
                if any(letter.id == entry.message.id for letter in page):
                    return True
                after = page[-1].dead_ms, page[-1].id
        return False

    async def _put(self, batch: list[_Entry]) -> list[_Entry]:
        """Add entries to the other lane; returns those whose id it knows already."""
        adds = [Add(e.lane, e.message.id, e.body, e.due_ms, priority=e.message.priority) for e in batch]
        answers = await of_each(self._lanes.add(adds), len(adds)) if adds else ()
        for entry, answer in zip(batch, answers, strict=True):
            entry.added = None if isinstance(answer, FAILURES) else answer is True
        return [entry for entry, answer in zip(batch, answers, strict=True) if answer is False]

    async def _take_back(self, batch: list[_Entry]) -> None:
        """What was added to a group that is gone now is taken back from there and placed anew."""
        topics = await self._topics(batch)
        gone = [e for e in batch if (t := topics.get(e.group.owner.topic.name)) is not None and e.to >= t.groups]
        recalls = [Settle(entry.lane, entry.message.id, Verdict.RECALL) for entry in gone]
        answers = await of_each(self._lanes.settle(recalls), len(recalls)) if recalls else ()
        for entry, answer in zip(gone, answers, strict=True):
            # Where it was not there any more, whoever retired the group has moved it, perhaps to this very lane, where
            # its id is claimed. So this one stays: rather twice than not at all.
            entry.added = None if answer is True or isinstance(answer, FAILURES) else False

    async def _topics(self, batch: list[_Entry]) -> dict[str, Topic]:
        """The topics of entries as the catalog has them now, by name; those that were deleted are left out."""
        found: dict[str, Topic] = {}
        for name in {entry.group.owner.topic.name for entry in batch}:
            with contextlib.suppress(errors.UnknownTopic):
                found[name] = await self._topic_now(name)
        return found


def is_moved(group: OwnedGroup, m: Message) -> bool:
    """Whether an entry of the group's lane belongs to another lane by its key."""
    topic = group.owner.topic
    return m.key is not None and not topic.is_sorted and _home(m, topic) != group.index


def _home(m: Message, topic: Topic) -> int:
    return group_of_key(m.key or "", topic.active_groups)


def _leave(entry: _Entry) -> Settle:
    return Settle(entry.group.name, entry.message.id, Verdict.ACK, entry.group.epoch)


def _stay(entry: _Entry) -> Settle:
    """It is looked at again soon, by a newer view of the catalog; or its new lane has another claim of it now."""
    group, m, due_ms = entry.group, entry.message, entry.due_ms + AGAIN_MS
    return Settle(group.name, m.id, Verdict.RETRY, group.epoch, due_ms, entry.body, priority=m.priority)
