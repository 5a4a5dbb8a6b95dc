"""Finds deliveries that are pending in their rows although the store has ended them, and ends the rows.

Hosts write the outcome of each attempt, and of an expiry, before they save that the message is finished
(`emq.groups.records`). Some ends come without a record: an operator recalls a message or purges its dead letter, its
endpoint is deleted, or the store loses its last second. The sweep finds such deliveries slowly and cheaply: every
`PERIOD_S`, it looks at the next `TOPICS_AT_ONCE` topics that have deliveries, and asks the store only about topics
whose oldest pending delivery is older than `OLD_S`.

A pending delivery that is not waiting for its time is, in this order,

1. cancelled, if its endpoint is gone;
2. dead, if the store has its dead letter;
3. left alone, if it waits in the log of a polling endpoint, or may be in a queue: a message that is no newer than the
   delivery is unfinished there;
4. left alone, if it waits in a lane, or if any message of the lane is claimed, because the store does not name claimed
   ones;
5. cancelled, if a second look `CONFIRM_S` later finds the same. The delivery is in no part of the store.

Every write is a compare-and-set, so that a row that changes meanwhile stays as it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from emq.offsets.checkpoints import Checkpoint
from emq.runtime import errors
from emq.storage import message
from emq.storage.answers import served
from emq.topics.model import Topic
from emq_push.records import deliveries
from emq_push.records.accepted import Accepted
from emq_push.records.deliveries import Deliveries, Delivery, Place
from emq_push.records.poll_log import PollLog
from emq_push.records.rows import IDS_AT_ONCE
from emq_push.service.parts import Parts

log = logging.getLogger(__name__)

PERIOD_S = 10.0
"""Seconds between two looks."""

TOPICS_AT_ONCE = 100
"""Topics of a look. With 40,000 topics a round takes somewhat more than an hour."""

ROWS_AT_ONCE = 500
"""Most pending deliveries of a topic in a look; the next look at the topic goes on behind them."""

OLD_S = 600.0
"""Seconds for which a pending delivery is not doubted: messages are sent within them even after a crash."""

CONFIRM_S = 60.0
"""Seconds between the two looks that agree that a delivery is gone."""

MOST_LETTERS = 5_000
MOST_WAITING = 5_000
"""Most dead letters and waiting entries of a group that a look reads. A group with more is left for later."""

HOLES = 50
"""Most offsets without a message that a look skips in search of the oldest message of a queue."""

MOST_TOPICS = 1_000
"""Most topics whose suspects a sweep remembers, 500 each. It forgets those that were found first."""

PAGE = 500

GONE = "the store has it no more: recalled or purged there, or lost in a crash of the store"
NO_ENDPOINT = "its endpoint was deleted"


class Verdict(NamedTuple):
    """The new state of a row."""

    row: Delivery
    state: str
    reason: str


class Suspects(NamedTuple):
    """The deliveries of a topic that were absent.

    Attributes:
        due_us: when to look again.
        rows: each with the time at which it was first absent, by message.
    """

    due_us: int
    rows: dict[str, tuple[Delivery, int]]


class Sweep:
    """Looks at old pending deliveries, some at a time.

    Attributes:
        settled: number of deliveries that the sweep has ended.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._rows = Deliveries(parts.environment)
        self._accepted = Accepted(parts.environment)
        self._log = PollLog(parts.environment)
        self._last = ""
        self._after: dict[str, Place] = {}
        self._suspects: dict[str, Suspects] = {}
        self.settled = 0

    async def run(self) -> None:
        """Look again and again. Ends by cancellation."""
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                await self.look()
            except errors.EMQError as exc:
                log.info("the sweep of old deliveries looks again later: %s", exc)
            except Exception:
                log.exception("the sweep of old deliveries failed; it looks again later")

    async def look(self) -> None:
        """Look at the next topics, and once more at those with suspects.

        A topic that cannot be looked at does not keep the sweep from the others.

        Raises:
            DatabaseUnavailable: look again later.
        """
        now_us = self._parts.now_us()
        topics = await self._parts.read(lambda c: self._rows.topics_after(c, self._last, TOPICS_AT_ONCE))
        self._last = topics[-1] if len(topics) == TOPICS_AT_ONCE else ""
        due = [topic for topic, suspects in self._suspects.items() if suspects.due_us <= now_us][:TOPICS_AT_ONCE]
        names = sorted({*topics, *due})
        oldest = await self._parts.read(lambda c: self._rows.oldest_pending(c, names))
        old = [name for name in names if oldest.get(name, now_us) < now_us - OLD_S * 1e6]
        known = await self._parts.app.catalog.some(old)
        for name in names:
            absent: Sequence[Delivery] | None = []
            try:
                if name in old:
                    absent = await self._topic(name, known.get(name), now_us)
            except errors.EMQError as exc:
                absent = None
                log.info("the sweep looks at old deliveries of %s again later: %s", name, exc)
            except Exception:
                absent = None
                log.exception("the sweep of old deliveries of %s failed; it looks again later", name)
            self._remember(name, absent, now_us)

    async def _topic(self, name: str, topic: Topic | None, now_us: int) -> Sequence[Delivery] | None:
        """Look at a topic; return the deliveries that are absent and were not before, or None if that is unknown."""
        rows = await self._doubtful(name, now_us)
        if not rows:
            return []
        if topic is None:
            if await self._is_gone(name):
                await self._settle([Verdict(row, deliveries.CANCELLED, NO_ENDPOINT) for row in rows], now_us)
            return []
        dead, saw_all = await self._dead(topic, rows)
        await self._settle(dead, now_us)
        if not saw_all:
            return None  # a delivery without a letter so far may have one among those that were not read
        ended = {verdict.row.message for verdict in dead}
        absent = await self._absent(topic, [row for row in rows if row.message not in ended])
        if absent is None:
            return None
        before_us = now_us - round(CONFIRM_S * 1e6)
        confirmed = {row.message for row in absent if self._first_us(row, now_us) <= before_us}
        await self._settle([Verdict(r, deliveries.CANCELLED, GONE) for r in absent if r.message in confirmed], now_us)
        return [row for row in absent if row.message not in confirmed]

    async def _is_gone(self, name: str) -> bool:
        """Return whether a topic was deleted; False for one that a newer version has written."""
        try:
            await self._parts.app.catalog.get(name)
        except errors.UnknownTopic:
            return True
        except errors.InvalidTopic:
            return False
        return False

    async def _doubtful(self, name: str, now_us: int) -> list[Delivery]:
        """Return the next old pending deliveries that do not wait for their time."""
        before_us = now_us - round(OLD_S * 1e6)
        rows = await self._parts.read(
            lambda c: self._rows.pending_of(c, name, before_us, after=self._after.get(name), limit=ROWS_AT_ONCE)
        )
        if len(rows) == ROWS_AT_ONCE:
            self._after[name] = rows[-1].place
        else:
            self._after.pop(name, None)
        known = {row.message for row in rows}
        suspects = [id_ for id_ in self._suspected(name) if id_ not in known][:IDS_AT_ONCE]
        if suspects:
            rows += await self._parts.read(lambda c: self._rows.some(c, name, suspects))
        rows = [row for row in rows if row.state == deliveries.PENDING]
        unsent = await self._unsent()
        ids = [row.message for row in rows]
        placed = await self._parts.read(lambda c: self._log.waiting(c, name, ids)) if ids else ()
        rows = [row for row in rows if row.message not in placed]
        return [row for row in rows if row.next_us < before_us and (row.tenant, row.message) not in unsent]

    async def _unsent(self) -> Collection[tuple[str, str]]:
        """Return the messages that a process has still to send, as tenant and id."""
        batches = await self._parts.read(lambda c: self._accepted.batches(c))
        return {(tenant, id_) for batch in batches for tenant, ids in batch.messages.items() for id_ in ids}

    # ----------------------------------------------------------------------------------------------- what the store has

    async def _dead(self, topic: Topic, rows: Sequence[Delivery]) -> tuple[list[Verdict], bool]:
        """Return verdicts on deliveries whose letters are dead, and whether all letters were read."""
        if not rows:
            return [], True
        by_message = {row.message: row for row in rows}
        since_ms = min(row.created_us for row in rows) // 1000
        found, saw_all = [], True
        for group in range(topic.groups):
            after, seen = (since_ms - 1, ""), 0
            while seen < MOST_LETTERS and (
                page := await self._parts.app.store.lanes.dead(topic.group(group), after, PAGE)
            ):
                after, seen = (page[-1].dead_ms, page[-1].id), seen + len(page)
                found += [
                    Verdict(by_message[id_], deliveries.DEAD, d.reason[:200])
                    for d in page
                    if (id_ := message.label(d.id)) in by_message
                ]
            saw_all = saw_all and seen < MOST_LETTERS
        return found, saw_all

    async def _absent(self, topic: Topic, rows: Sequence[Delivery]) -> list[Delivery] | None:
        """Return the deliveries that are in no queue and no lane of the topic; None if a lane cannot be judged.

        Queues come first: messages move from queues to lanes.
        """
        if not rows:
            return []
        oldest_us = await self._oldest_in_queues(topic)
        rows = [row for row in rows if row.created_us < oldest_us - OLD_S * 1e6]
        waiting: set[str] = set()
        for group in range(topic.groups if rows else 0):
            ids = await self._waiting(topic.group(group))
            if ids is None:
                return None
            waiting |= ids
        return [row for row in rows if row.message not in waiting]

    async def _oldest_in_queues(self, topic: Topic) -> float:
        """Return when the oldest unfinished message of the topic's queues was published; infinity if there is none.

        Zero if that is not known. Each queue has its messages in the order of their publishing.
        """
        oldest_us = float("inf")
        for checkpoint, head, tail in await self._parts.app.admin.offsets(topic):
            start = _unfinished_from(checkpoint, head, tail)
            if start < tail:
                oldest_us = min(oldest_us, await self._published_us(checkpoint.queue, start, tail))
        return oldest_us

    async def _published_us(self, queue: str, start: int, tail: int) -> float:
        for offset in range(start, min(tail, start + HOLES)):
            body = await self._parts.app.store.log.get(queue, offset)
            if body is not None:
                try:
                    return message.decode(body).published_us
                except message.UNREADABLE:
                    return 0.0
        return 0.0

    async def _waiting(self, lane: str) -> set[str] | None:
        """Return the ids that wait in a lane; None if some are claimed, or if there are too many to read."""
        lanes = self._parts.app.store.lanes
        [state] = served(await lanes.inspect([lane]))
        if state.prepared or state.waiting > MOST_WAITING:
            return None
        found: set[str] = set()
        seen = 0
        while seen <= MOST_WAITING and (page := await lanes.waiting(lane, seen, PAGE)):
            found.update(message.label(entry.id) for entry in page)
            seen += len(page)
        # Entries that were claimed while the pages were read are in none of them.
        [after] = served(await lanes.inspect([lane]))
        return None if after.prepared or seen > MOST_WAITING else found

    # ---------------------------------------------------------------------------------------- suspects, what is written

    def _suspected(self, topic: str) -> dict[str, tuple[Delivery, int]]:
        suspects = self._suspects.get(topic)
        return {} if suspects is None else suspects.rows

    def _first_us(self, row: Delivery, now_us: int) -> int:
        """Return since when a delivery is absent."""
        before, first_us = self._suspected(row.topic).get(row.message, (None, now_us))
        return first_us if before == row else now_us

    def _remember(self, topic: str, absent: Sequence[Delivery] | None, now_us: int) -> None:
        """Note the suspects of a topic after a look.

        Args:
            absent: None if the look did not tell: those from before are looked at once more.
        """
        rows = self._suspected(topic)
        if absent is not None:
            rows = {row.message: (row, self._first_us(row, now_us)) for row in absent[:IDS_AT_ONCE]}
        self._suspects.pop(topic, None)
        if rows:
            self._suspects[topic] = Suspects(now_us + round(CONFIRM_S * 1e6), rows)
        if len(self._suspects) > MOST_TOPICS:
            del self._suspects[next(iter(self._suspects))]

    async def _settle(self, verdicts: Sequence[Verdict], now_us: int) -> None:
        if not verdicts:
            return

        def write(c: sa.Connection) -> int:
            return sum(self._rows.end_as_seen(c, v.row, v.state, v.reason, now_us) for v in verdicts)

        n = await self._parts.write(write)
        self.settled += n
        log.info("%d old deliveries of %s were over without a record", n, verdicts[0].row.topic)


def _unfinished_from(checkpoint: Checkpoint, head: int, tail: int) -> int:
    """Return the first offset of a queue that may not be finished."""
    if checkpoint.watermark > tail:
        return head  # the store came back without its last messages
    start = max(head, checkpoint.watermark)
    for begin, end in checkpoint.finished:
        if begin <= start < end:
            start = end
    return start
