"""Administration of topics: changes catalog, store and checkpoints in an order that loses no messages."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from emq.observe import recall
from emq.offsets import deletion
from emq.offsets.checkpoints import Checkpoint, CheckpointStore
from emq.offsets.lag import Lag, SlotLag, holding_of, of_queues, of_slots
from emq.runtime import errors, inputs, plurals
from emq.runtime.clock import Clock, SystemClock
from emq.storage.answers import served
from emq.storage.store import Store
from emq.topics import opening
from emq.topics.catalog import Catalog
from emq.topics.model import Topic
from emq.topics.passages import PassageStore
from emq.topics.raised_layouts import Old, raise_queues
from emq.trail.sink import TrailSink


class Admin:
    """The operations on topics that the command line and the API offer.

    Attributes:
        catalog: the environment's topics.
        store: the store that holds the topics' messages.
    """

    def __init__(
        self,
        catalog: Catalog,
        store: Store,
        checkpoints: CheckpointStore,
        next_epoch: Callable[[], Awaitable[int]],
        trail: TrailSink = recall.NO_TRAIL,
        clock: Clock | None = None,
    ) -> None:
        self.catalog = catalog
        self.store = store
        self._checkpoints = checkpoints
        self._passages = PassageStore(checkpoints.database, checkpoints.environment, checkpoints.stores)
        self._trail = trail
        self._clock = clock or SystemClock()
        self._deletion = deletion.Deletion(store, checkpoints, next_epoch, trail, self._clock)

    async def create(self, topics: Sequence[Topic], *, exist_ok: bool = False) -> list[Topic]:
        """Create topics, all or none. This first opens their queues, which a deleted topic may have left sealed."""
        return await self._opened(await self.catalog.create_many(topics, exist_ok=exist_ok))

    async def update(self, name: str, **changes: Any) -> Topic:
        """Change a topic's settings; see `Catalog.update`. Growing opens the groups that come back; safe to repeat."""
        before = await self.catalog.get(name)
        holding = await self.holding([before]) if {"qps", "group_qps"} & changes.keys() else {}
        topic = await self.catalog.update(name, draining=holding.get(name), **changes)
        # Also where nothing has grown: an earlier call may have failed, or a host while it put the topic to sleep.
        if topic.asleep_s or {"qps", "group_qps", "idle_s"} & changes.keys():
            [topic] = await self.follow([before], [topic])
        return topic

    async def inherit(self, name: str, settings: Collection[str]) -> Topic:
        """Give a topic of a family the family's values of settings that are its own; see `FamilyCatalog.inherit`."""
        before = await self.catalog.get(name)
        holding = await self.holding([before]) if {"qps", "group_qps"} & set(settings) else {}
        topic = await self.catalog.families.inherit(name, settings, holding.get(name))
        await self.follow([before], [topic])
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
        topics = await self.catalog.update_many(choose, changes, await self.holding([*before.values()]))
        return await self.follow([*before.values()], topics)

    async def follow(self, before: Sequence[Topic], topics: Sequence[Topic]) -> Sequence[Topic]:
        """Let the store follow a change of topics: open the groups that come back, and raise the others' layouts.

        Returns the topics, those awake that are to sleep no more.
        """
        topics = await self._opened(topics)
        layouts = {topic.name: topic.layout for topic in before}
        for topic in topics:
            if topic.layout != layouts.get(topic.name, topic.layout):
                await self._raise(topic)
        return topics

    async def put_many(self, topics: Sequence[Topic]) -> Sequence[Topic]:
        """Create topics, or replace all their settings, all or none; see `Catalog.put_many`."""
        return await self._opened(await self.catalog.put_many(topics))

    async def _opened(self, topics: Sequence[Topic]) -> list[Topic]:
        """Open topics; return them, those awake that had to wake.

        Those are topics that sleep and are to sleep no more: once awake and sealed, nobody would open them. And those
        that fell asleep just before they were opened: what is open must be awake.
        """
        woken = await self._woken([topic.name for topic in topics if topic.asleep_s and not topic.sleeps])
        topics = [woken.get(topic.name, topic) for topic in topics]
        if found := await opening.open_all(self.store, topics):
            now = await self.catalog.some(found)
            woken = await self._woken([name for name, topic in now.items() if topic.asleep_s])
        return [woken.get(topic.name, topic) for topic in topics]

    async def _woken(self, names: Sequence[str]) -> dict[str, Topic]:
        made = (await self.catalog.families.make(names)).found if names else {}
        return {name: topic for name, topic in made.items() if isinstance(topic, Topic)}

    async def delete(self, name: str, *, force: bool = False) -> int:
        """Delete a topic with its messages, retries, dead letters and checkpoints; returns how many messages went.

        The deletion first seals the topic, so that nothing is published between the count and the end, and removes the
        topic from the catalog last. So a deletion that failed half-way leaves a topic that takes no messages; a second
        deletion completes it.

        Raises:
            StillConsumed: the topic holds messages and `force` is not set; drain the topic first, or set `force`. The
                topic is open again.
            StillNamed: other topics name the topic as their budget; delete those first. The topic is open.
        """
        topic = await self.catalog.get(name)
        await self.catalog.check_unnamed(topic)
        if force:
            return await self.delete_all([topic])
        versions = await self.catalog.families.versions([name]) if topic.sleeps else {}
        held = await self.held([topic])
        if held or not await self._deletion.seal([topic], emptied=False) or (held := await self.held([topic])):
            await opening.open_all(self.store, [topic])
            messages = plurals.count(held, "message") if held else "messages"
            raise errors.StillConsumed(f"topic {name!r} still holds {messages}; drain it first, or delete with force")
        if not topic.sleeps:
            await self._forget([topic])
            return 0
        # A publish to a sealed topic that sleeps opens it, and writes its row first.
        await self._deletion.empty([topic])
        if not await self.catalog.families.forget(versions, await self._checkpoints.dropping()):
            await opening.open_all(self.store, [topic])
            raise errors.StillConsumed(f"topic {name!r} has just got a message; delete it again, or with force")
        return 0

    async def delete_all(self, topics: Sequence[Topic]) -> int:
        """Delete topics with all that they hold, as `delete` does, in calls for all of them at once.

        Raises:
            UnknownTopic: one of them was deleted meanwhile; a second call with the others completes it.
            StillNamed: as for `delete`. The topics are open.
        """
        held = await self.held(topics)
        await self._deletion.seal(topics, emptied=True)
        await self._forget(topics)
        return held

    async def _forget(self, topics: Sequence[Topic]) -> None:
        """Delete sealed topics, with the rest of their lanes and slots."""
        await self._deletion.empty(topics)
        try:
            await self.catalog.delete(*[topic.name for topic in topics])
        except errors.StillNamed:  # a topic that names one of them was created meanwhile
            await opening.open_all(self.store, topics)
            raise
        # Last, because hosts save progress until they know of the deletion. A leftover does not harm a later topic.
        await self._checkpoints.drop([queue for topic in topics for queue in topic.all_queues()])

    async def recall(self, name: str, ids: Collection[str], uids: Collection[str] = ()) -> set[str]:
        """Take back messages that no host has claimed yet; see `emq.observe.recall`.

        Raises:
            InvalidMessage: an id or identity is not text.
        """
        wanted = [inputs.text("message id", id_) for id_ in ids]
        exact = [inputs.text("identity of a message", uid) for uid in uids]
        topic = await self.catalog.get(name)
        return await recall.recall(self.store, topic, wanted, self._trail, self._clock, uids=exact)

    async def lag(self, topics: Sequence[Topic]) -> list[Lag]:
        """Unfinished messages of each topic and priority."""
        return await of_queues(self.store.log, self._checkpoints, topics)

    async def slot_lag(self, topics: Sequence[Topic]) -> list[SlotLag]:
        """Counts of waiting and claimed messages of lanes and slots, and of dead letters, for each topic."""
        return await of_slots(self.store, topics, self._now_ms())

    async def offsets(self, topic: Topic) -> list[tuple[Checkpoint, int, int]]:
        """(checkpoint, head, tail) of each of the topic's queues; watermark = head where there is none yet."""
        queues = topic.all_queues()
        saved = await self._checkpoints.load(queues)
        bounds = served(await self.store.log.bounds(queues))
        return [(saved.get(q, Checkpoint(q, 0, b.head)), b.head, b.tail) for q, b in zip(queues, bounds, strict=True)]

    # ------------------------------------------------------------------------------------------------------- details

    async def holding(self, topics: Sequence[Topic]) -> dict[str, set[int]]:
        """Groups that hold messages, by topic, so that groups that retire empty get no share of the quota.

        Without sorted topics, whose groups never retire. Nothing while the store does not answer.
        """
        found: dict[str, set[int]] = {topic.name: set() for topic in topics if not topic.is_sorted}
        places = [(topic, group) for topic in topics if not topic.is_sorted for group in range(topic.groups)]
        try:
            for topic, group in await holding_of(self.store, self._checkpoints, places, self._now_ms()):
                found[topic.name].add(group)
        except (errors.StoreUnavailable, errors.StoreFull):
            return {}
        return found

    def _now_ms(self) -> int:
        return self._clock.now_us() // 1000

    async def held(self, topics: Sequence[Topic]) -> int:
        """Return how many messages of topics are not finished, dead letters not counted."""
        held = sum(lag.unfinished for lag in await self.lag(topics))
        return held + sum(s.ready + s.delayed + s.claimed for s in await self.slot_lag(topics))

    async def _raise(self, topic: Topic) -> None:
        """Make the queues refuse messages that producers route by an older layout.

        The owners of the groups do the same when they see the change (see `emq.topics.key_layouts`). The sooner this
        happens, the fewer messages of moved keys lie before older ones.
        """
        olds: list[Old] = [(topic, group, None) for group in range(topic.groups)]
        with contextlib.suppress(errors.DatabaseUnavailable):
            await raise_queues(self.store.log, self._passages, olds)
