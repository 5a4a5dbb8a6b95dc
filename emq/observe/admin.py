"""Administration of topics: changes catalog, store and checkpoints in an order that loses no messages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from emq import errors, plurals
from emq.clock import Clock, SystemClock
from emq.observe import deletion, recall
from emq.offsets import orphans
from emq.offsets.checkpoints import Checkpoint, CheckpointStore
from emq.offsets.lag import Lag, SlotLag, holding_of, of_queues, of_slots
from emq.offsets.orphans import Orphan
from emq.storage import slot_store
from emq.storage.answers import served
from emq.storage.lane_store import LaneVerdict
from emq.storage.log_store import Bounds, Trim
from emq.storage.names import group_of, topic_of
from emq.storage.store import Store
from emq.topics import inputs, rules
from emq.topics.catalog import Also, Catalog
from emq.topics.model import State, Topic
from emq.topics.passages import PassageStore
from emq.topics.raised_layouts import Old, raise_queues
from emq.trail import events
from emq.trail.sink import TrailSink

CHUNK = 3_000
"""Most queues in one call to the store."""

STABLE_S = 2.0
"""Seconds after which opened queues, lanes and slots are looked at again. A store that came back from a crash without
its last second has forgotten that they were opened."""
LOOKS = 5
"""Most looks, should something else seal them meanwhile."""


class Admin:
    """The operations on topics that the command line and the API offer."""

    def __init__(
        self,
        catalog: Catalog,
        store: Store,
        checkpoints: CheckpointStore,
        next_epoch: Callable[[], Awaitable[int]],
        trail: TrailSink | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.catalog = catalog
        self._store = store
        self._checkpoints = checkpoints
        self._passages = PassageStore(checkpoints.database, checkpoints.environment, checkpoints.stores)
        self._trail = trail
        self._clock = clock or SystemClock()
        self._deletion = deletion.Deletion(store, checkpoints, next_epoch, trail, self._clock)

    async def create(self, topics: Sequence[Topic], *, exist_ok: bool = False) -> list[Topic]:
        """Create topics, all or none. Their queues are opened first, in case they were sealed by an earlier life."""
        created = await self.catalog.create_many(topics, exist_ok=exist_ok)
        await self._open(created)
        return created

    async def update(self, name: str, **changes: Any) -> Topic:
        """Change a topic's settings; see `Catalog.update`. Growing opens the groups that come back; safe to repeat."""
        before = await self.catalog.get(name)
        holding = await self._holding([before]) if {"qps", "group_qps"} & changes.keys() else {}
        topic = await self.catalog.update(name, draining=holding.get(name), **changes)
        if {"qps", "group_qps"} & changes.keys():
            await self._open([topic])  # also where nothing has grown now: an earlier call may have failed half-way
        if topic.layout != before.layout:
            await self._raise(topic)
        return topic

    async def update_many(
        self,
        names: Sequence[str],
        choose: Callable[[sa.Connection], Iterable[str]],
        changes: Callable[[Topic], Mapping[str, Any]],
    ) -> Sequence[Topic]:
        """Change settings of several topics, of all or of none; see `Catalog.update_many`. Safe to repeat.

        Args:
            names: those that `choose` will return, as far as they are known.
        """
        before = await self.catalog.some(names)
        topics = await self.catalog.update_many(choose, changes, await self._holding([*before.values()]))
        await self._open(topics)
        for topic in topics:
            if topic.name in before and topic.layout != before[topic.name].layout:
                await self._raise(topic)
        return topics

    async def put_many(self, topics: Sequence[Topic]) -> Sequence[Topic]:
        """Create topics, or replace all their settings, all or none; see `Catalog.put_many`."""
        topics = await self.catalog.put_many(topics)
        await self._open(topics)
        return topics

    async def set_state(self, name: str, state: State, *, also: Also | None = None) -> Topic:
        """Change a topic's state, and in the same transaction what `also` writes."""
        return await self.catalog.update(name, state=state, also=also)

    async def delete(self, name: str, *, force: bool = False) -> int:
        """Delete a topic with its messages, retries, dead letters and checkpoints; returns how many messages went.

        The deletion first seals the topic, so that nothing is published between the count and the end, and removes the
        topic from the catalog only after all else is empty. So a deletion that failed half-way leaves a topic that
        takes no messages; a second deletion completes it.

        Raises:
            StillConsumed: the topic holds messages and `force` is not set; drain the topic first, or set `force`. The
                topic is open again.
            StillNamed: other topics name the topic as their budget; delete those first. The topic is open.
        """
        topic = await self.catalog.get(name)
        await self.catalog.check_unnamed(topic)
        if force:
            return await self.delete_all([topic])
        held = await self._held([topic])
        if held or not await self._deletion.seal([topic], emptied=False) or (held := await self._held([topic])):
            await self._open([topic])
            messages = plurals.count(held, "message") if held else "messages"
            raise errors.StillConsumed(f"topic {name!r} still holds {messages}; drain it first, or delete with force")
        await self._forget([topic])
        return 0

    async def delete_all(self, topics: Sequence[Topic]) -> int:
        """Delete topics with all that they hold, as `delete` does, in calls for all of them at once.

        Raises:
            UnknownTopic: one of them was deleted meanwhile; a second call with the others completes it.
            StillNamed: as for `delete`. The topics are open.
        """
        held = await self._held(topics)
        before = [await self._bounds_of(topic) for topic in topics]
        await self._deletion.seal(topics, emptied=True)
        for topic, bounds in zip(topics, before, strict=True):
            self._record_emptied(topic, bounds, await self._bounds_of(topic))
        await self._forget(topics)
        return held

    async def _forget(self, topics: Sequence[Topic]) -> None:
        """Delete topics that are sealed, with what is left in their lanes and slots."""
        await self._deletion.empty(topics)
        try:
            await self.catalog.delete(*[topic.name for topic in topics])
        except errors.StillNamed:  # a topic that names one of them was created meanwhile
            await self._open(topics)
            raise
        # Last, because hosts save progress until they know of the deletion. A leftover does a later topic no harm.
        await self._checkpoints.drop([queue for topic in topics for queue in topic.all_queues()])

    async def orphans(self) -> list[Orphan]:
        """Return the messages in the store that the catalog does not know; see `emq.offsets.orphans`."""
        return await orphans.find(self._store, {topic.name: topic for topic in await self.catalog.list()})

    async def adopt(
        self, name: str, qps: float, priorities: Sequence[str] = (), kind: slot_store.SlotKind | None = None
    ) -> Topic:
        """Create the topic of orphaned messages, so that hosts consume them.

        If both queues and slots hold messages of that name, the topic gets those of the slots if `kind` is given, else
        those of the queues.

        Raises:
            UnknownTopic: the store holds no orphaned messages of this topic.
            TopicExists: the catalog has a topic of that name; the text says what to do.
            InvalidTopic: the arguments do not fit the messages; see `orphans.topic_of`. Or the groups of the messages
                cannot make so few or so many starts; the text says how many they can.
        """
        found = await self._orphans_of(name)
        orphan = next((each for each in found if each.is_sorted is (kind is not None)), found[0])
        least, most = orphan.groups, orphan.groups * rules.most_group_qps(self._store.log.max_queue_qps)
        if not orphan.is_sorted and not least <= qps <= most:
            raise errors.InvalidTopic(
                f"topic {name!r}: the {plurals.count(orphan.groups, 'group')} of its messages can make {least} to "
                f"{most:g} starts a second, not {qps:g}; adopt it with such a qps, and change it afterwards"
            )
        [topic] = await self.create([orphans.topic_of(orphan, qps, priorities, kind)])
        return topic

    async def purge_orphan(self, name: str) -> int:
        """Delete orphaned messages, dead letters included; return how many there were. Errors as for `adopt`."""
        found = await self._orphans_of(name)
        for orphan in found:
            topic = orphans.topic_of(orphan, float(orphan.groups), orphan.priorities, slot_store.SlotKind.PRIORITY)
            await self.create([msgspec.structs.replace(topic, state=State.PAUSED)])  # so that no host starts anything
            await self.delete(name, force=True)
        return sum(orphan.messages for orphan in found)

    async def _orphans_of(self, name: str) -> list[Orphan]:
        found = [each for each in await self.orphans() if each.topic == name]
        if not found:
            raise errors.UnknownTopic(f"the store holds no messages of topic {name!r} that the catalog does not know")
        if found[0].is_known:
            more, groups = all(each.is_beyond for each in found), max(each.groups for each in found)
            raise errors.TopicExists(
                f"topic {name!r} has fewer groups than its messages, which need {groups}; raise its qps to more "
                f"than {groups - 1} times its group_qps, and lower it again: its surplus groups are worked off"
                if more
                else f"a topic {name!r} exists whose kind or priorities are others than those of the messages; delete "
                "this topic, which leaves them, and adopt or purge them then"
            )
        return found

    async def recall(self, name: str, ids: Collection[str]) -> set[str]:
        """Take back messages that no host has claimed yet; see `emq.observe.recall`.

        Raises:
            InvalidMessage: an id is not text.
        """
        wanted = [inputs.text("message id", id_) for id_ in ids]
        return await recall.recall(self._store, await self.catalog.get(name), wanted, self._trail, self._clock)

    async def lag(self, topics: Sequence[Topic]) -> list[Lag]:
        """Unfinished messages of each topic and priority."""
        return await of_queues(self._store.log, self._checkpoints, topics)

    async def slot_lag(self, topics: Sequence[Topic]) -> list[SlotLag]:
        """Counts of waiting and claimed messages of lanes and slots, and of dead letters, for each topic."""
        return await of_slots(self._store, topics, self._now_ms())

    async def offsets(self, topic: Topic) -> list[tuple[Checkpoint, int, int]]:
        """(checkpoint, head, tail) of each of the topic's queues; watermark = head where there is none yet."""
        queues = topic.all_queues()
        saved = await self._checkpoints.load(queues)
        bounds = served(await self._store.log.bounds(queues))
        return [(saved.get(q, Checkpoint(q, 0, b.head)), b.head, b.tail) for q, b in zip(queues, bounds, strict=True)]

    # ------------------------------------------------------------------------------------------------------- details

    async def _holding(self, topics: Sequence[Topic]) -> dict[str, set[int]]:
        """Groups that hold messages, by topic, so that groups that retire empty get no share of the quota.

        Without sorted topics, whose groups never retire. Nothing while the store does not answer.
        """
        found: dict[str, set[int]] = {topic.name: set() for topic in topics if not topic.is_sorted}
        places = [(topic, group) for topic in topics if not topic.is_sorted for group in range(topic.groups)]
        try:
            for topic, group in await holding_of(self._store, self._checkpoints, places, self._now_ms()):
                found[topic.name].add(group)
        except (errors.StoreUnavailable, errors.StoreFull):
            return {}
        return found

    def _now_ms(self) -> int:
        return self._clock.now_us() // 1000

    async def _held(self, topics: Sequence[Topic]) -> int:
        """Messages that are not finished, dead letters not counted."""
        held = sum(lag.unfinished for lag in await self.lag(topics))
        return held + sum(s.ready + s.delayed + s.claimed for s in await self.slot_lag(topics))

    async def _open(self, topics: Sequence[Topic]) -> None:
        """Open queues, lanes and slots that are sealed, and see that they stay open. Safe to repeat.

        Groups that retire are left out, because their host may be about to seal them.
        """
        for _ in range(LOOKS):
            topics = await self._opened(topics)
            if not topics:
                return
            await asyncio.sleep(STABLE_S)

    async def _opened(self, topics: Sequence[Topic]) -> list[Topic]:
        """Open what is sealed; return the topics that had something sealed."""
        queues = [q for t in topics for group in range(t.active_groups) for q in t.queues(group)]
        found: set[str] = set()
        for start in range(0, len(queues), CHUNK):
            part = queues[start : start + CHUNK]
            looks = served(await self._store.log.trim([Trim(q, 0, None) for q in part]))
            if sealed := [q for q, look in zip(part, looks, strict=True) if look is True]:
                served(await self._store.log.trim([Trim(q, 0, None, seal=False) for q in sealed]))
                found.update(topic_of(group_of(q)) for q in sealed)
        places = [deletion.Place(topic, group) for topic in topics for group in range(topic.active_groups)]
        found |= await deletion.settle_all(self._store, places, LaneVerdict.OPEN, slot_store.SlotVerdict.OPEN)
        return [topic for topic in topics if topic.name in found]

    async def _raise(self, topic: Topic) -> None:
        """Have the queues refuse messages that producers route by an older layout.

        The owners of the groups do the same when they see the change (see `emq.topics.key_layouts`). The sooner the
        queues refuse, the fewer messages of moved keys come to lie before older ones.
        """
        olds: list[Old] = [(topic, group, None) for group in range(topic.groups)]
        with contextlib.suppress(errors.DatabaseUnavailable):
            await raise_queues(self._store.log, self._passages, olds)

    async def _bounds_of(self, topic: Topic) -> Sequence[Bounds]:
        if self._trail is None or not self._trail.enabled:
            return ()
        return served(await self._store.log.bounds(topic.all_queues()))

    def _record_emptied(self, topic: Topic, before: Sequence[Bounds], after: Sequence[Bounds]) -> None:
        """Record that the queues' messages were dropped on purpose; nothing was added after the second look."""
        places = ((group, priority) for group in range(topic.groups) for priority in range(len(topic.priorities)))
        for (group, priority), was, now in zip(places, before, after, strict=False):
            if self._trail is not None and now.tail > was.head:
                now_us = self._clock.now_us()
                self._trail.record(events.Dropped(now_us, topic.name, group, priority, was.head, now.tail, "deleted"))
