"""Puts messages into an endpoint's topic once more, under the ids that they have.

A dead letter leaves the dead letters in the same step in which it waits again (`LaneVerdict.REPLAY`), so repeated calls
replay it once. A message that is not in a lane is added to one. A repeat adds nothing while the message waits, and adds
it again after it was delivered. So a repeat after a crash loses nothing, and sends at most the messages under way
again.

Messages go into lanes and not into queues. The `dedupe_s` of a topic is for publishes that are repeated by mistake, so
it does not hold back these messages. The lanes of a topic that sleeps are sealed: a message for it wakes it.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from emq.observe import planned
from emq.producer import checks
from emq.runtime import errors
from emq.storage import message
from emq.storage.answers import served
from emq.storage.lane_store import EntryState, LaneAdd, LaneSettle, LaneVerdict
from emq.storage.message import Message
from emq.topics.key_layouts import group_of_key
from emq.topics.model import Topic
from emq.trail import events
from emq_push.records import accepted
from emq_push.service.parts import Parts

CHUNK = 3_000
"""Most verdicts in one call to the store."""

TRIES = 5
"""Most times that a message is placed whose group is retired meanwhile, or whose topic sleeps or falls asleep."""


class Put(enum.Enum):
    """How a message was put."""

    REPLAYED = "replayed"
    """It was a dead letter."""
    ADDED = "added"
    THERE = "there"
    """The lane has it already: it waits, or a host has claimed it."""


class Item(NamedTuple):
    """A message to send once more.

    Attributes:
        payload: as accepted.
        priority: name of the priority at which it waits; None for its own.
    """

    message: accepted.Message
    payload: bytes
    priority: str | None = None


async def put(parts: Parts, topic: Topic, items: Sequence[Item]) -> list[Put]:
    """Let messages of one topic wait again; returns how, in order. Safe to repeat.

    Raises:
        TopicClosed: the topic was deleted, or is being deleted.
        StoreUnavailable, StoreFull, OutcomeUnknown: perhaps a part was put; repeat the call.
    """
    now_us = parts.app.clock.now_us()
    made = [_message(topic, item, now_us) for item in items]
    found = await _in_lanes(parts, topic, made, now_us)
    rest = [i for i in range(len(made)) if i not in found]
    for tries in range(1, TRIES + 1):
        if not rest:
            break
        added = await _added(parts, topic, {i: made[i] for i in rest}, now_us)
        found |= added
        refused = [i for i in rest if i not in added]
        rest, topic = await _astray(parts, topic, {i: made[i] for i in added})
        if refused:
            rest, topic = [*rest, *refused], await _awake(parts, topic, tries)
    if rest:
        raise errors.TopicClosed(f"topic {topic.name!r} was deleted, or is being deleted")
    return [found[i] for i in range(len(made))]


def _message(topic: Topic, item: Item, now_us: int) -> Message:
    names, m = topic.priorities, item.message
    wanted = item.priority if item.priority in names else m.rest.priority
    ttl_s = min((t for t in (m.rest.ttl_s, topic.options.ttl_s) if t is not None), default=None)
    return Message(
        m.id,
        item.payload,
        key=m.rest.key,
        published_us=now_us,
        headers=m.headers,
        priority=names.index(wanted) if wanted in names else topic.priority_index(None),
        topic=topic.name,
        expires_us=0 if ttl_s is None else now_us + checks.ttl_us(ttl_s),
    )


def _group(topic: Topic, m: Message) -> int:
    """Return the group of a message; a message without a key has one, too, so that a repeat finds the same lane."""
    if m.key is not None:
        return group_of_key(m.key, topic.active_groups)
    return zlib.crc32(m.uid.encode()) % topic.active_groups


async def _in_lanes(parts: Parts, topic: Topic, made: Sequence[Message], now_us: int) -> dict[int, Put]:
    """Look for the messages in the lanes of all groups, and replay the dead letters among them.

    If a message has several letters, since it was sent twice around a crash, one is replayed and the others are
    deleted.
    """
    app, places = parts.app, {m.id: i for i, m in enumerate(made)}
    letters: list[planned.Named] = []
    found: dict[int, Put] = {}
    async for entries in planned.named(app.store.lanes, topic, places, *EntryState):
        for entry in entries:
            if entry.state is EntryState.DEAD:
                letters.append(entry)
            else:
                found[places[entry.id]] = Put.THERE
    first: dict[str, planned.Named] = {}
    verdicts: list[LaneSettle] = []
    for letter in letters:
        m, lane = made[places[letter.id]], topic.group(letter.group)
        if places[letter.id] in found or first.setdefault(letter.id, letter) is not letter:
            verdicts.append(LaneSettle(lane, letter.uid, LaneVerdict.PURGE, for_good=True))
        else:
            body = message.encode_retry(msgspec.structs.replace(m, uid=letter.uid))
            replay = LaneSettle(lane, letter.uid, LaneVerdict.REPLAY, None, now_us // 1000, body, priority=m.priority)
            verdicts.append(replay)
    answers: list[object] = []
    for start in range(0, len(verdicts), CHUNK):
        answers += served(await app.store.lanes.settle(verdicts[start : start + CHUNK]))
    for letter, verdict, answer in zip(letters, verdicts, answers, strict=True):
        if answer is True and verdict.verdict is LaneVerdict.REPLAY:
            found[places[letter.id]] = Put.REPLAYED
            priority = made[places[letter.id]].priority
            app.trail.record(events.Replayed(now_us, topic.name, letter.group, priority, letter.uid))
    return found


async def _awake(parts: Parts, topic: Topic, tries: int) -> Topic:
    """Wake a topic whose lanes have refused messages `tries` times; return it as it is now."""
    try:
        return await parts.app.producer.reopened(topic.name, tries)
    except errors.UnknownTopic:
        raise errors.TopicClosed(f"topic {topic.name!r} was deleted") from None


async def _added(parts: Parts, topic: Topic, made: dict[int, Message], now_us: int) -> dict[int, Put]:
    """Add messages to their lanes; return how, without those whose lanes are sealed."""
    groups = {i: _group(topic, m) for i, m in made.items()}
    adds = [
        LaneAdd(topic.group(groups[i]), m.uid, message.encode_retry(m), now_us // 1000, priority=m.priority)
        for i, m in made.items()
    ]
    answers = served(await parts.app.store.lanes.add(adds, topic.options.durability))
    found = {}
    for (i, m), answer in zip(made.items(), answers, strict=True):
        if isinstance(answer, errors.QueueSealed):
            continue
        found[i] = Put.ADDED if answer is True else Put.THERE
        if answer is True:
            parts.app.trail.record(
                events.Published(
                    *(now_us, topic.name, groups[i], [m.uid], m.priority, m.published_us),
                    keys=[m.key],
                    due_ms=[now_us // 1000],
                )
            )
    return found


async def _astray(parts: Parts, topic: Topic, made: dict[int, Message]) -> tuple[list[int], Topic]:
    """Take messages back from groups that were retired meanwhile; return those to place again, and the topic now.

    The host that retires a group looks at its lane once more after the catalog has changed, so either the host finds
    the message, or this look finds the change.
    """
    try:
        now = await parts.app.catalog.get(topic.name)
    except errors.UnknownTopic:
        raise errors.TopicClosed(f"topic {topic.name!r} was deleted") from None
    astray = [(i, m) for i, m in made.items() if _group(topic, m) >= now.groups]
    if not astray:
        return [], now
    recalls = [LaneSettle(topic.group(_group(topic, m)), m.uid, LaneVerdict.RECALL) for _, m in astray]
    answers = served(await parts.app.store.lanes.settle(recalls))
    return [i for (i, _), answer in zip(astray, answers, strict=True) if answer is True], now
