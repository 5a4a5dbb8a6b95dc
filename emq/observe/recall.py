"""Takes messages back before they start: from lanes, and from the slots of sorted topics."""

from __future__ import annotations

from collections.abc import Collection

from emq.observe import planned
from emq.runtime.clock import Clock, SystemClock
from emq.storage import message
from emq.storage.answers import served
from emq.storage.lane_store import EntryState, LaneSettle, LaneVerdict
from emq.storage.slot_store import SlotSettle, SlotVerdict
from emq.storage.store import Store
from emq.topics.model import Topic
from emq.trail import events
from emq.trail.sink import NullTrail, TrailSink

PAGE = 1_000

NO_PRIORITY = -1
"""The priority, in the trail, of messages that were taken back unread."""

NO_TRAIL = NullTrail()


async def recall(
    store: Store,
    topic: Topic,
    ids: Collection[str],
    trail: TrailSink = NO_TRAIL,
    clock: Clock | None = None,
    *,
    uids: Collection[str] = (),
) -> set[str]:
    """Take back waiting messages and schedules; returns the ids and identities of those that were still there.

    Each message is either taken back or delivered, never both. An id that is not returned was not waiting: the message
    has started, a host has claimed it or it is ready in the queue of a log topic, it is over, or never existed. A
    schedule that is just being fired waits again a moment later. Taking back a schedule leaves the occurrences that it
    has already published. If several waiting messages have an id, all of them are taken back. For a sorted topic, the
    time grows with the number of messages in the slot of an id.

    Raises:
        StoreUnavailable: some may have been taken back; repeat the call, which then does not return these.
    """
    clock = clock or SystemClock()
    taken: set[str] = set()
    for asked, by_identity in ((uids, True), (ids, False)):
        async for chunk in planned.named(store.lanes, topic, asked, EntryState.WAITING, by_identity=by_identity):
            answers = await store.lanes.settle(
                [LaneSettle(topic.group(each.group), each.uid, LaneVerdict.RECALL, for_good=True) for each in chunk]
            )
            for each, answer in zip(chunk, answers, strict=True):
                if answer is True:
                    taken.add(each.id)
                    trail.record(events.Recalled(clock.now_us(), topic.name, each.group, NO_PRIORITY, each.uid))
            served(answers)
    if topic.is_sorted:  # the id of a member is its identity
        taken |= await _from_slots(store, topic, {*ids, *uids} - taken, trail, clock)
    return taken


async def _from_slots(store: Store, topic: Topic, ids: set[str], trail: TrailSink, clock: Clock) -> set[str]:
    by_slot: dict[int, set[str]] = {}
    for id_ in ids:
        index, mark, _ = id_.partition("-")
        if mark and index.isdecimal() and int(index) < topic.slots:
            by_slot.setdefault(int(index), set()).add(id_)
    taken: set[str] = set()
    for place, wanted in by_slot.items():
        found = await _members(store, topic, place, wanted)
        slot = topic.slot(place)
        settles = [SlotSettle(slot, member, SlotVerdict.RECALL) for member in found.values()]
        answers = await store.sorted.settle(settles)
        mine = [id_ for id_, done in zip(found, answers, strict=True) if done is True]
        taken.update(mine)
        for id_ in mine:
            trail.record(events.Recalled(clock.now_us(), topic.name, place, 0, id_))
        served(answers)
    return taken


async def _members(store: Store, topic: Topic, index: int, wanted: Collection[str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    skip, slot = 0, topic.slot(index)
    while len(found) < len(wanted) and (page := await store.sorted.waiting(slot, skip, PAGE)):
        for waiting in page:
            if (id_ := message.slot_id(index, waiting.member)) in wanted:
                found[id_] = waiting.member
        skip += len(page)
    return found
