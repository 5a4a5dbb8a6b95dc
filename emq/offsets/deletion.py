"""Empties topics that are being deleted: queues, lanes, slots. All calls to the store are for many topics at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence

from emq.offsets.checkpoints import CheckpointStore
from emq.offsets.sealing import seal_finished, sealed
from emq.runtime import errors
from emq.runtime.clock import Clock
from emq.storage import message
from emq.storage.answers import served
from emq.storage.lane_store import LaneClaim, LaneClaimed, LaneSettle, LaneStore, LaneVerdict
from emq.storage.log_store import Bounds, Trim
from emq.storage.names import topic_of
from emq.storage.slot_store import Recover, SlotSettle, SlotVerdict
from emq.storage.store import Store
from emq.topics.catalog import Catalog
from emq.topics.model import Topic
from emq.topics.opening import CHUNK, Place, places_of, settle_all
from emq.trail import events
from emq.trail.sink import TrailSink

LANES = 100
"""Most lanes that one call empties."""

FAR_FUTURE_MS = 1 << 52

TRIES = 20
"""Most times that a deletion takes groups from hosts that do not know of it yet. A host takes a group back at most once
before its next look at the catalog."""
AGAIN = "nothing more is published to it; delete it again"


async def under_way(lanes: LaneStore, catalog: Catalog, groups: Collection[str]) -> set[str]:
    """Return those of the groups whose topics are being deleted, or were: their lanes are sealed.

    Raises:
        StoreUnavailable, DatabaseUnavailable: try again later.
    """
    topics = await catalog.some({topic_of(group) for group in groups})
    known = [group for group in groups if topic_of(group) in topics]
    found = set(groups).difference(known)
    for start in range(0, len(known), CHUNK):
        part = known[start : start + CHUNK]
        found.update(g for g, state in zip(part, served(await lanes.inspect(part)), strict=True) if state.sealed)
    return found


async def seal_empty(store: Store, checkpoints: CheckpointStore, topics: Sequence[Topic]) -> list[Topic]:
    """Seal lanes, slots and queues of topics; return the topics of which all queues are sealed.

    The others hold messages that are not finished; some of their queues may be sealed.
    """
    await settle_all(store, places_of(topics), LaneVerdict.SEAL, SlotVerdict.SEAL)
    queues = [queue for topic in topics for queue in topic.all_queues()]
    is_sealed: dict[str, bool] = {}
    for start in range(0, len(queues), CHUNK):
        part = queues[start : start + CHUNK]
        is_sealed.update(zip(part, await sealed(store.log, checkpoints, part), strict=True))
    return [topic for topic in topics if all(is_sealed[queue] for queue in topic.all_queues())]


async def forget_taken(store: Store, topics: Sequence[Topic]) -> None:
    """Have the lanes of deleted topics forget which entries operators took."""
    lanes = [place.lane for place in places_of(topics)]
    for start in range(0, len(lanes), CHUNK):
        part = lanes[start : start + CHUNK]
        served(await store.lanes.settle([LaneSettle(lane, "", LaneVerdict.FORGET) for lane in part]))


class Deletion:
    """Seals and empties topics. Safe to repeat.

    Args:
        next_epoch: returns an epoch above all others.
    """

    def __init__(
        self,
        store: Store,
        checkpoints: CheckpointStore,
        next_epoch: Callable[[], Awaitable[int]],
        trail: TrailSink,
        clock: Clock,
    ) -> None:
        self._store = store
        self._checkpoints = checkpoints
        self._next_epoch = next_epoch
        self._trail = trail
        self._clock = clock

    async def seal(self, topics: Sequence[Topic], *, emptied: bool) -> bool:
        """Seal queues, lanes and slots; return False if a queue holds messages that are not finished.

        Args:
            emptied: True to drop the queues' messages, and record this.
        """
        before = [await self._bounds_of(topic) for topic in topics] if emptied else []
        queues = [queue for topic in topics for queue in topic.all_queues()]
        # The lanes first: a group forgets the ids of publishes when its last queue is sealed, and must learn no id
        # after that. Else a new topic of this name would leave out a message of such an id.
        await settle_all(self._store, places_of(topics), LaneVerdict.SEAL, SlotVerdict.SEAL)
        done = True
        for start in range(0, len(queues), CHUNK):
            part = queues[start : start + CHUNK]
            if emptied:
                answers = served(await self._store.log.trim([Trim(q, FAR_FUTURE_MS, None, seal=True) for q in part]))
                done &= all(answer is True for answer in answers)
            else:
                done &= await seal_finished(self._store.log, self._checkpoints, part)
        for topic, bounds in zip(topics, before, strict=False):
            self._record_emptied(topic, bounds, await self._bounds_of(topic))
        return done

    async def empty(self, topics: Sequence[Topic]) -> None:
        """Empty lanes and slots.

        Raises:
            StillConsumed: a host takes a group back again and again.
        """
        places = places_of(topics)
        for start in range(0, len(places), LANES):
            await self._empty_lanes(places[start : start + LANES])
        for topic in topics:
            if topic.is_sorted:
                await self._empty_slots(topic)

    async def _empty_lanes(self, places: Sequence[Place]) -> None:
        """Empty lanes under an epoch of our own, which fences off a host that still owns them.

        A host that does not know of the deletion yet takes its group back, with a newer epoch. Then ours must be newer
        again: otherwise a new topic of this name would deliver the host's claimed messages.
        """
        lanes, left = self._store.lanes, list(places)
        for _ in range(TRIES):
            epoch = await self._next_epoch()
            served(await lanes.recover([(place.lane, epoch) for place in left]))
            left = await self._taken_out(left, epoch)
            if not left:
                break
        else:
            raise errors.StillConsumed(f"a host takes group {left[0].lane} back again and again; {AGAIN}")
        names = [place.lane for place in places]
        for lane, state in zip(names, served(await lanes.inspect(names)), strict=True):
            while state.dead and (page := await lanes.dead(lane, limit=CHUNK)):
                served(await lanes.settle([LaneSettle(lane, d.id, LaneVerdict.PURGE) for d in page]))
        served(await lanes.settle([LaneSettle(lane, "", LaneVerdict.FORGET) for lane in names]))

    async def _taken_out(self, places: Sequence[Place], epoch: int) -> list[Place]:
        """Take all entries out of lanes; return those with which a host of a newer epoch interferes."""
        lanes, left, taken_back = self._store.lanes, list(places), list[Place]()
        while left:
            limit = max(1, CHUNK // len(left))
            claims = await lanes.claim([LaneClaim(place.lane, limit, epoch) for place in left], FAR_FUTURE_MS)
            held: list[Place] = []
            acks: list[tuple[Place, LaneSettle]] = []
            for place, claimed in zip(left, served(claims), strict=True):
                if not isinstance(claimed, LaneClaimed):
                    taken_back.append(place)
                elif claimed.entries:
                    held.append(place)
                    acks += [(place, LaneSettle(place.lane, i, LaneVerdict.ACK, epoch)) for i, _ in claimed.entries]
            refused: set[str] = set()
            answers = served(await lanes.settle([ack for _, ack in acks])) if acks else []
            for (place, ack), answer in zip(acks, answers, strict=True):
                if answer is True:
                    self._record_gone(place.topic, place.group, [ack.id])
                else:
                    refused.add(place.lane)
            taken_back += [place for place in held if place.lane in refused]
            left = [place for place in held if place.lane not in refused]
        return taken_back

    async def _empty_slots(self, topic: Topic) -> None:
        """Empty slots as `_empty_lanes` empties lanes. Later members of foreign producers become orphans."""
        store = self._store.sorted
        emptied, now_ms = [topic.slot(group) for group in range(topic.slots)], self._clock.now_us() // 1000
        for _ in range(TRIES):
            epoch = await self._next_epoch()
            # Recover all members, also those that another program claimed: it cannot give members back to a deleted
            # topic.
            served(await store.recover([Recover(slot, epoch, FAR_FUTURE_MS) for slot in emptied], now_ms))
            for group, slot in enumerate(emptied):
                while page := await store.waiting(slot, 0, CHUNK):
                    served(await store.settle([SlotSettle(slot, w.member, SlotVerdict.RECALL) for w in page]))
                    self._record_gone(topic, group, [message.slot_id(group, w.member) for w in page])
            if not any(state.prepared for state in served(await store.inspect(emptied, now_ms))):
                break
        else:
            raise errors.StillConsumed(f"a host takes topic {topic.name!r} back again and again; {AGAIN}")
        for slot in emptied:
            while letters := await store.dead(slot, limit=CHUNK):
                served(await store.settle([SlotSettle(slot, d.member, SlotVerdict.PURGE) for d in letters]))

    async def _bounds_of(self, topic: Topic) -> Sequence[Bounds]:
        if not self._trail.enabled:
            return ()
        return served(await self._store.log.bounds(topic.all_queues()))

    def _record_emptied(self, topic: Topic, before: Sequence[Bounds], after: Sequence[Bounds]) -> None:
        """Record that the queues' messages were dropped on purpose; nothing was added after the second look."""
        places = ((group, priority) for group in range(topic.groups) for priority in range(len(topic.priorities)))
        for (group, priority), was, now in zip(places, before, after, strict=False):
            if now.tail > was.head:
                now_us = self._clock.now_us()
                self._trail.record(events.Dropped(now_us, topic.name, group, priority, was.head, now.tail, "deleted"))

    def _record_gone(self, topic: Topic, group: int, ids: Sequence[str]) -> None:
        for id_ in ids:
            self._trail.record(events.Recalled(self._clock.now_us(), topic.name, group, 0, id_))
