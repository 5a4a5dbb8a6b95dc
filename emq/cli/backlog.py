"""What topics still have to do, queues and slots together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from emq.host.statistics import IN_SLOT
from emq.topics.model import Topic

if TYPE_CHECKING:
    from emq.inspect.admin import Admin


class Backlog(msgspec.Struct, frozen=True):
    """Attributes:
    ready: of a log topic by priority: in the log and not finished by the last checkpoint, so in flight is counted, too;
        of a sorted topic, as "slot": waiting in its slots, and due.
    delayed: waiting for their time: delayed messages, schedules, retries, and what is not due in slots.
    claimed: taken out of a lane or slot by a host: buffered, or in flight.
    dead: dead letters.
    """

    topic: str
    ready: dict[str, int]
    delayed: int
    claimed: int
    dead: int


async def of(admin: Admin, topics: Sequence[Topic]) -> list[Backlog]:
    """The backlog of each topic."""
    ready: Mapping[str, dict[str, int]] = {t.name: {} for t in topics}
    for lag in await admin.lag([t for t in topics if not t.is_sorted]):
        ready[lag.topic][lag.priority] = lag.unfinished
    found = await admin.slot_lag(topics)
    for topic, slots in zip(topics, found, strict=True):
        if topic.is_sorted:
            ready[topic.name][IN_SLOT] = slots.ready
    return [Backlog(s.topic, ready[s.topic], s.delayed, s.claimed, s.dead) for s in found]
