"""Publishing for later: delayed messages and schedules wait in the lane of the group that will run them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from emq import errors, message
from emq.clock import Clock
from emq.durability import Durability
from emq.message import Message
from emq.model import Topic
from emq.producer.batcher import Batcher
from emq.producer.times import number
from emq.storage import Add, LaneStore, Settle, Verdict
from emq.trail.sink import TrailSink

TRIES = 5
"""How often a message is placed anew when its group turns out to be retired."""


class _Item(NamedTuple):
    topic: Topic
    group: int
    message: Message
    due_ms: int


class LaneProducer:
    """Adds messages to lanes.

    A lane cannot be sealed, so a group might be retired between our look at the catalog and the add. The look is
    therefore repeated after the add, and the message placed anew if its group is gone; whoever retires a group looks
    at its lane once more after the catalog has changed. One of the two sees the message.
    """

    def __init__(
        self, lanes: LaneStore, trail: TrailSink, clock: Clock, look_again: Callable[[str], Awaitable[Topic]]
    ) -> None:
        """Args:
        look_again: the topic of that name as the catalog has it now.
        """
        self._lanes = lanes
        self._trail = trail
        self._clock = clock
        self._look_again = look_again
        self._batcher: Batcher[_Item, str] = Batcher(self._add, lambda item: len(item.message.payload))
        self.published = 0

    async def publish(self, topic: Topic, group: int, m: Message, due_ms: int) -> str:
        """Add one message, to be started at `due_ms`; adds awaited at the same time share a round trip."""
        return await self._batcher.send(_Item(topic, group, m, due_ms), topic.options.durability)

    async def _add(self, items: Sequence[_Item], durability: Durability) -> Sequence[str]:
        ids = [item.message.id for item in items]
        todo = list(items)
        for _ in range(TRIES):
            adds = [_entry(item) for item in todo]
            await self._lanes.add(adds, durability)
            self._record(todo)
            topics = await self._topics_now({i.topic.name for i in todo})
            astray = [i for i in todo if i.group >= topics[i.topic.name].groups]
            if not astray:
                break
            recalls = [Settle(i.topic.group(i.group), i.message.id, Verdict.RECALL) for i in astray]
            gone = await self._lanes.settle(recalls)
            # What is not there any more was found by whoever retired the group.
            todo = [_moved(i, topics[i.topic.name]) for i, mine in zip(astray, gone, strict=True) if mine is True]
        self.published += len(ids)
        return ids

    async def _topics_now(self, names: Iterable[str]) -> dict[str, Topic]:
        try:
            return {name: await self._look_again(name) for name in names}
        except errors.DatabaseUnavailable as exc:
            raise errors.OutcomeUnknown(f"stored, but it is not known whether its group still exists: {exc}") from exc

    def _record(self, items: Sequence[_Item]) -> None:
        if self._trail.enabled:
            now_us = self._clock.now_us()
            for topic, group, m, due_ms in items:
                if m.schedule is not None:
                    continue  # its occurrences are messages, it is none
                us = m.published_us
                self._trail.published(topic.name, group, m.priority, None, [m.id], [m.key], us, now_us, [due_ms])


def _moved(item: _Item, topic: Topic) -> _Item:
    return item._replace(topic=topic, group=item.group % topic.active_groups)


def delayed(
    topic: Topic,
    message_id: str,
    payload: bytes,
    *,
    key: str | None,
    priority: int,
    headers: dict[str, str] | None,
    score: float = 0,
    ttl_s: float | None = None,
    now_us: int,
    due_ms: int,
    schedule: bytes | None = None,
) -> Message:
    """The message as it waits in a lane. Its time to live counts from when it is due; a schedule's entry carries the
    duration instead, for its occurrences."""
    ttl_us = 0
    if (shortest := min((t for t in (ttl_s, topic.options.ttl_s) if t is not None), default=None)) is not None:
        if not number("ttl_s", shortest) > 0:
            raise errors.InvalidMessage(f"ttl_s {ttl_s} must be above 0")
        ttl_us = int(shortest * 1e6)
    return Message(
        message_id,
        payload,
        key=key,
        published_us=now_us,
        headers=headers,
        priority=priority,
        topic=topic.name,
        score=score,
        schedule=schedule,
        expires_us=ttl_us and (ttl_us if schedule else due_ms * 1000 + ttl_us),
    )


def _entry(item: _Item) -> Add:
    m = item.message
    return Add(item.topic.group(item.group), m.id, message.encode_retry(m), item.due_ms, priority=m.priority)
