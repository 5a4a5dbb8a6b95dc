"""Lag: counts of a topic's unfinished messages; ready, delayed and in flight stay apart."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from emq.offsets.checkpoints import Checkpoint, CheckpointStore
from emq.storage.answers import served
from emq.storage.lane_store import LaneState
from emq.storage.log_store import LogStore
from emq.storage.slot_store import SlotState
from emq.storage.store import Store
from emq.topics.model import Topic

AT_ONCE = 1_000
GROUPS_AT_ONCE = 500
"""Most queues (`AT_ONCE`) and groups (`GROUPS_AT_ONCE`) looked at before the event loop serves other tasks."""


class Lag(NamedTuple):
    """Attributes:
    unfinished: number of messages of one priority that the last checkpoint does not count as finished: ready, or in
        flight on a host. Offsets without a message count until a host has read past them.
    """

    topic: str
    priority: str
    unfinished: int


class SlotLag(NamedTuple):
    """Counts of the messages in a topic's lanes, and in the slots of a sorted topic.

    Attributes:
        ready: messages that wait in the slots of a sorted topic and are due.
        delayed: messages that wait for their time, in lanes or slots.
        claimed: messages claimed from a lane or slot: buffered, or in flight on a host.
        dead: dead letters.
    """

    topic: str
    ready: int
    delayed: int
    claimed: int
    dead: int


async def unfinished(log: LogStore, checkpoints: CheckpointStore, queues: Sequence[str]) -> list[int]:
    """Return the number of messages of each queue that are not finished by its checkpoint."""
    counts: list[int] = []
    for start in range(0, len(queues), AT_ONCE):
        part = queues[start : start + AT_ONCE]
        saved = await checkpoints.load(part)
        for queue, bounds in zip(part, served(await log.bounds(part)), strict=True):
            checkpoint = saved.get(queue) or Checkpoint(queue, 0, 0)
            counts.append(checkpoint.unfinished(bounds.head, bounds.tail))
        await asyncio.sleep(0)
    return counts


SOON_MS = 5_000
"""Milliseconds ahead within which a lane's entries count as ready, because giving a group its share takes some
seconds."""


async def holding(
    store: Store, checkpoints: CheckpointStore, topic: Topic, groups: Iterable[int], now_ms: int
) -> set[int]:
    """Return the groups of a log topic that have messages to start, or will have some within `SOON_MS`."""
    places = [(topic, group) for group in groups]
    return {group for _, group in await holding_of(store, checkpoints, places, now_ms)}


async def holding_of(
    store: Store, checkpoints: CheckpointStore, places: Sequence[tuple[Topic, int]], now_ms: int
) -> list[tuple[Topic, int]]:
    """Return those of these groups, of any log topics, that have messages; see `holding`."""
    found: list[tuple[Topic, int]] = []
    for start in range(0, len(places), GROUPS_AT_ONCE):
        part = places[start : start + GROUPS_AT_ONCE]
        queues = [q for topic, group in part for q in topic.queues(group)]
        counts = iter(await unfinished(store.log, checkpoints, queues))
        ready = [sum(next(counts) for _ in topic.priorities) for topic, _ in part]
        lanes = served(await store.lanes.inspect([topic.group(group) for topic, group in part]))
        found += [
            place
            for place, left, lane in zip(part, ready, lanes, strict=True)
            if left or lane.prepared or (lane.next_due_ms is not None and lane.next_due_ms < now_ms + SOON_MS)
        ]
    return found


async def of_queues(log: LogStore, checkpoints: CheckpointStore, topics: Sequence[Topic]) -> list[Lag]:
    """Return the lag of each topic and priority."""
    queues = [q for t in topics for q in t.all_queues()]
    counts = dict(zip(queues, await unfinished(log, checkpoints, queues), strict=True))
    return [
        Lag(t.name, p, sum(counts[t.queue(g, i)] for g in range(t.groups)))
        for t in topics
        for i, p in enumerate(t.priorities)
    ]


async def of_slots(store: Store, topics: Sequence[Topic], now_ms: int) -> list[SlotLag]:
    """Return the counts of lanes and slots, topic by topic."""
    lanes = iter(served(await store.lanes.inspect([t.group(g) for t in topics for g in range(t.groups)])))
    places = [t.slot(g) for t in topics if t.is_sorted for g in range(t.groups)]
    slots = iter(served(await store.sorted.inspect(places, now_ms)) if places else ())
    found = []
    for t in topics:
        counts = [of_place(next(lanes), next(slots) if t.is_sorted else None) for _ in range(t.groups)]
        found.append(SlotLag(t.name, *map(sum, zip(*counts, strict=True))))
    return found


def of_place(lane: LaneState, slot: SlotState | None = None) -> tuple[int, int, int, int]:
    """Return what is ready, delayed, claimed and dead in the lane of a group and, for a sorted topic, in its slot."""
    if slot is None:
        return 0, lane.waiting, lane.prepared, lane.dead
    delayed = lane.waiting + slot.waiting - slot.due + slot.resting
    return slot.due, delayed, lane.prepared + slot.prepared - slot.resting, lane.dead + slot.dead
