"""Publishing for later: puts delayed messages and schedules into the lane of the group that will run them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from emq.producer import checks, reopening
from emq.producer.batcher import Batcher
from emq.producer.doubtful_delays import Doubts
from emq.producer.outcomes import Repeated
from emq.producer.reopening import Reopening
from emq.producer.scores import score_of
from emq.runtime import errors
from emq.runtime.clock import Clock
from emq.runtime.inputs import number
from emq.storage import message
from emq.storage.answers import FAILURES, of_each, of_each_add
from emq.storage.durability import Durability
from emq.storage.lane_store import LaneAdd, LaneSettle, LaneStore, LaneVerdict
from emq.storage.message import Message
from emq.topics.key_layouts import group_of_key
from emq.topics.model import Kind, Topic
from emq.trail import events
from emq.trail.sink import TrailSink

log = logging.getLogger(__name__)

TRIES = 5
"""Most tries to place a message whose group turns out to be gone."""


class _Item(NamedTuple):
    topic: Topic
    group: int
    message: Message
    due_ms: int

    @property
    def size(self) -> int:
        return message.size_of(self.message)


class LaneProducer:
    """Adds messages to lanes.

    A deletion of the topic first seals its lanes. If a sealed lane refuses a message, the producer places the message
    again by the catalog. Lanes of groups that retire are not sealed, so a group may go between the producer's look at
    the catalog and the add. So the producer looks again after the add, and places the message again if its group is
    gone. The host that retires a group looks at the lane once more after the change of the catalog. One of the two sees
    the message. While the database is away, the producer's second look waits (`Doubts`).
    """

    def __init__(
        self,
        lanes: LaneStore,
        trail: TrailSink,
        clock: Clock,
        look_again: Callable[[str], Awaitable[Topic]],
        reopened: Reopening,
    ) -> None:
        """Args:
        look_again: returns the topic of that name as the catalog has it now.
        """
        self._lanes = lanes
        self._trail = trail
        self._clock = clock
        self._look_again = look_again
        self._reopened = reopened
        self._batcher: Batcher[_Item, str] = Batcher(self._add)
        self._doubts: Doubts[_Item] = Doubts(self._confirm)
        self._unplaced: list[_Item] = []
        self.published = 0

    async def publish(self, topic: Topic, group: int, m: Message, due_ms: int) -> str:
        """Add one message, due at `due_ms`; adds awaited at the same time share a round trip. Returns the message's id.

        Raises:
            DatabaseUnavailable: too many messages wait for the database already; nothing was published.
        """
        self._doubts.refuse_more()
        item = _Item(topic, group, m, due_ms)
        for tries in range(1, reopening.TRIES + 1):
            try:
                return await self._batcher.send(item, item.topic.options.durability, item.size)
            except errors.QueueSealed as exc:  # the topic was deleted, and perhaps created again
                if tries == reopening.TRIES:
                    raise reopening.unopened(topic.name) from exc
            item = _moved(item, (await self._reopened.look(topic.name, tries)).topic)
        raise AssertionError("unreachable")

    async def _add(self, items: Sequence[_Item], durability: Durability) -> Sequence[str | Exception]:
        answers: dict[int, str | Exception] = {}
        todo = list(enumerate(items))
        for _ in range(TRIES):
            added = await of_each(self._lanes.add([_entry(item) for _, item in todo], durability), len(todo))
            stored, new = [], []
            for (place, item), answer in zip(todo, added, strict=True):
                if isinstance(answer, (*FAILURES, errors.QueueSealed)):
                    answers[place] = answer
                else:
                    answers[place] = item.message.id
                    stored.append((place, item))
                    if answer or not item.topic.dedupe_ms:
                        new.append(item)
                    else:  # the first publish of the id has been recorded and counted
                        answers[place] = Repeated(item.message.id)
            self._record(new)
            try:
                todo = await self._astray(stored, answers) if stored else []
            except Exception as exc:  # they are stored: who publishes them need not know of it
                if not isinstance(exc, errors.DatabaseUnavailable):
                    log.exception("the groups of delayed messages could not be looked at; EMQ looks again")
                # A topic's first group is never retired.
                self._doubts.put([item for _, item in stored if item.group > 0])
                break
            if not todo:
                break
        self.published += sum(isinstance(a, str) and not isinstance(a, Repeated) for a in answers.values())
        if self._trail.enabled:
            self._doubt([items[place] for place, a in answers.items() if isinstance(a, errors.OutcomeUnknown)])
        return [answers[place] for place in range(len(items))]

    async def _astray(
        self, added: Sequence[tuple[int, _Item]], answers: dict[int, str | Exception]
    ) -> list[tuple[int, _Item]]:
        """Look at the catalog again; take messages back from groups that are gone, and return these messages."""
        topics: dict[str, Topic] = {}
        for name in {item.topic.name for _, item in added}:
            try:
                topics[name] = await self._look_again(name)
            except errors.UnknownTopic as exc:  # other topics share the call: refuse only these messages
                answers.update((place, exc) for place, item in added if item.topic.name == name)
        known = [(place, item) for place, item in added if item.topic.name in topics]
        astray = [(place, item) for place, item in known if item.group >= topics[item.topic.name].groups]
        gone = await self._recalled([item for _, item in astray])
        again = []
        for (place, item), mine in zip(astray, gone, strict=True):
            if isinstance(mine, FAILURES):
                answers[place] = errors.OutcomeUnknown(f"stored in a group that is gone, and not taken back: {mine}")
            elif mine is True:  # else the host that retired the group has found the message
                again.append((place, _moved(item, topics[item.topic.name])))
        return again

    async def _recalled(self, items: Sequence[_Item]) -> Sequence[object]:
        recalls = [LaneSettle(i.topic.group(i.group), i.message.uid, LaneVerdict.RECALL) for i in items]
        return await of_each(self._lanes.settle(recalls), len(recalls)) if recalls else ()

    # ------------------------------------------------------------------------------------ while the database was away

    async def _confirm(self, doubtful: Sequence[_Item]) -> Sequence[_Item]:
        """Place messages again whose group is gone; return the messages that need another look."""
        topics: dict[str, Topic] = {}
        for name in {item.topic.name for item in doubtful}:
            with contextlib.suppress(errors.UnknownTopic):  # the topic's deletion deleted the messages, too
                topics[name] = await self._look_again(name)
        known = [item for item in doubtful if item.topic.name in topics]
        astray = [item for item in known if item.group >= topics[item.topic.name].groups]
        left = []
        for item, mine in zip(astray, await self._recalled(astray), strict=True):
            if mine is True or isinstance(mine, errors.OutcomeUnknown):  # rather delivered twice than never
                self._unplaced.append(_moved(item, topics[item.topic.name]))
            elif isinstance(mine, FAILURES):
                left.append(item)
        if self._unplaced:
            moved = [(_entry(item), item.topic.options.durability) for item in self._unplaced]
            added = await of_each_add(self._lanes.add, moved)
            self._unplaced = [i for i, a in zip(self._unplaced, added, strict=True) if isinstance(a, FAILURES)]
        return [*left, *self._unplaced]

    def _doubt(self, items: Sequence[_Item]) -> None:
        now_us = self._clock.now_us()
        for topic, group, m, _ in items:
            self._trail.record(events.Doubted(now_us, topic.name, group, [m.uid], m.priority))

    def _record(self, items: Sequence[_Item]) -> None:
        if self._trail.enabled:
            now_us = self._clock.now_us()
            for topic, group, m, due_ms in items:
                if m.schedule is not None:
                    continue  # a schedule is not a message; its occurrences are
                self._trail.record(
                    events.Published(
                        now_us, topic.name, group, [m.uid], m.priority, m.published_us, keys=[m.key], due_ms=[due_ms]
                    )
                )


def _moved(item: _Item, topic: Topic) -> _Item:
    key = item.message.key
    moved = item.group % topic.active_groups if key is None else group_of_key(key, topic.active_groups)
    return item._replace(topic=topic, group=moved)


def delayed(
    topic: Topic,
    uid: str,
    payload: bytes,
    key: str | None,
    priority: str | float | None,
    headers: Mapping[str, str] | None,
    ttl_s: float | None,
    now_us: int,
    due_ms: int,
    schedule: bytes | None = None,
) -> Message:
    """Return the message as it waits in a lane.

    Its time to live counts from the time at which it is due. A schedule's entry carries the duration instead, for its
    occurrences.
    """
    ttl_us = 0
    if ttl_s is not None:
        number("ttl_s", ttl_s)
    if (shortest := min((t for t in (ttl_s, topic.options.ttl_s) if t is not None), default=None)) is not None:
        ttl_us = checks.ttl_us(shortest)
    return Message(
        uid,
        payload,
        key=key,
        published_us=now_us,
        headers=dict(headers) if headers else None,
        priority=0 if topic.is_sorted else topic.priority_index(priority),
        topic=topic.name,
        score=score_of(topic, priority, None, None, now_us) if topic.kind is Kind.PRIORITY else 0,
        schedule=schedule,
        expires_us=ttl_us and (ttl_us if schedule else due_ms * 1000 + ttl_us),
    )


def _entry(item: _Item) -> LaneAdd:
    m = item.message
    lane, remember_ms = item.topic.group(item.group), 0 if m.schedule else item.topic.dedupe_ms
    body = message.encode_retry(m)
    return LaneAdd(lane, m.uid, body, item.due_ms, priority=m.priority, remember_ms=remember_ms)
