"""Lag: what a topic still has to do; ready, delayed and in flight are never one lump."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from emq.model import Topic
from emq.offsets.checkpoints import CheckpointStore
from emq.storage import LogStore, Store

MANY = 3_000
"""From so many queues on, reading all checkpoints at once is quicker than naming them."""


class Lag(NamedTuple):
    """Attributes:
    unfinished: messages of one priority that are in the log and not finished by the last checkpoint: ready, or in
        flight on a host. Offsets that hold nothing are counted until a host has met them.
    """

    topic: str
    priority: str
    unfinished: int


class SlotLag(NamedTuple):
    """What waits in a topic's lanes, and in the slots of a sorted topic.

    Attributes:
        ready: of a sorted topic, waiting in its slots and due.
        delayed: waiting for their time, in lanes or slots.
        claimed: out of a lane or slot: buffered, or in flight on a host.
        dead: dead letters.
    """

    topic: str
    ready: int
    delayed: int
    claimed: int
    dead: int


async def unfinished(log: LogStore, checkpoints: CheckpointStore, queues: Sequence[str]) -> list[int]:
    """Messages of each queue that no checkpoint says are finished."""
    saved = await (checkpoints.load_all() if len(queues) > MANY else checkpoints.load(queues))
    counts = []
    for queue, bounds in zip(queues, await log.bounds(queues), strict=True):
        checkpoint = saved.get(queue)
        start = bounds.head if checkpoint is None else max(bounds.head, checkpoint.watermark)
        beyond = 0 if checkpoint is None else sum(e - max(s, start) for s, e in checkpoint.finished if e > start)
        counts.append(max(0, bounds.tail - start - beyond))
    return counts


async def of_queues(log: LogStore, checkpoints: CheckpointStore, topics: Sequence[Topic]) -> list[Lag]:
    """The lag of each topic and priority."""
    queues = [q for t in topics for q in t.all_queues()]
    counts = dict(zip(queues, await unfinished(log, checkpoints, queues), strict=True))
    return [
        Lag(t.name, p, sum(counts[t.queue(g, i)] for g in range(t.groups)))
        for t in topics
        for i, p in enumerate(t.priorities)
    ]


async def of_slots(store: Store, topics: Sequence[Topic], now_ms: int) -> list[SlotLag]:
    """What waits in lanes and slots, topic by topic."""
    lanes = iter(await store.lanes.inspect([t.group(g) for t in topics for g in range(t.groups)]))
    places = [t.slot(g) for t in topics if t.is_sorted for g in range(t.groups)]
    slots = iter(await store.sorted.inspect(places, now_ms) if places else ())
    found = []
    for t in topics:
        ready = delayed = claimed = dead = 0
        for lane in (next(lanes) for _ in range(t.groups)):
            delayed, claimed, dead = delayed + lane.waiting, claimed + lane.prepared, dead + lane.dead
        for slot in (next(slots) for _ in range(t.groups if t.is_sorted else 0)):
            ready, delayed = ready + slot.due, delayed + slot.waiting - slot.due
            claimed, dead = claimed + slot.prepared, dead + slot.dead
        found.append(SlotLag(t.name, ready, delayed, claimed, dead))
    return found
