"""Orphans: messages in the store that are in no queue, lane or slot of a topic of the catalog.

Orphans appear when the catalog's database is restored from a copy older than the creation or the growth of a topic. The
topic may even exist again, with another kind or other priorities. Nobody consumes orphans, and no count includes them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from emq.runtime import errors
from emq.storage.answers import served
from emq.storage.names import QueueName, parts_of
from emq.storage.slot_store import Slot, SlotKind
from emq.storage.store import Holding, Store
from emq.topics.model import DEFAULT_PRIORITIES, Kind, Topic

TOGETHER = 2_000
"""Most queues, lanes or slots in one call."""


class Orphan(msgspec.Struct, frozen=True):
    """The orphans under the name of one topic, in queues or in slots.

    Attributes:
        topic: the topic's name.
        is_known: the catalog has a topic of that name, with other queues or slots than these.
        is_sorted: slots hold the messages, not queues.
        groups: number of groups that the topic must have at least, so that all messages are in one of them.
        priorities: names of the priorities whose queues hold messages.
        ready, delayed, dead: numbers of messages; claimed ones count as ready or delayed.
        is_beyond: the known topic would have all these places if it had `groups` groups.
    """

    topic: str
    is_known: bool
    is_sorted: bool
    groups: int
    priorities: tuple[str, ...]
    ready: int
    delayed: int
    dead: int
    is_beyond: bool = False

    @property
    def messages(self) -> int:
        return self.ready + self.delayed + self.dead


class _Found:
    """The orphans of one topic found so far, in queues or slots; lanes count with the queues, if there are any."""

    def __init__(self, known: Topic | None, is_sorted: bool) -> None:
        self.known = known
        self.is_sorted = is_sorted
        self.groups = 0
        self.priorities: set[str] = set()
        self.ready = self.delayed = self.dead = 0

    def orphan(self, topic: str) -> Orphan:
        known = self.known
        is_beyond = known is not None and known.is_sorted is self.is_sorted and self.priorities <= {*known.priorities}
        priorities = _ordered(self.priorities)
        counts = self.ready, self.delayed, self.dead
        return Orphan(topic, known is not None, self.is_sorted, self.groups, priorities, *counts, is_beyond)


async def find(store: Store, topics: Mapping[str, Topic]) -> list[Orphan]:
    """Return the orphans in the store, by topic.

    Args:
        topics: the topics of the catalog, by name.

    Raises:
        StoreUnavailable: a part of the store does not answer; try again.
    """
    held = await _held(store)
    found: dict[tuple[str, bool], _Found] = {}

    def of(topic: str, index: int, is_sorted: bool) -> _Found:
        if (mine := found.get((topic, is_sorted))) is None:
            mine = found[topic, is_sorted] = _Found(topics.get(topic), is_sorted)
        mine.groups = max(mine.groups, index + 1)
        return mine

    def is_orphan(group: str, is_sorted: bool | None = None, priority: str | None = None) -> bool:
        topic, index = _parts(group)
        if index < 0 or (known := topics.get(topic)) is None:
            return index >= 0
        if is_sorted not in (None, known.is_sorted) or (priority is not None and priority not in known.priorities):
            return True
        return index >= known.groups

    queues = [queue for queue in held.queues if is_orphan(*_of_queue(queue))]
    for part in _in_parts(queues):
        for name, bounds in zip(part, served(await store.log.bounds(part)), strict=True):
            if bounds.tail > bounds.head:
                queue = QueueName.parse(name)
                mine = of(queue.topic, queue.group, False)
                mine.priorities.add(queue.priority)
                mine.ready += bounds.tail - bounds.head
    for part in _in_parts([slot for slot in held.slots if is_orphan(slot, True)]):
        slots = [Slot(name, SlotKind.PRIORITY) for name in part]
        for name, sizes in zip(part, served(await store.sorted.inspect(slots, 0)), strict=True):
            if sizes.waiting or sizes.prepared or sizes.dead:
                mine = of(*parts_of(name), True)
                mine.ready += sizes.waiting + sizes.prepared
                mine.dead += sizes.dead
    for part in _in_parts([lane for lane in held.lanes if is_orphan(lane)]):
        for lane, state in zip(part, served(await store.lanes.inspect(part)), strict=True):
            if state.waiting or state.prepared or state.dead:
                topic, index = parts_of(lane)
                known = topics.get(topic)
                in_slots = (topic, True) in found and (topic, False) not in found
                mine = of(topic, index, in_slots if known is None else known.is_sorted)
                mine.delayed += state.waiting + state.prepared
                mine.dead += state.dead
    return [found[key].orphan(key[0]) for key in sorted(found)]


def topic_of(orphan: Orphan, qps: float, priorities: Sequence[str] = (), kind: SlotKind | None = None) -> Topic:
    """Return a topic whose groups and priorities include the orphan's messages.

    Args:
        qps: the topic's starts a second.
        priorities: names of all its priorities, highest first; needed if the orphan's are not among high, mid and low.
        kind: the kind of a sorted topic, which the store does not tell.

    Raises:
        InvalidTopic: the arguments do not fit the messages; the text says what is missing.
    """
    names = tuple(priorities) or (DEFAULT_PRIORITIES if set(orphan.priorities) <= set(DEFAULT_PRIORITIES) else ())
    if missing := [name for name in orphan.priorities if name not in names]:
        raise errors.InvalidTopic(
            f"topic {orphan.topic!r}: its queues have the priorities {', '.join(missing)}; name all of its priorities, "
            "highest first"
        )
    if orphan.is_sorted:
        if kind is None:
            raise errors.InvalidTopic(
                f"topic {orphan.topic!r} is sorted, and the store does not tell its kind; name it"
            )
        slots = 1 << (orphan.groups - 1).bit_length()
        return Topic(orphan.topic, qps, priorities=(), kind=Kind(kind.value), slots=slots)
    # A little more than the share of a group, so that rounding adds no group.
    return Topic(orphan.topic, qps, group_qps=qps / orphan.groups * (1 + 1e-9), priorities=names)


def can_find(store: Store) -> bool:
    """Return whether the store can tell what it holds; see `Store`."""
    return getattr(store, "holding", None) is not None


async def _held(store: Store) -> Holding:
    if not can_find(store):
        raise errors.InvalidSettings("this store cannot tell of which topics it holds messages")
    held: Holding = await store.holding()  # type: ignore[attr-defined]
    return held


def _parts(group: str) -> tuple[str, int]:
    """Return topic and index; -1 for a name that is not a group's, such as EMQ's own lanes, whose names have spaces."""
    topic, _, index = group.rpartition("/")
    return topic, int(index) if index.isdecimal() and topic and " " not in topic else -1


def _of_queue(queue: str) -> tuple[str, bool, str]:
    group, _, priority = queue.rpartition("/")
    return group, False, priority


def _ordered(priorities: Collection[str]) -> tuple[str, ...]:
    known = {name: place for place, name in enumerate(DEFAULT_PRIORITIES)}
    return tuple(sorted(priorities, key=lambda name: (known.get(name, len(known)), name)))


def _in_parts(names: Sequence[str]) -> Iterable[Sequence[str]]:
    return (names[start : start + TOGETHER] for start in range(0, len(names), TOGETHER))


def told(orphans: Sequence[Orphan], most: int = 5) -> str:
    """Name some orphans, for the log."""
    named = ", ".join(f"{orphan.topic} ({orphan.messages})" for orphan in orphans[:most])
    return f"{named} and {len(orphans) - most} more" if len(orphans) > most else named
