"""Administration of topics across catalog, store and checkpoints, in the order that loses nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Literal

from emq import errors, message
from emq.clock import Clock, SystemClock
from emq.host.passage_loop import Old, raise_queues
from emq.inspect import recall
from emq.offsets.checkpoints import Checkpoint, CheckpointStore
from emq.offsets.lag import Lag, SlotLag, holding, of_queues, of_slots
from emq.storage import slot_store
from emq.storage.answers import served
from emq.storage.store import Bounds, Claim, Claimed, Settle, Store, Trim, Verdict
from emq.topics.catalog import Catalog
from emq.topics.model import State, Topic
from emq.topics.passages import PassageStore
from emq.trail.sink import TrailSink

CHUNK = 3_000
"""Queues in one call to the store."""

FAR_FUTURE_MS = 1 << 52

TRIES = 20
"""How often a deletion takes groups from hosts that have not heard of it. A host has heard after a look at the catalog,
and takes a group back once between two looks."""
AGAIN = "nothing more is published to it; delete it again"


class Admin:
    """What the command line and the API may do to topics."""

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
        self._passages = PassageStore(checkpoints.database, checkpoints.environment)
        self._next_epoch = next_epoch
        self._trail = trail
        self._clock = clock or SystemClock()

    async def create(self, topics: Sequence[Topic], *, exist_ok: bool = False) -> list[Topic]:
        """Create topics, all or none. Their queues are opened first, in case they were sealed by an earlier life."""
        created = await self.catalog.create_many(topics, exist_ok=exist_ok)
        await self._open(created)
        return created

    async def update(self, name: str, **changes: Any) -> Topic:
        """Change a topic's settings; see `Catalog.update`. Growing opens the groups that come back; safe to repeat."""
        before = await self.catalog.get(name)
        draining = await self._holding(before) if {"qps", "group_qps"} & changes.keys() else None
        topic = await self.catalog.update(name, draining=draining, **changes)
        if {"qps", "group_qps"} & changes.keys():
            await self._open([topic])  # also where nothing has grown now: an earlier call may have failed half-way
        if topic.layout != before.layout:
            await self._raise(topic)
        return topic

    async def import_(self, text: str, fmt: Literal["toml", "json"]) -> Sequence[Topic]:
        """Create or update the topics of an export, all or none; see `Catalog.import_`."""
        topics = await self.catalog.import_(text, fmt)
        await self._open(topics)
        return topics

    async def set_state(self, name: str, state: State) -> Topic:
        return await self.catalog.update(name, state=state)

    async def delete(self, name: str, *, force: bool = False) -> int:
        """Delete a topic with its messages, retries, dead letters and checkpoints; answers how many messages went.

        Everything is sealed first, so that nothing is published between the look and the end; the catalog is changed
        last. So a deletion that failed half-way leaves a topic that takes no messages, and is completed by another one.

        Raises:
            StillConsumed: it holds messages and `force` is not set; drain it first, or insist. It is open again.
        """
        topic = await self.catalog.get(name)
        held = await self._held(topic)
        if force:
            before = await self._bounds_of(topic)
            await self._seal(topic, emptied=True)
            self._record_emptied(topic, before, await self._bounds_of(topic))
        elif held or not await self._seal(topic, emptied=False) or (held := await self._held(topic)):
            await self._open([topic])
            messages = "messages" if not held else "1 message" if held == 1 else f"{held} messages"
            raise errors.StillConsumed(f"topic {name!r} still holds {messages}; drain it first, or delete with force")
        await self._empty_lanes(topic)
        if topic.is_sorted:
            await self._empty_slots(topic)
        await self.catalog.delete(name)
        # Last, since hosts save progress until they know. What is left of it would do a later topic no harm.
        await self._checkpoints.drop(topic.all_queues())
        return held

    async def recall(self, name: str, ids: Collection[str]) -> set[str]:
        """Take back messages that nobody has claimed yet; see `emq.inspect.recall`."""
        return await recall.recall(self._store, await self.catalog.get(name), ids, self._trail, self._clock)

    async def lag(self, topics: Sequence[Topic]) -> list[Lag]:
        """Unfinished messages of each topic and priority."""
        return await of_queues(self._store.log, self._checkpoints, topics)

    async def slot_lag(self, topics: Sequence[Topic]) -> list[SlotLag]:
        """What waits in lanes and slots, what is claimed from them, and dead letters, of each topic."""
        return await of_slots(self._store, topics, self._now_ms())

    async def offsets(self, topic: Topic) -> list[tuple[Checkpoint, int, int]]:
        """(checkpoint, head, tail) of each of the topic's queues; watermark = head where there is none yet."""
        queues = topic.all_queues()
        saved = await self._checkpoints.load(queues)
        bounds = served(await self._store.log.bounds(queues))
        return [(saved.get(q, Checkpoint(q, 0, b.head)), b.head, b.tail) for q, b in zip(queues, bounds, strict=True)]

    # ------------------------------------------------------------------------------------------------------- details

    async def _holding(self, topic: Topic) -> set[int] | None:
        """Groups that hold messages, so that those which retire empty take no share of the quota.

        None for a sorted topic, whose groups never retire, and while the store does not answer.
        """
        if topic.is_sorted:
            return None
        now_ms = self._now_ms()
        try:
            return await holding(self._store, self._checkpoints, topic, range(topic.groups), now_ms)
        except (errors.StoreUnavailable, errors.StoreFull):
            return None

    def _now_ms(self) -> int:
        return self._clock.now_us() // 1000

    async def _held(self, topic: Topic) -> int:
        """Messages that are not finished, dead letters not counted."""
        held = sum(lag.unfinished for lag in await self.lag([topic]))
        return held + sum(s.ready + s.delayed + s.claimed for s in await self.slot_lag([topic]))

    async def _open(self, topics: Sequence[Topic]) -> None:
        """Open what may have been sealed; not groups that retire, which their host may be about to seal. Repeatable."""
        queues = [q for t in topics for group in range(t.active_groups) for q in t.queues(group)]
        for start in range(0, len(queues), CHUNK):
            served(await self._store.log.trim([Trim(q, 0, None, seal=False) for q in queues[start : start + CHUNK]]))
        for topic in topics:
            await self._seal_lanes(topic, range(topic.active_groups), Verdict.OPEN, slot_store.Verdict.OPEN)

    async def _raise(self, topic: Topic) -> None:
        """Have the queues refuse what producers route by an older layout.

        The owners of the groups do the same when they see the change (see `emq.topics.key_layouts`). The sooner it is
        done, the fewer messages of moved keys come to lie before older ones.
        """
        olds: list[Old] = [(topic, group, None) for group in range(topic.groups)]
        with contextlib.suppress(errors.DatabaseUnavailable):
            await raise_queues(self._store.log, self._passages, olds)

    async def _seal(self, topic: Topic, *, emptied: bool) -> bool:
        """Seal a topic's queues, lanes and slots; False where a queue holds messages that are not finished.

        Args:
            emptied: drop what the queues hold.
        """
        queues, upto = topic.all_queues(), {}
        if not emptied:
            upto = {q: c.watermark for q, c in (await self._checkpoints.load(queues)).items()}
        done = True
        for start in range(0, len(queues), CHUNK):
            part = queues[start : start + CHUNK]
            trims = [Trim(q, FAR_FUTURE_MS if emptied else upto.get(q, 0), None, seal=True) for q in part]
            done &= all(sealed is True for sealed in served(await self._store.log.trim(trims)))
        await self._seal_lanes(topic, range(topic.groups), Verdict.SEAL, slot_store.Verdict.SEAL)
        return done

    async def _seal_lanes(
        self, topic: Topic, groups: Sequence[int], of_lanes: Verdict, of_slots: slot_store.Verdict
    ) -> None:
        for start in range(0, len(groups), CHUNK):
            part = groups[start : start + CHUNK]
            served(await self._store.lanes.settle([Settle(topic.group(group), "", of_lanes) for group in part]))
            if topic.is_sorted:
                verdicts = [slot_store.Settle(topic.slot(group), b"", of_slots) for group in part]
                served(await self._store.sorted.settle(verdicts))

    async def _bounds_of(self, topic: Topic) -> Sequence[Bounds]:
        if self._trail is None or not self._trail.enabled:
            return ()
        return served(await self._store.log.bounds(topic.all_queues()))

    def _record_emptied(self, topic: Topic, before: Sequence[Bounds], after: Sequence[Bounds]) -> None:
        """What lay in the queues was dropped on purpose; nothing was added after the second look."""
        places = ((group, priority) for group in range(topic.groups) for priority in range(len(topic.priorities)))
        for (group, priority), (head, _), (_, tail) in zip(places, before, after, strict=False):
            if self._trail is not None and tail > head:
                self._trail.dropped(topic.name, group, priority, head, tail, self._clock.now_us(), "deleted")

    def _record_gone(self, topic: Topic, group: int, ids: Sequence[str]) -> None:
        if self._trail is not None and self._trail.enabled:
            self._trail.recalled(topic.name, group, 0, ids, self._clock.now_us())

    async def _empty_lanes(self, topic: Topic) -> None:
        """Empty lanes under an epoch of our own, which fences off a host that still owns them.

        A host that has not heard of the deletion takes its group back, with a newer epoch; then ours has to be newer
        again, since what it has claimed would be delivered should a topic of this name be created again.
        """
        left = list(range(topic.groups))
        for _ in range(TRIES):
            epoch = await self._next_epoch()
            served(await self._store.lanes.recover([(topic.group(group), epoch) for group in left]))
            left = [group for group in left if not await self._emptied(topic, group, epoch)]
            if not left:
                break
        else:
            raise errors.StillConsumed(f"a host takes group {topic.group(left[0])} back again and again; {AGAIN}")
        for slot in map(topic.group, range(topic.groups)):
            while page := await self._store.lanes.dead(slot, limit=CHUNK):
                served(await self._store.lanes.settle([Settle(slot, d.id, Verdict.PURGE) for d in page]))

    async def _emptied(self, topic: Topic, group: int, epoch: int) -> bool:
        """Take all out of a lane; False if somebody with a newer epoch has come between."""
        lanes, slot = self._store.lanes, topic.group(group)
        while True:
            [claimed] = served(await lanes.claim([Claim(slot, CHUNK, epoch)], FAR_FUTURE_MS))
            if not isinstance(claimed, Claimed):
                return False
            if not claimed.entries:
                return True
            acks = [Settle(slot, i, Verdict.ACK, epoch) for i, _ in claimed.entries]
            answers = served(await lanes.settle(acks))
            gone = [i for (i, _), answer in zip(claimed.entries, answers, strict=True) if answer is True]
            self._record_gone(topic, group, gone)
            if len(gone) < len(acks):
                return False

    async def _empty_slots(self, topic: Topic) -> None:
        """As for lanes. Foreign producers may add again at any time; what they add then is an orphan of theirs."""
        store = self._store.sorted
        emptied, now_ms = [topic.slot(group) for group in range(topic.slots)], self._now_ms()
        for _ in range(TRIES):
            epoch = await self._next_epoch()
            # Whoever claimed it: what another program still runs, it cannot give back to a topic that is gone.
            served(await store.recover([slot_store.Recover(slot, epoch, FAR_FUTURE_MS) for slot in emptied], now_ms))
            for group, slot in enumerate(emptied):
                while page := await store.waiting(slot, 0, CHUNK):
                    served(
                        await store.settle([slot_store.Settle(slot, w.member, slot_store.Verdict.RECALL) for w in page])
                    )
                    self._record_gone(topic, group, [message.slot_id(group, w.member) for w in page])
            if not any(state.prepared for state in served(await store.inspect(emptied, now_ms))):
                break
        else:
            raise errors.StillConsumed(f"a host takes topic {topic.name!r} back again and again; {AGAIN}")
        for slot in emptied:
            while letters := await store.dead(slot, limit=CHUNK):
                served(
                    await store.settle([slot_store.Settle(slot, d.member, slot_store.Verdict.PURGE) for d in letters])
                )
