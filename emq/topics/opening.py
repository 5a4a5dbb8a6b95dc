"""Opens queues, lanes and slots that were sealed for an earlier topic or group."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from emq.storage.answers import served
from emq.storage.lane_store import LaneSettle, LaneVerdict
from emq.storage.log_store import Trim
from emq.storage.names import group_of, topic_of
from emq.storage.slot_store import SlotSettle, SlotVerdict
from emq.storage.store import Store
from emq.topics.model import Topic

CHUNK = 3_000
"""Most queues, lanes or messages in one call to the store."""

STABLE_S = 2.0
"""Seconds after which a second look checks that they are still open. A store that lost its last second in a crash has
sealed them again."""
LOOKS = 5
"""Most looks, in case something else seals them."""


class Place(NamedTuple):
    """A group of a topic."""

    topic: Topic
    group: int

    @property
    def lane(self) -> str:
        return self.topic.group(self.group)


def places_of(topics: Iterable[Topic]) -> list[Place]:
    """Return all groups of topics."""
    return [Place(topic, group) for topic in topics for group in range(topic.groups)]


async def settle_all(store: Store, places: Sequence[Place], of_lanes: LaneVerdict, of_slots: SlotVerdict) -> set[str]:
    """Give each lane and slot a verdict; return the names of the topics for which one returned True."""
    found: set[str] = set()
    for start in range(0, len(places), CHUNK):
        part = places[start : start + CHUNK]
        answers = served(await store.lanes.settle([LaneSettle(place.lane, "", of_lanes) for place in part]))
        found.update(place.topic.name for place, answer in zip(part, answers, strict=True) if answer is True)
        if in_slots := [place for place in part if place.topic.is_sorted]:
            slots = [SlotSettle(p.topic.slot(p.group), b"", of_slots) for p in in_slots]
            answers = served(await store.sorted.settle(slots))
            found.update(place.topic.name for place, answer in zip(in_slots, answers, strict=True) if answer is True)
    return found


async def open_all(store: Store, topics: Sequence[Topic]) -> Collection[str]:
    """Open queues, lanes and slots that are sealed, and see that they stay open. Safe to repeat.

    Groups that retire are left out, because their host may be about to seal them. Returns the names of the topics that
    had any.
    """
    found: set[str] = set()
    for _ in range(LOOKS):
        topics = await opened(store, topics)
        if not topics:
            break
        found.update(topic.name for topic in topics)
        await asyncio.sleep(STABLE_S)
    return found


async def opened(store: Store, topics: Sequence[Topic]) -> list[Topic]:
    """Open sealed queues, lanes and slots once; return the topics that had any. A topic that sleeps stays sealed."""
    topics = [topic for topic in topics if not topic.asleep_s]
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
