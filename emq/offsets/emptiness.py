"""Finds topics that hold nothing at all: no message in any state, no dead letter, nothing retained."""

from __future__ import annotations

from collections.abc import Sequence

from emq.offsets import lag
from emq.offsets.checkpoints import CheckpointStore
from emq.storage.answers import served
from emq.storage.store import Store
from emq.topics.model import Topic


async def empty_ones(store: Store, checkpoints: CheckpointStore, topics: Sequence[Topic], now_ms: int) -> list[Topic]:
    """Return the topics that hold nothing.

    The queues are counted first, and the lanes after them, since a message that fails goes from its queue to the lane.

    Raises:
        StoreUnavailable, StoreFull, DatabaseUnavailable: try again later.
    """
    if not topics:
        return []
    holding = {one.topic for one in await lag.of_queues(store.log, checkpoints, topics) if one.unfinished}
    retaining = [topic for topic in topics if topic.options.retention_s and topic.name not in holding]
    queues = [queue for topic in retaining for queue in topic.all_queues()]
    bounds = served(await store.log.bounds(queues)) if queues else ()
    kept = {queue for queue, found in zip(queues, bounds, strict=True) if found.tail > found.head}
    holding.update(topic.name for topic in retaining if not kept.isdisjoint(topic.all_queues()))
    left = [topic for topic in topics if topic.name not in holding]
    places = await lag.of_slots(store, left, now_ms)
    return [t for t, p in zip(left, places, strict=True) if not (p.ready or p.delayed or p.claimed or p.dead)]
