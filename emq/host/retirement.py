"""The retirement loop: drops the retired groups of topics that have shrunk.

A topic that shrinks keeps its surplus groups, the retired ones, until they are empty. Meanwhile a retired group that is
empty gives its part of the quota to the other groups. The groups are dropped once all of them are empty.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from emq.offsets import lag
from emq.offsets.checkpoints import CheckpointStore
from emq.offsets.sealing import seal_finished
from emq.runtime import errors, pace
from emq.runtime.clock import Clock
from emq.runtime.guard import SAID_AGAIN_S
from emq.runtime.slicing import in_slices
from emq.storage.answers import accepted, served
from emq.storage.durability import Durability
from emq.storage.lane_store import LaneAdd, LaneSettle, LaneStore, LaneVerdict
from emq.storage.log_store import Trim
from emq.storage.store import Store
from emq.topics import changing
from emq.topics.catalog import Catalog
from emq.topics.model import Topic

log = logging.getLogger(__name__)

RETIRE_S = 0.5
"""Seconds between looks at the shrunk topics, while there are any."""

GROUPS = 2_000
"""Retired groups up to which looks keep their interval; with more groups, looks come less often."""

TOGETHER = 500
"""Queues or lanes looked at in one step; then the event loop may run other tasks."""

RESCUE_PAGE = 500

STABLE_S = 2.0
"""Seconds for which retired groups must be empty and sealed before they are dropped. A store that loses its last second
in a crash then still knows the seals."""


AGAIN_S = 15.0
"""Seconds after which groups that came back are opened once more: a slow seal may have arrived after the first
opening."""


class Known(Protocol):
    """The topics that a host knows; it lags a moment behind the catalog.

    Attributes:
        topics: all of them, by name.
    """

    @property
    def topics(self) -> Mapping[str, Topic]: ...

    def shrunk(self) -> Iterable[Topic]:
        """Return the topics to look at: those with more `groups` than `active_groups`."""
        ...

    async def until_some_shrunk(self) -> None:
        """Wait until there may be such topics."""


class Sealed(NamedTuple):
    """Groups of a topic that this host has sealed.

    Attributes:
        first: the number of the first one.
        opened_s: the event loop's time when they were first opened again; None if the topic has not grown since.
    """

    first: int
    opened_s: float | None = None


class Stable(NamedTuple):
    """A topic as it was when its retired groups were found empty and sealed, and the event loop's time then."""

    topic: Topic
    since_s: float


