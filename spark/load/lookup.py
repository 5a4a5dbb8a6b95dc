"""Look whether messages are in the queues, after a publish or a whole task left them in doubt."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from emq.app import App
from emq.storage.answers import served
from emq.topics.model import Topic
from spark.load.recorder import Place
from spark.source.messages import bounds_of
from spark.source.rows import decoded
from spark.source.spans import CALL_BYTES, Reading, Span

FIRST = 1
"""The lowest offset of a queue."""


class LookupResult(NamedTuple):
    """Attributes:
    places: by id, of those messages that are there.
    doubtful: (topic, priority) of which messages are trimmed already that may be among those that were looked for.
    """

    places: Mapping[str, Place]
    doubtful: Collection[tuple[str, int]]


async def look(
    app: App, wanted: Collection[tuple[Topic, int]], ends: Mapping[tuple[str, int, int], int], ids: Collection[str]
) -> LookupResult:
    """Look for messages in all queues to which they may have gone.

    Args:
        wanted: topics of the catalog, and indices of priorities.
        ends: by (topic, group, priority), the offset from which on to look; a queue without an entry is looked through
            from its head.
        ids: ids of the messages.
    """
    log = app.store.log
    queues = {
        topic.queue(group, priority): (topic.name, group, priority)
        for topic, priority in wanted
        for group in range(topic.groups)
    }
    bounds = await bounds_of(log, list(queues))
    doubtful = {
        (queues[queue][0], queues[queue][2])
        for queue, (head, _) in bounds.items()
        if head > ends.get(queues[queue], FIRST)
    }
    spans = (Span(queue, max(ends.get(queues[queue], head), head), tail) for queue, (head, tail) in bounds.items())
    reading = Reading(span for span in spans if span.start < span.end)
    left, places = set(ids), dict[str, Place]()
    while left and (reads := reading.reads()):
        for span, offsets, bodies in reading.take(served(await log.read(reads, CALL_BYTES))):
            _, group, priority = queues[span.queue]
            for offset, m in zip(offsets, decoded(bodies), strict=True):
                if m.id in left:
                    places[m.id] = Place(group, priority, offset, m.published_us)
        left -= places.keys()
    return LookupResult(places, doubtful)
