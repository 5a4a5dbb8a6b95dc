"""Publish the rows of one task, so that a task that is tried again publishes no row twice.

Appending to a queue cannot be repeated safely, so a task keeps a note (`emq_spark.source.notes`). Before it publishes
some thousand rows, the task notes their numbers and the ends of the queues. The next attempt skips the rows that are
done, and looks for the noted rows in the queues, from those ends on. Each message has an id made of write, partition
and row. So no row is lost, and no row is published twice, with two exceptions. In both, the attempt publishes the row
again under the same id:

- The message was consumed and trimmed before the attempt looked (keep messages for a while: the topic's `retention_s`).
- The message goes to a slot or, delayed, to a lane, and was consumed from there. (A message that still waits is not
  added twice, but a merge by key counts it twice.)

Spark may take a living task for dead, for example with speculation. Such a task finds that another attempt has taken
its note over: the task checks its note at least every half of `LEASE_S` and sends nothing without it. An attempt that
takes over from one that has not let go waits for `LEASE_S`, so that all rows on their way have arrived. The attempt can
overlook only rows of a single call to the store that takes longer than the other half.

If Spark computes a partition again with its rows in another order, the attempt notices and fails; no rows are lost.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Mapping, Sequence

from aiolimiter import AsyncLimiter

from emq import App
from emq.producer import Outgoing
from emq.producer.scores import number_of
from emq.runtime import errors
from emq.storage.names import QueueName
from emq.topics.model import Kind, Topic
from emq_spark.source.lookup import Found, Seen, look, look_in_lanes
from emq_spark.source.messages import bounds_of
from emq_spark.source.notes import Note, Notes, Piece, Tail, digest_of

CHUNK = 10_000
"""Rows between two notes: a note costs some milliseconds, and looking for this many rows takes little time."""

PART = 2_000
"""Rows in one call to the producer; before each call the task checks its note if a check is due."""

REMEDY = "publish under another run, or stream with a new checkpointLocation"
"""What to do if a queue does not show any more which rows had been published."""

LEASE_S = 2.0
"""Seconds for which a note lets its task publish: long for a call to the store, short for a task that takes over."""

TRIES = 4

TRY_AGAIN_S = 0.2
"""Seconds before the first repeat of a publish of unknown outcome; each further wait is twice as long."""

FINEST_S = 0.1
"""Seconds of rows that a paced publish sends at a time."""


class Publication:
    """One attempt at publishing a piece: call `publish` with its rows in order, then `end`.

    Args:
        attempt: unique name of this attempt.
        per_second: most rows to publish in a second; 0 for no limit.
    """

    def __init__(self, app: App, notes: Notes, piece: Piece, attempt: str, per_second: float = 0.0) -> None:
        self._app = app
        self._notes = notes
        self._piece = piece
        self._attempt = attempt
        self._part = PART
        self._limiter: AsyncLimiter | None = None
        if per_second:
            self._part = max(1, math.floor(per_second * FINEST_S))
            self._limiter = AsyncLimiter(self._part, self._part / per_second)
        self._topics: dict[str, Topic] = {}
        self._before = Note()
        self._row = 0
        self._digest = 0
        self._noted = Note()
        self._noted_s = 0.0

    async def begin(self) -> None:
        """Take over from earlier attempts, and wait until none of their rows can be on the way to the store."""
        self._before, held = await self._notes.claim(self._piece, self._attempt)
        if held and self._before.begun > self._before.done:
            await asyncio.sleep(LEASE_S)

    async def publish(self, rows: Sequence[Outgoing]) -> None:
        """Publish the next rows, at best `CHUNK` of them.

        Raises:
            EMQError: as for `Producer.publish_many`; or a later attempt has taken over, or the rows are not those of
                the earlier attempt. The next attempt recognises the rows that were published.
        """
        ends = [self._before.done - self._row, self._before.begun - self._row, len(rows)]
        start = 0
        for end in sorted(min(max(end, 0), len(rows)) for end in ends):
            if start < end:
                await self._publish_part(rows[start:end])
                start = end

    async def _publish_part(self, rows: Sequence[Outgoing]) -> None:
        """Publish rows of which all, or none, are below `done` of the found note, and likewise `begun`."""
        end, digest = self._row + len(rows), digest_of(_contents(rows), self._digest)
        if end <= self._before.done:
            if end == self._before.done and digest != self._before.digest:
                raise errors.EMQError(self._differs())
        elif end <= self._before.begun:
            # The old ends of the queues stay in the note, because a third attempt has to look from there as well.
            await self._note(Note(self._row, self._digest, self._before.begun, self._before.tails))
            await self._send_rest(rows)
        else:
            await self._note(Note(self._row, self._digest, end, await self._tails(rows)))
            await self._send(rows)
        self._row, self._digest = end, digest

    async def end(self) -> None:
        """Note that every row is published.

        Raises:
            EMQError: there were fewer rows than an earlier attempt has published.
        """
        if self._row < self._before.done:
            raise errors.EMQError(self._differs())
        await self._note(Note(self._row, self._digest, self._row))

    async def let_go(self) -> None:
        """Release the note, so that the next attempt need not wait; no publish may be under way."""
        await self._notes.let_go(self._piece, self._attempt)

    async def _note(self, note: Note) -> None:
        """Write the note, or raise `EMQError` if another attempt has taken the note over."""
        self._noted_s = time.monotonic()
        await self._notes.save(self._piece, self._attempt, note)
        self._noted = note

    async def _put(self, rows: Sequence[Outgoing]) -> tuple[list[Outgoing], errors.EMQError | None]:
        """Publish rows; return the rows in doubt, and the first error.

        A row is in doubt if it may not be published, or shares its id with such a row.

        Raises:
            EMQError: a row was refused for good.
        """
        if time.monotonic() - self._noted_s > LEASE_S / 2:
            await self._note(self._noted)
        outcomes = await self._app.producer.send([*map(self._with_number, rows)])
        failures = {rows[i].id: o for i, o in enumerate(outcomes) if isinstance(o, errors.EMQError)}
        for failure in failures.values():
            if not isinstance(failure, errors.StoreUnavailable):
                raise failure
        return [row for row in rows if row.id in failures], next(iter(failures.values()), None)

    def _with_number(self, row: Outgoing) -> Outgoing:
        """Return the row; if its topic wants numbers as priorities, make one of the data frame's text."""
        topic = self._topics[row.topic]
        return row if topic.kind is not Kind.PRIORITY else row._replace(priority=number_of(topic, row.priority))

    async def _send(self, rows: Sequence[Outgoing]) -> None:
        """Publish rows that are not published yet; if the outcome of some is unknown, look for them."""
        for part in _parts(rows, self._part):
            if self._limiter is not None:
                await self._limiter.acquire(len(part))
            rest, failure = await self._put(part)
            if failure is not None:
                await self._send_rest(rest, TRY_AGAIN_S)

    async def _send_rest(self, wanted: Sequence[Outgoing], wait_s: float = 0.0) -> None:
        """Publish the rows that are not in the queues; try several times."""
        for attempt in range(1, TRIES + 1):
            await asyncio.sleep(wait_s)
            wait_s = max(TRY_AGAIN_S, 2 * wait_s)
            failure: errors.EMQError | None
            try:
                await self._know(wanted, fresh=True)
                queues = sorted({*self._noted.tails, *self._queues_of(wanted)})
                ids = [row.id or "" for row in wanted]
                seen = await look(self._app.store.log, queues, self._noted.tails, ids, REMEDY)
                await self._lower_tails(seen.ends)
            except errors.StoreUnavailable as exc:
                failure = exc
            else:
                wanted, failure = await self._put(await self._not_in_lanes(self._missing(wanted, seen)))
            if failure is None:
                return
            if attempt == TRIES:
                raise failure

    def _missing(self, rows: Sequence[Outgoing], seen: Seen) -> list[Outgoing]:
        """Return the rows that were not seen; raise `EMQError` if another message has the id of a row."""
        missing = []
        for row in rows:
            places = seen.found.get(row.id or "", [])
            own = next((place for place in places if _is_of(row, place)), None)
            if own is None:
                missing.append(row)
            else:
                places.remove(own)
        if any(seen.found.values()):
            raise errors.EMQError(self._differs())
        return missing

    async def _not_in_lanes(self, rows: Sequence[Outgoing]) -> list[Outgoing]:
        """Return the rows without those delayed ones that wait in a lane, were claimed from it, or are dead in it."""
        topics = {i: self._topics[row.topic] for i, row in enumerate(rows) if row.at is not None}
        delayed = {i: topic for i, topic in topics.items() if not topic.is_sorted}
        asked = ((topic.group(n), rows[i].id or "") for i, topic in delayed.items() for n in range(topic.groups))
        found = await look_in_lanes(self._app.store.lanes, asked)
        missing = []
        for i, row in enumerate(rows):
            if i in delayed and found[row.id or ""]:
                found[row.id or ""] -= 1
            else:
                missing.append(row)
        return missing

    async def _lower_tails(self, ends: Mapping[str, int]) -> None:
        """Note the new ends of queues that have lost their last messages: what is published now lies from there on."""
        tails = self._noted.tails
        lower = {q: tail._replace(offset=ends[q]) for q, tail in tails.items() if ends[q] < tail.offset}
        if lower:
            await self._note(self._noted._replace(tails={**tails, **lower}))

    async def _tails(self, rows: Sequence[Outgoing]) -> dict[str, Tail]:
        await self._know(rows)
        bounds = await bounds_of(self._app.store.log, self._queues_of(rows))
        return {queue: Tail(found.tail, found.incarnation) for queue, found in bounds.items()}

    async def _know(self, rows: Sequence[Outgoing], *, fresh: bool = False) -> None:
        for name in {row.topic for row in rows}:
            if fresh or name not in self._topics:
                await self._app.producer.topic(name)  # a family may make it
                self._topics[name] = await self._app.catalog.get(name)

    def _queues_of(self, rows: Sequence[Outgoing]) -> list[str]:
        """Return the queues to which the rows may go."""
        wanted = {(row.topic, row.priority) for row in rows if row.at is None}
        return sorted({queue for name, priority in wanted for queue in _queues(self._topics[name], priority)})

    def _differs(self) -> str:
        return (
            f"partition {self._piece.part} of write {self._piece.run!r} has other rows than when it was published "
            f"first (up to row {self._before.begun}); make the query repeatable, by sorting it or writing it to files "
            "first, and ids unique if you give them"
        )


def _queues(topic: Topic, priority: str | float | None) -> list[str]:
    """Return the queues to which a message of that priority may go."""
    if topic.is_sorted:
        return []
    index = topic.priority_index(priority)
    return [topic.queue(group, index) for group in range(topic.groups)]


def _is_of(row: Outgoing, found: Found) -> bool:
    m = found.message
    return (row.topic, row.payload, row.key) == (QueueName.parse(found.queue).topic, m.payload, m.key)


def _parts(rows: Sequence[Outgoing], size: int) -> Iterator[Sequence[Outgoing]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _contents(rows: Sequence[Outgoing]) -> Iterator[bytes]:
    """Yield the bytes of each row by which a later attempt recognises the row."""
    for row in rows:
        yield row.payload if isinstance(row.payload, bytes) else row.payload.encode()
        yield f"\0{row.topic}\0{row.key}\0".encode()


def chunk_size(per_second: float) -> int:
    """Return the rows between two notes: with a limit, the rows of about a second."""
    return CHUNK if not per_second else min(CHUNK, max(1, math.ceil(per_second)))
