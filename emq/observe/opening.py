"""Opens queues, lanes and slots that were sealed for an earlier topic or group."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from emq.observe.deletion import CHUNK, Place, settle_all
from emq.storage.answers import served
from emq.storage.lane_store import LaneVerdict
from emq.storage.log_store import Trim
from emq.storage.names import group_of, topic_of
from emq.storage.slot_store import SlotVerdict
from emq.storage.store import Store
from emq.topics.model import Topic

STABLE_S = 2.0
"""Seconds after which a second look checks that they are still open. A store that lost its last second in a crash has
sealed them again."""
LOOKS = 5
"""Most looks, in case something else seals them."""


async def open_all(store: Store, topics: Sequence[Topic]) -> None:
    """Open queues, lanes and slots that are sealed, and see that they stay open. Safe to repeat.

    Groups that retire are left out, because their host may be about to seal them.
    """
    for _ in range(LOOKS):
        topics = await _opened(store, topics)
        if not topics:
            return
        await asyncio.sleep(STABLE_S)


async def _opened(store: Store, topics: Sequence[Topic]) -> list[Topic]:
    """Open sealed queues, lanes and slots; return the topics that had any."""
    queues = [q for t in topics for group in range(t.active_groups) for q in t.queues(group)]
    found: set[str] = set()
    for start in range(0, len(queues), CHUNK):
        part = queues[start : start + CHUNK]
        looks = served(await store.log.trim([Trim(q, 0, None) for q in part]))
        if sealed := [q for q, look in zip(part, looks, strict=True) if look is True]:
            served(await store.log.trim([Trim(q, 0, None, seal=False) for q in sealed]))
            found.update(topic_of(group_of(q)) for q in sealed)
    places = [Place(topic, group) for topic in topics for group in range(topic.active_groups)]
    found |= await settle_all(store, places, LaneVerdict.OPEN, SlotVerdict.OPEN)
    return [topic for topic in topics if topic.name in found]
