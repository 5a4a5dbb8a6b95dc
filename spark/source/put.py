"""Put the rows of a write into their queues and slots, and look whether rows are there."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from emq import errors
from emq.app import App
from emq.message import Message
from emq.storage.answers import served
from emq.topics.model import Kind, Topic
from spark.source.messages import bounds_of
from spark.source.rows import decoded
from spark.source.spans import CALL_BYTES, Reading, Span


class Row(NamedTuple):
    """A message to be published; fields as for `Producer.publish`."""

    topic: str
    payload: bytes
    id: str
    key: str | None = None
    priority: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    at: datetime.datetime | None = None
    ttl_s: float | None = None


class PutCheck(NamedTuple):
    """Attributes:
    missing: rows that are not in the queues, in their order.
    foreign: ids of rows under which the queues hold other messages.
    trimmed: queues that trimmed messages from behind the noted ends.
    """

    missing: Sequence[Row]
    foreign: frozenset[str]
    trimmed: frozenset[str]


def places(topic: Topic, priority: str | None) -> list[str]:
    """The queues that a message of that priority may go to."""
    if topic.is_sorted:
        return []
    index = topic.priority_index(priority)
    return [topic.queue(group, index) for group in range(topic.groups)]


async def put(app: App, topics: Mapping[str, Topic], rows: Sequence[Row]) -> None:
    """Publish rows, those that go to queues together, in their order; raises as `Producer.publish_many`.

    Args:
        topics: the rows' topics by name.
    """
    alike: dict[tuple[object, ...], list[Row]] = {}
    others: list[Row] = []
    for row in rows:
        if row.at is not None or topics[row.topic].is_sorted:
            others.append(row)
        else:
            alike.setdefault((row.topic, row.priority, row.headers, row.ttl_s), []).append(row)
    for same in alike.values():
        first = same[0]
        await app.producer.publish_many(
            first.topic,
            [row.payload for row in same],
            keys=[row.key for row in same],
            priority=first.priority,
            headers=dict(first.headers) or None,
            ttl_s=first.ttl_s,
            message_ids=[row.id for row in same],
        )
    await _all(asyncio.create_task(_publish(app, topics[row.topic], row)) for row in others)


async def _publish(app: App, topic: Topic, row: Row) -> None:
    to_slot = topic.is_sorted and (row.at is None or topic.kind is not Kind.PRIORITY)
    await app.producer.publish(
        topic.name,
        row.payload,
        key=row.key,
        priority=_number(topic, row.priority) if topic.kind is Kind.PRIORITY else row.priority,
        headers=dict(row.headers) or None,
        at=row.at,
        ttl_s=row.ttl_s,
        message_id=None if to_slot else row.id,
    )


async def _all(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Wait for every task, then raise the first error: nothing is left under way that somebody might look for."""
    for answer in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer


def _number(topic: Topic, priority: str | None) -> float | None:
    try:
        return None if priority is None else float(priority)
    except ValueError:
        raise errors.InvalidMessage(
            f"topic {topic.name!r} is of kind priority: {priority!r} must be a number, as text"
        ) from None


async def look(app: App, queues: Sequence[str], tails: Mapping[str, int], rows: Sequence[Row]) -> PutCheck:
    """Look for rows in queues.

    Args:
        tails: from where on; a queue that is not in there is looked through from its head.
    """
    log = app.store.log
    bounds = await bounds_of(log, queues)
    trimmed = frozenset(queue for queue in queues if queue in tails and bounds[queue].head > tails[queue])
    spans = (Span(queue, max(tails.get(queue, head), head), tail) for queue, (head, tail) in bounds.items())
    reading = Reading(span for span in spans if span.start < span.end)
    left: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        left.setdefault(row.id, []).append(number)
    foreign: set[str] = set()
    while left and (reads := reading.reads()):
        for span, _, bodies in reading.take(served(await log.read(reads, CALL_BYTES))):
            topic = span.name.topic
            for m in decoded(bodies):
                if (numbers := left.get(m.id)) is None:
                    continue
                found = next((n for n in numbers if _is_of(rows[n], topic, m)), None)
                if found is None:
                    foreign.add(m.id)
                elif len(numbers) == 1:
                    del left[m.id]
                else:
                    numbers.remove(found)
    missing = sorted(number for numbers in left.values() for number in numbers)
    return PutCheck([rows[number] for number in missing], frozenset(foreign), trimmed)


def _is_of(row: Row, topic: str, m: Message) -> bool:
    return (row.topic, row.payload, row.key) == (topic, m.payload, m.key)
