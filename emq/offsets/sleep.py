"""Puts topics to sleep that hold nothing; the next publish wakes them."""

from __future__ import annotations

from collections.abc import Sequence

from emq.offsets import deletion, lag
from emq.offsets.checkpoints import CheckpointStore
from emq.storage.answers import served
from emq.storage.store import Store
from emq.topics import opening
from emq.topics.catalog import Catalog
from emq.topics.model import Topic


async def put_to_sleep(
    store: Store, catalog: Catalog, checkpoints: CheckpointStore, topics: Sequence[Topic], now_ms: int
) -> set[str]:
    """Put those of the topics to sleep that hold nothing at all; return their names.

    The store seals lanes, slots and queues, but no queue that holds a message. Then everything is counted once more:
    from now on nobody adds anything. At last the catalog has the topics asleep, but none whose row somebody has written
    since before the first count.

    So a publish at the same moment wins. The store refuses it; its producer reads the catalog again, and wakes the
    topic, or it writes the topic's row and opens the queues (`FamilyCatalog.awaken`).

    Raises:
        StoreUnavailable, StoreFull, DatabaseUnavailable: try again later. Topics may be sealed until somebody publishes
            to them, or until the next call.
    """
    versions = await catalog.families.versions([topic.name for topic in topics])
    now = await catalog.some(versions)
    there = [topic for topic in topics if now.get(topic.name) == topic]  # else it may have other groups than counted
    found = await empty_ones(store, checkpoints, there, now_ms)
    still: Sequence[Topic] = ()
    try:
        sealed = await deletion.seal_empty(store, checkpoints, found)
        still = await empty_ones(store, checkpoints, sealed, now_ms)
    finally:  # the others have got a message in this moment
        empty = {topic.name for topic in still}
        await opening.opened(store, [topic for topic in found if topic.name not in empty])
    if not still:
        return set()
    drop = await checkpoints.dropping()
    # If the answer is lost, the topics may sleep. So they stay sealed: whoever publishes to one opens it.
    gone = await catalog.families.sleep({topic.name: versions[topic.name] for topic in still}, drop)
    await opening.opened(store, [topic for topic in still if topic.name not in gone])
    await deletion.forget_taken(store, [topic for topic in still if topic.name in gone])
    return gone


async def empty_ones(store: Store, checkpoints: CheckpointStore, topics: Sequence[Topic], now_ms: int) -> list[Topic]:
    """Return the topics that hold nothing: no message in any state, no dead letter, nothing retained.

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
