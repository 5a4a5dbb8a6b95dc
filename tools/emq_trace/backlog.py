"""The backlog of topics, queues and slots together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from emq.host.statistics import IN_SLOT
from emq.observe.admin import Admin
from emq.topics.model import Topic


class Backlog(msgspec.Struct, frozen=True):
    """Attributes:
    ready: for a log topic by priority: messages in the log that are not finished by the last checkpoint, including
        those in flight; for a sorted topic, as "slot": messages that wait in its slots and are due.
    delayed: entries that wait for their time: delayed messages, schedules, retries, and messages in slots before their
        due time.
    claimed: messages that a host claimed from a lane or slot: buffered, or in flight.
    dead: dead letters.
    """

    topic: str
    ready: dict[str, int]
    delayed: int
    claimed: int
    dead: int


async def of(admin: Admin, topics: Sequence[Topic]) -> list[Backlog]:
    """Return the backlog of each topic."""
    ready: Mapping[str, dict[str, int]] = {t.name: {} for t in topics}
    for lag in await admin.lag([t for t in topics if not t.is_sorted]):
        ready[lag.topic][lag.priority] = lag.unfinished
    found = await admin.slot_lag(topics)
    for topic, slots in zip(topics, found, strict=True):
        if topic.is_sorted:
            ready[topic.name][IN_SLOT] = slots.ready
    return [Backlog(s.topic, ready[s.topic], s.delayed, s.claimed, s.dead) for s in found]
