"""A view of store and database for an audit; the driver reads it through EMQ's own classes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from emq import App
from emq.observe import dead_letters
from emq.offsets.checkpoints import Checkpoint
from emq.storage import message
from emq.storage.answers import served
from emq.storage.names import QueueName
from emq.storage.store import Store
from emq.topics.model import Topic

PAGE = 1_000
CHUNK = 3_000


class QueueView(NamedTuple):
    """A queue's checkpoint and bounds, as offsets; without a checkpoint, epoch is 0 and watermark equals head.

    Attributes:
        incarnation: that of the queue; 0 if the store had not made the queue yet, or for a look of an older version.
    """

    topic: str
    group: int
    priority: int
    watermark: int
    epoch: int
    head: int
    tail: int
    finished: tuple[tuple[int, int], ...] = ()
    incarnation: int = 0


class LaneView(NamedTuple):
    """The number of messages claimed from a group's lane and slot; the store does not tell their ids."""

    topic: str
    group: int
    claimed: int


@dataclass(frozen=True)
class StoreView:
    """A look at all places that hold messages.

    Reading takes a while, so the view is not of one moment: stop the hosts first, or audit with `live`.

    Attributes:
        queues: the queues of all log topics.
        lanes: the groups from whose lane or slot a host has claimed messages.
        waiting: (topic, id) of each message that waits in a lane or slot.
        dead: (topic, id, time of death in microseconds since the epoch) of each dead letter; without the time if it
            is unknown.
        at_us: begin of the look, microseconds since the epoch; a time after all events if unknown.
    """

    queues: Sequence[QueueView] = ()
    lanes: Sequence[LaneView] = ()
    waiting: Sequence[tuple[str, str]] = ()
    dead: Sequence[tuple[str, str] | tuple[str, str, int]] = ()
    at_us: int = 1 << 62

    def letters(self, since_us: int = 0) -> list[tuple[str, str]]:
        """Return (topic, id) of each dead letter whose message died at a time or later, or at an unknown time."""
        return [(topic, id_) for topic, id_, *died_us in self.dead if not died_us or died_us[0] >= since_us]


async def look(app: App) -> tuple[list[Topic], StoreView]:
    """Return the topics of the catalog, and a view of store and checkpoints.

    Args:
        app: an open app.

    Raises:
        StoreUnavailable, DatabaseUnavailable: try again later.
    """
    at_us = time.time_ns() // 1000
    topics = list(await app.catalog.list())
    checkpoints = await app.checkpoints.load_all()
    queues: list[QueueView] = []
    names = [name for topic in topics for name in topic.all_queues()]
    priorities = {topic.name: topic.priorities for topic in topics}
    for start in range(0, len(names), CHUNK):
        chunk = names[start : start + CHUNK]
        for queue, bounds in zip(chunk, served(await app.store.log.bounds(chunk)), strict=True):
            name, group, priority = QueueName.parse(queue)
            saved = checkpoints.get(queue, Checkpoint(queue, 0, bounds.head))
            index = priorities[name].index(priority)
            place, ends = (name, group, index), (bounds.head, bounds.tail)
            queues.append(QueueView(*place, saved.watermark, saved.epoch, *ends, saved.finished, bounds.incarnation))
    waiting: list[tuple[str, str]] = []
    lanes: list[LaneView] = []
    dead: list[tuple[str, str, int]] = []
    for topic in topics:
        lanes += await _groups(app.store, topic, waiting)
        dead += [
            (letter.topic, letter.uid, letter.dead_ms * 1000) async for letter in dead_letters.find(app.store, topic)
        ]
    return topics, StoreView(queues, lanes, waiting, dead, at_us)


async def _groups(store: Store, topic: Topic, waiting: list[tuple[str, str]]) -> list[LaneView]:
    """Return the groups of a topic with claimed messages; add the topic's waiting messages to `waiting`."""
    found = []
    names = [topic.group(group) for group in range(topic.groups)]
    for group, (name, state) in enumerate(zip(names, served(await store.lanes.inspect(names)), strict=True)):
        claimed = state.prepared
        skip = 0
        while state.waiting and (page := await store.lanes.waiting(name, skip, PAGE)):
            waiting += [(topic.name, entry.id) for entry in page]
            skip += len(page)
        if topic.is_sorted:
            claimed += await _slot(store, topic, group, waiting)
        if claimed:
            found.append(LaneView(topic.name, group, claimed))
    return found


async def _slot(store: Store, topic: Topic, group: int, waiting: list[tuple[str, str]]) -> int:
    slot = topic.slot(group)
    [state] = served(await store.sorted.inspect([slot], 0))
    skip = 0
    while state.waiting and (page := await store.sorted.waiting(slot, skip, PAGE)):
        skip += len(page)
        waiting += [(topic.name, message.slot_id(group, entry.member)) for entry in page]
    return state.prepared
