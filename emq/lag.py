"""Lag: what a topic still has to do; ready, delayed and in flight are never one lump."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from emq.model import Topic
from emq.offsets.checkpoints import CheckpointStore
from emq.storage import LaneStore, LogStore

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
    """Attributes:
    delayed: waiting in the retry slots for their time.
    retrying: claimed from them: buffered or in flight on a host.
    dead: dead letters.
    """

    topic: str
    delayed: int
    retrying: int
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


async def of_slots(store: LaneStore, topics: Sequence[Topic]) -> list[SlotLag]:
    """Delayed, claimed and dead messages of each topic."""
    states = iter(await store.inspect([t.group(g) for t in topics for g in range(t.groups)]))
    found = []
    for t in topics:
        of_topic = [next(states) for _ in range(t.groups)]
        sums = [sum(column) for column in zip(*((s.waiting, s.prepared, s.dead) for s in of_topic), strict=True)]
        found.append(SlotLag(t.name, *sums))
    return found