class Retirement:
    """Retires groups of the topics whose last group this host owns.

    No message is lost. First, every queue of the retired groups must be finished by its checkpoint. Then the store
    seals each queue, but only while the queue is empty. A sealed queue refuses producers that still have an old picture
    of the catalog, so that no producer writes where no host reads. Dead letters move to the topic's first group. The
    catalog is changed last, once all this has held for `STABLE_S`.

    A topic may grow while or after this host seals groups of it. The process that grows the topic opens the groups.
    This host opens them, too, as soon as it hears of the growth.
    """

    def __init__(
        self,
        catalog: Catalog,
        store: Store,
        checkpoints: CheckpointStore,
        known: Known,
        clock: Clock,
        stable_s: float = STABLE_S,
    ) -> None:
        """Args:
        stable_s: see `STABLE_S`.
        """
        self._catalog = catalog
        self._store = store
        self._checkpoints = checkpoints
        self._known = known
        self._clock = clock
        self._stable_s = stable_s
        self._stable: dict[str, Stable] = {}
        self._has_sealed: dict[str, Sealed] = {}
        self._unrescued: dict[str, Sequence[str]] = {}
        self._complained: dict[str, float] = {}

    async def watch(self) -> None:
        """Look at shrunk topics every `RETIRE_S` seconds, less often if they are large. Ends by cancellation."""
        while True:
            # With many retired groups, looks come less often, since each look is at every one of them.
            retired = sum(topic.groups - topic.active_groups for topic in self._known.shrunk())
            await pace.rest(RETIRE_S * max(1, retired / GROUPS))
            shrunk = list(self._known.shrunk())
            if not shrunk:
                self._complained.clear()
            names = {topic.name for topic in shrunk}
            self._stable = {name: stable for name, stable in self._stable.items() if name in names}
            for topic in shrunk:
                await self._try(topic.name, self.retire(topic))
            for name in list(self._unrescued):
                await self._try(name, self._rescue(name))
            for name in [name for name, sealed in self._has_sealed.items() if self._has_grown(name, sealed)]:
                await self._try(name, self._open(name))
            if not (shrunk or self._unrescued or self._has_sealed):
                await self._known.until_some_shrunk()

    async def _try(self, topic: str, work: Coroutine[Any, Any, object]) -> None:
        """Await the work; a failure of one topic must not stop the others."""
        try:
            await work
        except (
            errors.UnknownTopic,
            errors.QueueSealed,  # the topic is being deleted
            errors.StoreUnavailable,
            errors.StoreFull,
            errors.DatabaseUnavailable,
        ) as exc:
            log.info("%s; the retired groups of %s stay for now", exc, topic)
        except Exception:
            if self._complained.get(topic, 0) <= self._clock.now():
                self._complained[topic] = self._clock.now() + SAID_AGAIN_S
                log.exception("the retired groups of topic %s stay for now", topic)

    async def retire(self, topic: Topic) -> bool:
        """Drop the topic's retired groups. Return False if one has a message, or had one until just now.

        Until all are empty, only the retired groups that still hold messages keep a part of the quota.
        """
        retired = range(topic.active_groups, topic.groups)
        now_ms = int(self._clock.now() * 1000)
        draining = tuple(sorted(await lag.holding(self._store, self._checkpoints, topic, retired, now_ms)))
        if draining != topic.division.draining:
            await self._catalog.change(topic.name, lambda same: same, expected=topic, draining=draining)
            return False
        queues = [q async for group in in_slices(retired, TOGETHER) for q in topic.queues(group)]
        slots = [topic.group(group) async for group in in_slices(retired, TOGETHER)]
        if any(await lag.unfinished(self._store.log, self._checkpoints, queues)):
            return False
        if await self._retrying(slots):
            return False
        if topic.name in self._stable and not await self._are_sealed(queues):
            del self._stable[topic.name]  # the store has lost its last writes, and seals set now may be lost as well
        first = min(topic.active_groups, self._has_sealed.get(topic.name, Sealed(topic.groups)).first)
        self._has_sealed[topic.name] = Sealed(first)
        # Look at the lanes again: a message that came and failed meanwhile has left its queue for the lane.
        empty = await self._sealed(queues) and not await self._retrying(slots)
        if empty and not await self._is_stable(topic, slots):
            return False
        self._stable.pop(topic.name, None)
        done = empty and await self._drop(topic, slots)
        if not done:
            for part in _parts(queues):
                served(await self._store.log.trim([Trim(q, 0, None, seal=False) for q in part]))
                await asyncio.sleep(0)
        return done

    def _has_grown(self, name: str, sealed: Sealed) -> bool:
        """Return whether groups sealed here belong to the topic again, or the topic is gone."""
        topic = self._known.topics.get(name)
        return topic is None or topic.active_groups > sealed.first

    async def _open(self, name: str) -> None:
        """Open the groups that this host has sealed and that belong to the topic again; once more after `AGAIN_S`."""
        sealed, now_s = self._has_sealed[name], asyncio.get_running_loop().time()
        if sealed.opened_s is not None and now_s < sealed.opened_s + AGAIN_S:
            return
        try:
            topic = await self._catalog.get(name)  # the host may know an old version
        except errors.UnknownTopic:
            topic = None
        if topic is None or topic.asleep_s:  # whoever wakes the topic opens its groups
            del self._has_sealed[name]
            return
        back = range(sealed.first, topic.active_groups)
        queues = [q async for group in in_slices(back, TOGETHER) for q in topic.queues(group)]
        for part in _parts(queues):
            served(await self._store.log.trim([Trim(q, 0, None, seal=False) for q in part]))
            await asyncio.sleep(0)
        if sealed.opened_s is None:
            self._has_sealed[name] = sealed._replace(opened_s=now_s)
        elif topic.groups == topic.active_groups:
            del self._has_sealed[name]
        else:
            self._has_sealed[name] = Sealed(topic.active_groups)

    async def _are_sealed(self, queues: Sequence[str]) -> bool:
        """Return whether all queues are sealed, without a change."""
        for part in _parts(queues):
            if not all(
                sealed is True for sealed in served(await self._store.log.trim([Trim(q, 0, None) for q in part]))
            ):
                return False
            await asyncio.sleep(0)
        return True

    async def _sealed(self, queues: Sequence[str]) -> bool:
        """Seal the queues. Returns False if one of them holds something; others may be sealed even then."""
        for part in _parts(queues):
            if not await seal_finished(self._store.log, self._checkpoints, part):
                return False
            await asyncio.sleep(0)
        return True

    async def _retrying(self, slots: Sequence[str]) -> bool:
        for part in _parts(slots):
            if any(s.waiting or s.prepared for s in served(await self._store.lanes.inspect(part))):
                return True
            await asyncio.sleep(0)
        return False

    async def _is_stable(self, topic: Topic, slots: Sequence[str]) -> bool:
        """Move the groups' dead letters; return whether nothing has changed for `stable_s`."""
        moved = 0
        for slot in slots:
            moved += await move_dead_letters(self._store.lanes, slot, topic.group(0), topic.options.durability)
        now_s, stable = asyncio.get_running_loop().time(), self._stable.get(topic.name)
        if stable is None or moved or stable.topic != topic:
            stable = self._stable[topic.name] = Stable(topic, now_s)
        return now_s - stable.since_s >= self._stable_s

    async def _drop(self, topic: Topic, slots: Sequence[str]) -> bool:
        """Drop the groups from the catalog by compare-and-set. Returns False if the topic has changed meanwhile."""
        # Noted before, since the answer to the change may be lost. If the groups are still there, nothing is moved.
        self._unrescued[topic.name] = [*dict.fromkeys([*self._unrescued.get(topic.name, ()), *slots])]
        after = await self._catalog.change(topic.name, changing.retired, expected=topic)
        if not after.groups == after.active_groups == topic.active_groups:
            return False
        await self._rescue(topic.name)
        return True

    async def _rescue(self, name: str) -> None:
        """Move the entries that producers added to a retired group's lane before they saw the catalog's change.

        Producers read the catalog after each add, so they themselves move an entry that they add after this call. If
        the store fails, the loop calls this again.
        """
        store, dropped = self._store.lanes, self._unrescued[name]
        try:
            topic = await self._catalog.get(name)
        except errors.UnknownTopic:  # deleted meanwhile, with all that it had
            del self._unrescued[name]
            return
        if topic.asleep_s:  # its lanes take nothing until it wakes
            return
        active, to = {topic.group(group) for group in range(topic.groups)}, topic.group(0)
        lanes = [lane for lane in dropped if lane not in active]  # the topic may have grown again
        for lane in lanes:
            while page := await store.waiting(lane, 0, RESCUE_PAGE):
                adds = [LaneAdd(to, e.id, e.body, e.due_ms, priority=e.priority) for e in page]
                accepted(await store.add(adds, topic.options.durability))
                served(await store.settle([LaneSettle(lane, e.id, LaneVerdict.RECALL) for e in page]))
        # A later deletion of the topic would not know these groups.
        for part in _parts(lanes):
            served(await store.settle([LaneSettle(lane, "", LaneVerdict.FORGET) for lane in part]))
            await asyncio.sleep(0)
        del self._unrescued[name]


async def move_dead_letters(store: LaneStore, lane: str, to: str, durability: Durability) -> int:
    """Move a retired group's dead letters to another lane; return their number.

    This function adds each dead letter to the other lane before it drops the dead letter from the retired lane. A crash
    in between leaves the dead letter in both lanes until the call is repeated. If an operator purges the copy in the
    other lane meanwhile, the repeated call does not add it again. The dead letter is dropped for good, so that a host
    that still waits for the answer of its add cannot add it again.
    """
    count = 0
    while page := await store.dead(lane, limit=RESCUE_PAGE):
        adds = [LaneAdd(to, d.id, d.body, d.dead_ms, d.reason, since_ms=d.dead_ms) for d in page]
        accepted(await store.add(adds, durability))
        served(await store.settle([LaneSettle(lane, d.id, LaneVerdict.PURGE, for_good=True) for d in page]))
        count += len(page)
    return count


def _parts(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[start : start + TOGETHER] for start in range(0, len(names), TOGETHER))
