"""Tells how much work is left in an app: how many messages of each topic wait, run, and are due later."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from emq import State, Topic
from emq.observe import planned as book
from emq.storage.answers import served
from emq_testing.record import Record

if TYPE_CHECKING:
    from emq import App
    from emq.host.host import Host


class NotSettled(AssertionError):
    """The app did not come to rest in the given virtual time; the text names what is left."""


class Left(NamedTuple):
    """The work that is left for one topic.

    Attributes:
        ready: messages that may start, or would if their rate and the topic's state let them.
        in_flight: messages that were started and not settled.
        later: messages that wait for their time: delayed ones, retries and schedules.
        next_due_ms: due time of the first of `later`, milliseconds since the epoch; None without one, or if unknown.
        why: the reason why nothing starts (the topic is paused, or without a handler); empty if messages may start.
    """

    topic: str
    ready: int
    in_flight: int
    later: int
    next_due_ms: float | None
    why: str

    @property
    def is_busy(self) -> bool:
        """True while messages run, or wait and may start."""
        return bool(self.in_flight or (self.ready and not self.why))

    @property
    def is_due(self) -> bool:
        """True while messages wait that may start now."""
        return bool(self.ready and not self.why)

    def __str__(self) -> str:
        parts = [f"{self.ready} ready"] * (self.ready > 0) + [f"{self.in_flight} in flight"] * (self.in_flight > 0)
        parts += [f"{self.later} to come later"] * (self.later > 0) + [self.why] * bool(self.why)
        return f"{self.topic}: {', '.join(parts) or 'nothing'}"


async def look(app: App, record: Record) -> list[Left]:
    """Return what is left of each topic that has anything left."""
    topics, host = await app.catalog.list(), app.host
    assert host is not None
    now_ms = app.clock.now_us() // 1000
    found = [await _left(app, host, topic, record, now_ms) for topic in topics]
    return [left for left in found if left.ready or left.in_flight or left.later]


async def _left(app: App, host: Host, topic: Topic, record: Record, now_ms: int) -> Left:
    ready = later = 0
    dues: list[float] = []
    if not topic.is_sorted:
        ready += await _unfinished(app, host, topic)
    for lane in served(await app.store.lanes.inspect([topic.group(group) for group in range(topic.groups)])):
        is_due = lane.next_due_ms is not None and lane.next_due_ms <= now_ms
        ready += lane.prepared + is_due
        later += lane.waiting - is_due
        if lane.next_due_ms is not None:
            dues.append(lane.next_due_ms)
    if topic.is_sorted:
        slots = [topic.slot(group) for group in range(topic.groups)]
        for slot in served(await app.store.sorted.inspect(slots, now_ms)):
            ready += slot.due + slot.prepared - slot.resting
            later += slot.waiting - slot.due + slot.resting
            if slot.waiting > slot.due and slot.next_score is not None:
                dues.append(slot.next_score)
            if slot.resting and (retry_ms := record.next_retry_ms(topic.name, now_ms)) is not None:
                dues.append(retry_ms)
    owner = host.ownership.owned.get(topic.name)
    in_flight = 0 if owner is None else owner.in_flight
    ready = max(0, ready - in_flight)
    return Left(topic.name, ready, in_flight, later, min(dues, default=None), _why(app, topic))


async def _unfinished(app: App, host: Host, topic: Topic) -> int:
    """Count the messages in the topic's queues that are not finished. A host knows its own groups best."""
    names = topic.all_queues()
    count = 0
    for name, bounds in zip(names, served(await app.store.log.bounds(names)), strict=True):
        queue = host.ownership.queues.get(name)
        count += bounds.tail - (bounds.head if queue is None else min(bounds.tail, queue.tracker.total()))
    return count


def _why(app: App, topic: Topic) -> str:
    if topic.state is State.PAUSED:
        return "paused"
    return "" if app.handlers.find(topic.name) is not None else "without a handler"


async def has_later(app: App, found: Iterable[Left]) -> bool:
    """Return whether delayed messages or retries wait that can start one day. Schedules do not count."""
    for left in found:
        if left.later and not left.why:
            topic = await app.catalog.get(left.topic)
            schedules = 0
            found_in_lanes = cast(AsyncGenerator[book.Planned, None], book.find(app.store.lanes, [topic]))
            async with contextlib.aclosing(found_in_lanes) as entries:
                async for planned in entries:
                    if planned.schedule is None:
                        return True
                    schedules += 1
            if left.later > schedules:
                return True
    return False


def listed(left: Iterable[Left]) -> str:
    return "; ".join(map(str, left)) or "nothing"


def is_at_rest(found: Sequence[Left]) -> bool:
    """Return whether nothing runs, and nothing that may start waits."""
    return not any(left.is_busy for left in found)
