"""Taking and letting go of groups, and keeping what is owned in step with the catalog."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence

from emq import errors
from emq.clock import Clock
from emq.dispatch import priority
from emq.dispatch.borrowing import BorrowingCounter
from emq.dispatch.counter import Counter, SmoothCounter, WindowCounter
from emq.dispatch.dispatcher import Dispatcher
from emq.fetcher.lanes import LaneClaimer
from emq.fetcher.readiness import Readiness
from emq.fetcher.slots import SlotClaimer, give_back
from emq.handlers import Handlers, with_timeout
from emq.model import State, Topic, quota_of
from emq.offsets.checkpointer import Checkpointer
from emq.offsets.checkpoints import Checkpoint, CheckpointStore
from emq.offsets.tracker import OffsetTracker
from emq.owned import Gauge, OwnedGroup, OwnedQueue, OwnedTopic, buffer_capacity, in_flight_limit
from emq.owned_slot import OwnedSlot
from emq.slots import Recover
from emq.storage import Claim, Store, group_of
from emq.trail.sink import TrailSink

log = logging.getLogger(__name__)

HORIZON_S = 1.0
"""How far ahead of its quota a queue is buffered. Small, because what is buffered is out of the catalog's reach."""

DRAIN_S = 10.0
"""How long a release waits for messages in flight; what is not settled by then is delivered again by the next owner."""

DRAIN_STEP_S = 0.02
"""How often a release looks for groups that have drained; all of one step are checkpointed together."""

MANY = 1_000
"""From so many queues on, reading all checkpoints at once is quicker than naming them."""


class Loops:
    """The loops that ownership has to tell about groups that come and go; `emq.host` makes them."""

    dispatcher: Dispatcher
    readiness: Readiness
    lanes: LaneClaimer
    slots: SlotClaimer
    checkpointer: Checkpointer
    unsettled: Callable[[OwnedGroup], int]
    """What is under way in a group: messages in flight, schedules being fired."""


