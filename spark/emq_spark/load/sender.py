"""Publish a load's batches through EMQ's own producer, and find out the outcome of each message.

| answer of the store | the sender's action |
|---|---|
| done | the producer tells the recorder: published, or merged |
| unavailable: nothing was applied | try again up to `TRIES` times; then count as refused |
| outcome unknown | look through the queues: a found message counts as published, any other stays unknown |
| any other error | count as refused |

The sender does not publish a message of unknown outcome again, because the store might then hold it twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
import zlib
from collections.abc import Collection, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

from emq import App
from emq.producer import Outgoing
from emq.runtime import errors
from emq.storage import message
from emq.topics.model import Kind, Topic
from emq_spark.load import ledger
from emq_spark.load import state as load_state
from emq_spark.load.batch import Batch
from emq_spark.load.incarnations import Incarnations
from emq_spark.load.recorder import Place, Recorder
from emq_spark.source.lookup import FIRST, look

TRIES = 5

WAIT_S = 0.1
"""Seconds before the first repeat; each further wait is twice as long."""

LOOK_AFTER_S = (0.3, 1.0, 3.0)
"""Seconds before each look for messages of a lost connection: they have arrived by the first look; the others follow if
the store cannot be reached.
"""

AHEAD_MS = 50
"""Milliseconds from now to the due time of a message that is already due; the store takes only future times."""

SAFE_S = 2.0
"""A message is added to its lane again only if it waits there for at least so many seconds."""


async def learn(app: App) -> dict[str, Topic]:
    """Return all topics by name. Call this before the load begins, because many topics take a while."""
    await app.producer.refresh()
    return {topic.name: topic for topic in await app.catalog.list()}


class _Part(NamedTuple):
    """Messages of a batch that have no outcome yet, their ids, and the error that left an earlier try in doubt."""

    batch: Batch
    ids: Sequence[str]
    doubt: str | None = None

    def only(self, places: Sequence[int]) -> _Part:
        return _Part(self.batch.only(places), [self.ids[i] for i in places], self.doubt)


class Sender:
    """Publishes for one partition.

    Args:
        app: an app whose trail is the recorder.
        topics: the result of `learn`.
        incarnations: has begun.
        begin_us: begin of the load, microseconds since the epoch.
    """

    def __init__(
        self, app: App, recorder: Recorder, topics: Mapping[str, Topic], incarnations: Incarnations, begin_us: int
    ) -> None:
        self._app = app
        self._recorder = recorder
        self._begin_us = begin_us
        self._topics = topics
        self._incarnations = incarnations

    async def send(self, batches: Sequence[Batch]) -> None:
        """Publish batches of different topics and priorities; return when the outcome of each message is noted.

        Raises:
            UnknownTopic: a topic does not exist.
        """
        self._check_topics(batches)
        queues = self._queues_of(batches)
        await self._incarnations.expect(queues)
        await self._send(batches)
        await self._incarnations.note(queue for queue, place in queues.items() if place in self._recorder.ends)

    async def _send(self, batches: Sequence[Batch]) -> None:
        parts = [_Part(batch, self.ids_of(batch)) for batch in batches]
        for batch, ids, _ in parts:
            self._recorder.expect(batch, ids, slots=self._to_slots(batch))
        wait_s = WAIT_S
        for attempt in range(1, TRIES + 1):
            sent_us = time.time_ns() // 1000
            failed = await self._publish(parts)
            parts, doubtful = [], []
            for part, failure in failed:
                text = f"{type(failure).__name__}: {failure}"
                # A refused repeat does not tell the outcome of the earlier try.
                if isinstance(failure, errors.OutcomeUnknown):
                    part = part._replace(doubt=text)
                if part.doubt is not None and not self._may_repeat(part.batch):
                    doubtful.append(self._look(part, sent_us))
                elif isinstance(failure, errors.StoreUnavailable | errors.DatabaseUnavailable) and attempt < TRIES:
                    parts.append(part)
                else:
                    outcome = ledger.REFUSED if part.doubt is None else ledger.UNKNOWN
                    self._recorder.close(part.batch, part.ids, outcome, sent_us=sent_us, error=text)
            await asyncio.gather(*doubtful)
            if not parts:
                return
            await asyncio.sleep(wait_s)
            wait_s *= 2

    def _check_topics(self, batches: Sequence[Batch]) -> None:
        if gone := {batch.topic for batch in batches} - self._topics.keys():
            raise errors.UnknownTopic(f"topic {min(gone)!r} is gone; create it, or let the load create what is missing")

    async def _publish(self, parts: Sequence[_Part]) -> list[tuple[_Part, errors.EMQError]]:
        """Publish; return the messages that the producer did not record, grouped by error."""
        each = [self._outgoing(part) for part in parts]
        outcomes = await self._app.producer.send([*itertools.chain.from_iterable(each)])
        failed: list[tuple[_Part, errors.EMQError]] = []
        end = 0
        for part, messages in zip(parts, each, strict=True):
            start, end = end, end + len(messages)
            failures = [outcome for outcome in outcomes[start:end] if isinstance(outcome, errors.EMQError)]
            if not failures:
                continue
            worst = next((one for one in failures if isinstance(one, errors.OutcomeUnknown)), failures[0])
            alike: dict[int, tuple[list[int], errors.EMQError]] = {}
            for i in self._recorder.missing(part.batch, part.ids, slots=self._to_slots(part.batch)):
                # If messages in a slot share an id, the recorder misses the last ones.
                failure = worst if isinstance(outcome := outcomes[start + i], str) else outcome
                alike.setdefault(id(failure), ([], failure))[0].append(i)
            failed += [(part.only(places), failure) for places, failure in alike.values()]
        return failed

    def _outgoing(self, part: _Part) -> list[Outgoing]:
        batch, topic = part.batch, self._topics[part.batch.topic]
        by_number = topic.kind is Kind.PRIORITY
        priorities = batch.scores or () if by_number else repeat(None if topic.is_sorted else batch.priority)
        ats = repeat(None) if by_number or batch.due_s is None else (self._due_ms(s) / 1000 for s in batch.due_s)
        each = zip(
            batch.payloads,
            part.ids,
            batch.keys or repeat(None),
            priorities,
            ats,
            batch.merge_keys or repeat(None),
            strict=False,
        )
        return [Outgoing(topic.name, body, id_, key, p, at=at, merge_key=m) for body, id_, key, p, at, m in each]

    async def _look(self, part: _Part, sent_us: int) -> None:
        """Look for messages of unknown outcome and note the found ones as published; the others stay unknown."""
        seen: Mapping[str, Place] = {}
        for wait_s in LOOK_AFTER_S:
            await asyncio.sleep(wait_s)
            with contextlib.suppress(errors.EMQError):
                seen, _ = await self.look([part.batch], part.ids)
                break
        self.close_found(part.batch, part.ids, seen)
        lost = [i for i, id_ in enumerate(part.ids) if id_ not in seen]
        if lost:
            rest = part.only(lost)
            self._recorder.close(rest.batch, rest.ids, ledger.UNKNOWN, sent_us=sent_us, error=part.doubt)

    # ----------------------------------------------------------------------------- also for earlier attempts' messages

    async def look(
        self, batches: Sequence[Batch], ids: Sequence[str]
    ) -> tuple[Mapping[str, Place], Collection[tuple[str, int]]]:
        """Look for messages in the queues, behind the last known offsets. Messages in slots or lanes are not found.

        Returns:
            The places of the messages by id; and (topic, priority) of queues that have trimmed messages, perhaps some
            of those that were looked for.
        """
        self._check_topics(batches)
        queues, ends = self._queues_of(batches), self._recorder.ends
        tails = {queue: self._incarnations.tail(queue, ends.get(place, FIRST)) for queue, place in queues.items()}
        seen = await look(self._app.store.log, list(queues), tails, ids, load_state.REMEDY)
        places = {
            id_: Place(*queues[queue][1:], offset, m.published_us, m.uid)
            for id_, [(queue, offset, m), *_] in seen.found.items()
        }
        return places, {(name, priority) for name, _, priority in map(queues.__getitem__, seen.trimmed)}

    def close_found(self, batch: Batch, ids: Sequence[str], places: Mapping[str, Place]) -> None:
        """Note the found messages as published."""
        here = [i for i, id_ in enumerate(ids) if id_ in places]
        if here:
            names, now_us = [ids[i] for i in here], time.time_ns() // 1000
            found = [places[name] for name in names]
            self._recorder.close(
                batch.only(here), names, ledger.PUBLISHED, sent_us=now_us, answered_us=now_us, found=found
            )

    def unclear(self, batch: Batch, doubtful: Collection[tuple[str, int]]) -> bool:
        """Return whether messages of the batch may have been published although they were not found.

        Args:
            doubtful: the second result of `look`.
        """
        if self._topics[batch.topic].is_sorted:
            return True
        if batch.due_s is not None:
            return not self._may_repeat(batch)
        return (batch.topic, self._priority(batch)) in doubtful

    def ids_of(self, batch: Batch) -> Sequence[str]:
        """Return the ids that the messages have; for slots, the ids that they will have there."""
        if not self._to_slots(batch):
            return batch.ids
        mask = self._topics[batch.topic].slots - 1
        members = [key.encode() for key in batch.merge_keys] if batch.merge_keys else batch.payloads
        bases = [
            m if k is None else k.encode() for m, k in zip(members, batch.keys or [None] * len(batch), strict=True)
        ]
        return [message.slot_id(zlib.crc32(base) & mask, member) for base, member in zip(bases, members, strict=True)]

    # ---------------------------------------------------------------------------------------------------- details

    def _queues_of(self, batches: Sequence[Batch]) -> dict[str, tuple[str, int, int]]:
        """Return the queues of messages, as (topic, group, priority) by name; messages in slots and lanes have none."""
        wanted = {
            (batch.topic, self._priority(batch))
            for batch in batches
            if not self._topics[batch.topic].is_sorted and batch.due_s is None
        }
        return {
            self._topics[name].queue(group, priority): (name, group, priority)
            for name, priority in wanted
            for group in range(max(self._topics[name].groups, self._incarnations.groups_of(name)))
        }

    def _to_slots(self, batch: Batch) -> bool:
        return self._topics[batch.topic].is_sorted

    def _priority(self, batch: Batch) -> int:
        return self._topics[batch.topic].priority_index(batch.priority)

    def _may_repeat(self, batch: Batch) -> bool:
        """Return whether publishing again changes nothing, because the messages wait in lanes for a while longer."""
        if self._to_slots(batch) or batch.due_s is None:
            return False
        return self._begin_us / 1e6 + min(batch.due_s) > time.time() + SAFE_S

    def _due_ms(self, due_s: float) -> int:
        return max(int(self._begin_us / 1000 + due_s * 1000), time.time_ns() // 1_000_000 + AHEAD_MS)
