"""Publish a load's batches through EMQ's own producer, and find out the outcome of each message.

| answer of the store | the sender's action |
|---|---|
| done | the producer tells the recorder: published, or merged |
| unavailable: nothing was applied | try again up to `TRIES` times; then count as refused |
| a message does not fit | publish the messages of that call one by one; that message counts as refused |
| outcome unknown | look through the queues: a found message counts as published, any other stays unknown |
| any other error | count as refused |

The sender does not publish a message of unknown outcome again, because the store might then hold it twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from emq import errors, message
from emq.app import App
from emq.topics.model import Kind, Topic
from spark.load import ledger
from spark.load.batch import Batch
from spark.load.lookup import LookupResult, look
from spark.load.recorder import Recorder

CALL = 500
"""Most messages in one call; if the call fails, some of them may be in doubt."""

CALLS = 32
"""Most calls under way at once. Each topic and priority has at most one, which keeps the order of its messages."""

TRIES = 5

WAIT_S = 0.1
"""Seconds before the first repeat; each further wait is twice as long."""

LOOK_AFTER_S = (0.3, 1.0, 3.0)
"""Seconds of waiting before the sender looks for messages of a lost connection, which have arrived by then.

The later waits follow if the store cannot be reached yet.
"""

AHEAD_MS = 50
"""Milliseconds from now to the due time of a message that is already due; the store takes only times to come."""

SAFE_S = 2.0
"""Seconds to the due time from which a message may be added to its lane again, since it still waits there then."""


async def learn(app: App) -> dict[str, Topic]:
    """Return all topics by name. Call this before the load begins, because many topics take a while."""
    await app.producer.refresh()
    return {topic.name: topic for topic in await app.catalog.list()}


class Sender:
    """Publishes for one partition.

    Args:
        app: an app whose trail is the recorder.
        topics: the result of `learn`.
        begin_us: when the load began, microseconds since the epoch.
    """

    def __init__(self, app: App, recorder: Recorder, topics: Mapping[str, Topic], begin_us: int) -> None:
        self._app = app
        self._recorder = recorder
        self._begin_us = begin_us
        self._topics = topics
        self._calls = asyncio.Semaphore(CALLS)

    async def send(self, batches: Sequence[Batch]) -> None:
        """Publish batches of different topics and priorities; return when the outcome of each message is noted.

        Raises:
            UnknownTopic: a topic does not exist.
        """
        self._check_topics(batches)
        if len(batches) == 1:
            await self._send(batches[0])
        else:
            await asyncio.gather(*map(self._send, batches))

    def _check_topics(self, batches: Sequence[Batch]) -> None:
        if gone := {batch.topic for batch in batches} - self._topics.keys():
            raise errors.UnknownTopic(f"topic {min(gone)!r} is gone; create it, or let the load create what is missing")

    async def _send(self, batch: Batch) -> None:
        for start in range(0, len(batch), CALL):
            part = batch if len(batch) <= CALL else batch.only(slice(start, start + CALL))
            ids = self.ids_of(part)
            self._recorder.expect(part, ids, slots=self._to_slots(part))
            if len(part) == 1:
                await self._send_part(part, ids)
            else:
                async with self._calls:
                    await self._send_part(part, ids)

    async def _send_part(self, part: Batch, ids: Sequence[str]) -> None:
        wait_s, doubt = WAIT_S, None
        for attempt in range(1, TRIES + 1):
            sent_us = time.time_ns() // 1000
            failure = await self._publish(part, ids)
            places = self._recorder.missing(part, ids, slots=self._to_slots(part)) if failure else []
            if not places:
                return
            part, ids = part.only(places), [ids[i] for i in places]
            text = f"{type(failure).__name__}: {failure}"
            if isinstance(failure, errors.InvalidMessage) and doubt is None and len(part) > 1:
                # The store refuses a whole call for one bad message; the other messages must still be published.
                for i in range(len(part)):
                    await self._send_part(part.only([i]), [ids[i]])
                return
            # A refused repeat does not tell the outcome of the try before.
            doubt = text if isinstance(failure, errors.OutcomeUnknown) else doubt
            if doubt is not None and not self._may_repeat(part):
                await self._look(part, ids, sent_us, doubt)
                return
            passing = isinstance(failure, errors.StoreUnavailable | errors.DatabaseUnavailable)
            if not passing or attempt == TRIES:
                outcome = ledger.REFUSED if doubt is None else ledger.UNKNOWN
                self._recorder.close(part, ids, outcome, sent_us=sent_us, error=text)
                return
            await asyncio.sleep(wait_s)
            wait_s *= 2

    async def _publish(self, part: Batch, ids: Sequence[str]) -> errors.EMQError | None:
        """Publish; return the worst error, or None. An unknown outcome is worse than any other error."""
        producer, one = self._app.producer, part.priority
        try:
            if self._to_slots(part):
                options: dict[str, Any] = {"keys": part.keys, "merge_keys": part.merge_keys}
                await producer.publish_many(part.topic, part.payloads, scores=self._scores(part), **options)
            elif part.due_s is not None:
                return await self._publish_delayed(part, ids)
            elif len(part) == 1:
                key = part.keys[0] if part.keys else None
                await producer.publish(part.topic, part.payloads[0], key=key, priority=one, message_id=ids[0])
            else:
                await producer.publish_many(part.topic, part.payloads, keys=part.keys, priority=one, message_ids=ids)
        except errors.EMQError as exc:
            return exc
        return None

    async def _publish_delayed(self, part: Batch, ids: Sequence[str]) -> errors.EMQError | None:
        calls = [
            self._app.producer.publish(
                part.topic,
                part.payloads[i],
                key=part.keys[i] if part.keys else None,
                priority=part.priority,
                at=self._due_ms(due_s) / 1000,
                message_id=ids[i],
            )
            for i, due_s in enumerate(part.due_s or ())
        ]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        wrong: list[errors.EMQError] = []
        for answer in answers:
            if isinstance(answer, errors.EMQError):
                wrong.append(answer)
            elif isinstance(answer, BaseException):
                raise answer
        wrong.sort(key=lambda exc: not isinstance(exc, errors.OutcomeUnknown))
        return wrong[0] if wrong else None

    async def _look(self, part: Batch, ids: Sequence[str], sent_us: int, text: str) -> None:
        """Look for messages of unknown outcome and note the found ones as published; the others stay unknown."""
        seen = LookupResult({}, ())
        for wait_s in LOOK_AFTER_S:
            await asyncio.sleep(wait_s)
            with contextlib.suppress(errors.EMQError):
                seen = await self.look([part], ids)
                break
        self.close_found(part, ids, seen)
        lost = [i for i, id_ in enumerate(ids) if id_ not in seen.places]
        if lost:
            rest = part.only(lost)
            self._recorder.close(rest, [ids[i] for i in lost], ledger.UNKNOWN, sent_us=sent_us, error=text)

    # ------------------------------------------------------------------------------- also for what was left open

    async def look(self, batches: Sequence[Batch], ids: Sequence[str]) -> LookupResult:
        """Look for messages in the queues, behind the last known offsets. Messages for slots or lanes are not found."""
        self._check_topics(batches)
        wanted = {
            (batch.topic, self._priority(batch)): self._topics[batch.topic]
            for batch in batches
            if not self._topics[batch.topic].is_sorted and batch.due_s is None
        }
        places = [(topic, priority) for (_, priority), topic in wanted.items()]
        return await look(self._app, places, self._recorder.ends, ids)

    def close_found(self, batch: Batch, ids: Sequence[str], seen: LookupResult) -> None:
        """Note the found messages as published."""
        here = [i for i, id_ in enumerate(ids) if id_ in seen.places]
        if here:
            names, now_us = [ids[i] for i in here], time.time_ns() // 1000
            found = [seen.places[name] for name in names]
            self._recorder.close(
                batch.only(here), names, ledger.PUBLISHED, sent_us=now_us, answered_us=now_us, found=found
            )

    def unclear(self, batch: Batch, seen: LookupResult) -> bool:
        """Return whether messages of the batch that were not found may have been published nevertheless."""
        if self._topics[batch.topic].is_sorted:
            return True
        if batch.due_s is not None:
            return not self._may_repeat(batch)
        return (batch.topic, self._priority(batch)) in seen.doubtful

    def ids_of(self, batch: Batch) -> Sequence[str]:
        """Return the ids that the messages have, or will have in their slots."""
        if not self._to_slots(batch):
            return batch.ids
        mask = self._topics[batch.topic].slots - 1
        members = [key.encode() for key in batch.merge_keys] if batch.merge_keys else batch.payloads
        bases = [
            m if k is None else k.encode() for m, k in zip(members, batch.keys or [None] * len(batch), strict=True)
        ]
        return [message.slot_id(zlib.crc32(base) & mask, member) for base, member in zip(bases, members, strict=True)]

    # ---------------------------------------------------------------------------------------------------- details

    def _to_slots(self, batch: Batch) -> bool:
        return self._topics[batch.topic].is_sorted

    def _priority(self, batch: Batch) -> int:
        return self._topics[batch.topic].priority_index(batch.priority)

    def _may_repeat(self, batch: Batch) -> bool:
        """Return whether publishing again changes nothing, because the messages wait in lanes for a while longer."""
        if self._to_slots(batch) or batch.due_s is None:
            return False
        return self._begin_us / 1e6 + min(batch.due_s) > time.time() + SAFE_S

    def _scores(self, part: Batch) -> list[float] | None:
        if self._topics[part.topic].kind is Kind.PRIORITY:
            return list(part.scores or ())
        return None if part.due_s is None else [self._due_ms(due_s) for due_s in part.due_s]

    def _due_ms(self, due_s: float) -> int:
        return max(int(self._begin_us / 1000 + due_s * 1000), time.time_ns() // 1_000_000 + AHEAD_MS)