class Ownership:
    """The topics, groups and queues of this host.

    States of a group: *acquired* (its checkpoint is loaded, its slot recovered; it is read and dispatched), *stopping*
    (nothing more is read or started; messages in flight are awaited), *released* (checkpointed and forgotten), or
    *lost* (a newer owner exists; forgotten at once, nothing saved).

    Attributes:
        topics: every topic of the catalog, by name.
        owned: topics with a group here.
        groups, queues: what is owned, by name.
    """

    def __init__(
        self,
        store: Store,
        checkpoints: CheckpointStore,
        handlers: Handlers,
        clock: Clock,
        trail: TrailSink,
        gauge: Gauge,
    ) -> None:
        self._store = store
        self._checkpoints = checkpoints
        self._handlers = handlers
        self._clock = clock
        self._trail = trail
        self._gauge = gauge
        self.loops = Loops()
        self.topics: dict[str, Topic] = {}
        self.owned: dict[str, OwnedTopic] = {}
        self.groups: dict[str, OwnedGroup] = {}
        self.queues: dict[str, OwnedQueue] = {}
        self.lost_groups = 0
        self._shrunk: set[str] = set()

    # -------------------------------------------------------------------------------------------- groups come and go

    async def acquire(self, assigned: Mapping[str, int], still: Callable[[], bool] = lambda: True) -> list[str]:
        """Start consuming groups (name to epoch) from their checkpoints, from the next second on.

        From the first step on the stores refuse former owners: what they had done before it is seen here, and after it
        they do nothing more.

        Args:
            still: asked at the end whether it is still wanted.

        Returns:
            Groups that a newer owner has; they were not acquired.

        Raises:
            DatabaseUnavailable, StoreUnavailable: nothing was acquired; try again.
        """
        refused: set[str] = set()
        while True:
            wanted = {
                g: e
                for g, e in assigned.items()
                if (t := self.topics.get(topic_of(g))) and index_of(g) < t.groups and g not in refused
            }
            topics = {name: self.topics[name] for name in map(topic_of, wanted)}
            newly_refused = await self._fence(wanted)
            if newly_refused:
                refused |= newly_refused
                continue
            saved = await self._prepare(wanted)
            if all(self.topics.get(name) is topic for name, topic in topics.items()):
                break  # else one of them was changed or deleted meanwhile: look again
        if not still():
            return []
        now_us = self._clock.now_us()
        for name, epoch in wanted.items():
            group = self._build(name, epoch, saved)
            if self._trail.enabled:
                self._trail.owned(name, epoch, now_us)
            self.loops.lanes.acquire(group)
            if group.slot is not None:
                self.loops.slots.acquire(group.slot)
            for queue in group.queues:
                self.loops.readiness.add(queue)
                if saved[queue.name].epoch:
                    self.loops.checkpointer.resumed(queue)
        return sorted(refused)

    async def _fence(self, wanted: Mapping[str, int]) -> set[str]:
        """Have the stores refuse every lower epoch from now on; answers groups of which they refuse this one."""
        claims = [Claim(group, 0, epoch) for group, epoch in wanted.items()]
        answers = await self._store.lanes.claim(claims, 0)
        refused = {c.slot for c, a in zip(claims, answers, strict=True) if isinstance(a, errors.NotOwner)}
        epochs = {q: e for g, e in wanted.items() for q in self.topics[topic_of(g)].queues(index_of(g))}
        return refused | {group_of(queue) for queue in await self._checkpoints.fence(epochs)}

    async def _prepare(self, wanted: Mapping[str, int]) -> dict[str, Checkpoint]:
        """Put back what former owners claimed; answers from where the groups' queues are to be read."""
        topics = [(self.topics[topic_of(g)], index_of(g), epoch) for g, epoch in wanted.items()]
        names = [q for topic, index, _ in topics for q in topic.queues(index)]
        saved = await (self._checkpoints.load_all() if len(names) >= MANY else self._checkpoints.load(names))
        begun = []  # a row for each queue that a former owner may still write its first checkpoint of
        for name, bounds in zip(names, await self._store.log.bounds(names), strict=True):
            checkpoint = saved.get(name)
            if checkpoint is not None and checkpoint.watermark > bounds.tail:
                log.warning(
                    "checkpoint %d of %s is beyond its tail %d: the store was emptied; starting at its head",
                    checkpoint.watermark,
                    name,
                    bounds.tail,
                )
                checkpoint = None
                await self._checkpoints.drop([name])
            saved[name] = checkpoint or Checkpoint(name, 0, bounds.head)
            if checkpoint is None and bounds.tail > bounds.head:
                begun.append(Checkpoint(name, wanted[group_of(name)], bounds.head))
        await self._checkpoints.save(begun)
        await self._store.lanes.recover(list(wanted.items()))
        recovers = [Recover(topic.slot(index), epoch) for topic, index, epoch in topics if topic.is_sorted]
        if recovers:
            await self._store.sorted.recover(recovers, int(self._clock.now() * 1000))
        return saved

    async def release(self, names: Iterable[str], drain_s: float = DRAIN_S) -> None:
        """Stop consuming groups: start nothing more, await what is in flight, save how far they came."""
        async for _ in self.releasing(names, drain_s):
            pass

    async def releasing(self, names: Iterable[str], drain_s: float = DRAIN_S) -> AsyncIterator[list[str]]:
        """As `release`; yields names as their groups are let go of, those first that have nothing in flight.

        Where the database does not answer, a group is let go of without its last second of progress.
        """
        names = list(names)
        groups = [group for name in names if (group := self.groups.get(name)) is not None]
        if absent := [name for name in names if name not in self.groups]:
            yield absent
        for group in groups:
            group.stopping = True
        deadline = self._clock.now() + drain_s
        while groups:
            # A claim under way is awaited, too: its answer tells what to give back.
            waiting = [g for g in groups if (self.loops.unsettled(g) or g.is_claiming) and not g.lost]
            if self._clock.now() >= deadline:
                if left := sum(map(self.loops.unsettled, waiting)):
                    log.warning("%d messages still in flight after %g s; they will be delivered again", left, drain_s)
                waiting = []
            if len(waiting) < len(groups):
                held = set(waiting)
                yield await self._let_go([g for g in groups if g not in held])
            groups = waiting
            await asyncio.sleep(DRAIN_STEP_S)

    async def _let_go(self, groups: list[OwnedGroup]) -> list[str]:
        await self._give_back(groups)
        await self.loops.checkpointer.save()
        for group in groups:
            if self.groups.get(group.name) is group:
                self._forget(group)
                if self._trail.enabled:
                    self._trail.released(group.name, group.epoch, self._clock.now_us())
        return [group.name for group in groups]

    def forget_all(self) -> None:
        """Everything belongs to others now: forget it at once."""
        if self.groups:
            log.warning("letting go of all %d groups", len(self.groups))
        for group in list(self.groups.values()):
            self._lose(group)

    async def _give_back(self, groups: Iterable[OwnedGroup]) -> None:
        """Members that were claimed and not started wait again as they did, instead of being rolled back later."""
        settles = [
            give_back(group.slot, m.member, m.token, m.score)
            for group in groups
            if group.slot is not None and not group.lost
            for m in group.waiting_members()
            if m.member is not None
        ]
        if settles:
            try:
                await self._store.sorted.settle(settles)
            except (errors.StoreUnavailable, errors.StoreFull) as exc:
                log.warning("%s; %d claimed messages are left to time out", exc, len(settles))

    def lost(self, group: OwnedGroup) -> None:
        """A newer owner exists: forget the group at once; what is in flight here settles nothing any more."""
        if self.groups.get(group.name) is group:
            log.warning("group %s has a newer owner than epoch %d; letting go of it", group.name, group.epoch)
            self._lose(group)

    def _lose(self, group: OwnedGroup) -> None:
        self.lost_groups += 1
        group.lost = True
        self._forget(group)

    def _build(self, name: str, epoch: int, saved: Mapping[str, Checkpoint]) -> OwnedGroup:
        topic = self.topics[topic_of(name)]
        owner = self.owned.get(topic.name)
        if owner is None:
            owner = self.owned[topic.name] = OwnedTopic(topic)
            self._bind(owner)
        index = index_of(name)
        quota = quota_of(topic, index)
        counter = self._counter(owner, quota)
        group = OwnedGroup(owner, index, epoch, counter, priority.policy_for(topic), self._gauge)
        group.quota = quota
        group.capacity = buffer_capacity(quota, HORIZON_S)
        owner.groups[index] = self.groups[name] = group
        if isinstance(owner.sisters, deque):
            owner.sisters.append(group)
        if topic.is_sorted:
            group.slot = OwnedSlot(group, topic.slot(index))
            group.buffers.append(deque())
            group.serial = topic.options.ordering == "slot"
        for i, queue_name in enumerate(topic.queues(index)):
            checkpoint = saved[queue_name]
            queue = OwnedQueue(group, i, OffsetTracker(checkpoint.watermark, checkpoint.finished), HORIZON_S)
            group.queues.append(queue)
            group.buffers.append(deque())
            self.queues[queue_name] = queue
        return group

    def _forget(self, group: OwnedGroup) -> None:
        group.stopping = True
        group.discard()
        self.loops.lanes.release(group)
        if group.slot is not None:
            self.loops.slots.release(group.slot)
        owner = group.owner
        del self.groups[group.name]
        for queue in group.queues:
            del self.queues[queue.name]
        owner.groups.pop(group.index, None)
        if isinstance(owner.sisters, deque):
            owner.sisters.remove(group)
        if not owner.groups and self.owned.get(owner.topic.name) is owner:
            del self.owned[owner.topic.name]

    # ------------------------------------------------------------------------------------- following the catalog

    def apply(self, changed: Sequence[Topic], deleted: Iterable[str]) -> None:
        """Take over what the catalog says; quotas, limits and states count from now on, without a pause."""
        for name in deleted:
            self.topics.pop(name, None)
            # What is held of it is about to be taken away, and is none of a new topic's of that name.
            self.owned.pop(name, None)
        for topic in changed:
            self.topics[topic.name] = topic
            (self._shrunk.add if topic.groups > topic.active_groups else self._shrunk.discard)(topic.name)
            if (owner := self.owned.get(topic.name)) is not None:
                self._update(owner, topic)

    def shrunk(self) -> Iterator[Topic]:
        """Topics with retired groups whose last group is owned here."""
        for name in self._shrunk:
            topic = self.topics.get(name)
            if topic is not None and topic.group(topic.groups - 1) in self.groups:
                yield topic

    def _update(self, owner: OwnedTopic, topic: Topic) -> None:
        before, owner.topic = owner.topic, topic
        owner.limit = in_flight_limit(topic)
        self._bind(owner)
        now = self._clock.now()
        repaced = (before.options.pacing, before.options.burst, before.options.borrow) != (
            topic.options.pacing,
            topic.options.burst,
            topic.options.borrow,
        )
        if repaced:
            owner.sisters = deque(owner.groups.values()) if topic.options.borrow else ()
        for group in list(owner.groups.values()):
            if group.index >= topic.groups:
                continue  # the assignment is about to take it away
            group.quota = quota_of(topic, group.index)
            group.policy = priority.policy_for(topic)
            if repaced:
                group.counter = self._counter(owner, group.quota)
            else:
                group.counter.set_quota(group.quota, now)
            group.capacity = buffer_capacity(group.quota, HORIZON_S)
            for queue in group.queues:
                queue.capacity = group.capacity
                self.loops.readiness.add(queue)
            self.loops.dispatcher.recheck(group)
            self.loops.lanes.at(group.name, 0)
            if group.slot is not None:
                group.serial = topic.options.ordering == "slot"
                group.slot.slot = topic.slot(group.index)
                self.loops.slots.woken((group.slot.address,))

    def rebind(self) -> None:
        """Look again at what is bound to which topic."""
        for owner in list(self.owned.values()):
            self._update(owner, owner.topic)

    def wanted(self) -> None:
        """A receiver wants messages: start what waits for that."""
        for owner in self.owned.values():
            if owner.receiver is not None and owner.waiting:
                self.loops.dispatcher.wanted(owner)

    def _bind(self, owner: OwnedTopic) -> None:
        binding = self._handlers.find(owner.topic.name)
        if binding is None or owner.topic.state is State.PAUSED:
            owner.handler = None
            return
        owner.receiver = binding.receiver
        timeout_s = owner.topic.options.handler_timeout_s
        owner.handler = binding.call if timeout_s is None else with_timeout(binding.call, timeout_s)
        owner.batch_size = binding.batch_size

    def _counter(self, owner: OwnedTopic, quota: float) -> Counter:
        options, now = owner.topic.options, self._clock.now()
        if options.borrow:
            if not isinstance(owner.sisters, deque):
                owner.sisters = deque()
            return BorrowingCounter(quota, now, owner.sisters)
        if options.pacing == "smooth":
            return SmoothCounter(quota, now, options.burst)
        return WindowCounter(quota, now)


def topic_of(group: str) -> str:
    return group.rpartition("/")[0]


def index_of(group: str) -> int:
    return int(group.rpartition("/")[2])
