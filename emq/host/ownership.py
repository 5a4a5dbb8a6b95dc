"""Acquires groups, forgets groups, and updates the owned groups when the catalog changes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from emq.groups import priority
from emq.groups.capacity import HORIZON_S, buffer_capacity, queue_capacity
from emq.groups.context import HostContext
from emq.groups.nothing import NOTHING
from emq.groups.offset_tracker import OffsetTracker
from emq.groups.owned import OwnedGroup, OwnedQueue, OwnedSlot, OwnedTopic
from emq.host.budgets import Budgets
from emq.host.changing_topics import ChangingTopics
from emq.host.group_work import GroupWork
from emq.host.handlers import Handlers
from emq.host.losses import Losses
from emq.host.surroundings import Storage
from emq.host.takeover import Takeover
from emq.host.topic_updates import TopicUpdates
from emq.offsets.checkpoints import Checkpoint
from emq.quota.charge import limited
from emq.runtime import plurals
from emq.runtime.slicing import in_slices
from emq.storage import marks
from emq.storage.answers import Failure, unexpected
from emq.storage.names import parts_of
from emq.topics.key_layouts import KeyGate
from emq.topics.model import Topic, quota_of
from emq.trail import events

log = logging.getLogger(__name__)


class Acquired(NamedTuple):
    """The groups that could not be acquired; the host owns the others now.

    Attributes:
        refused: groups that a newer owner has.
        waiting: groups that the store could not serve, and why. Try them again.
    """

    refused: Sequence[str] = ()
    waiting: Mapping[str, Failure] = {}


class Ownership:
    """The topics, groups and queues of this host.

    States of a group: *acquired* (its checkpoint is loaded and its slot recovered; the host reads and dispatches its
    messages), *stopping* (the host reads and starts nothing more, and waits for messages in flight), *released*
    (checkpointed and forgotten), or *lost* (a newer owner exists; forgotten at once, nothing saved).

    Attributes:
        topics: every topic of the catalog, by name.
        owned: topics with a group here.
        groups, queues: the groups and queues of this host, by name.
        consumed: the epochs of the groups that are acquired and not stopping, by name.
        taken, let_go: groups that came and went since the start.
        losses: the groups that stores refused to this host.
        changing: the topics with retired groups or with keys that move.
        takeover: takes over the progress of groups from their former owners.
    """

    def __init__(
        self,
        storage: Storage,
        handlers: Handlers,
        work: GroupWork,
        context: HostContext,
        window_begins_s: float = 0.0,
    ) -> None:
        """Args:
        window_begins_s: seconds into each second before which topics that count by the second start nothing.
        """
        self._window_begins_s = window_begins_s
        self._clock = context.clock
        self._trail = context.trail
        self._gauge = context.gauge
        self.work = work
        self.topics: dict[str, Topic] = {}
        self.owned: dict[str, OwnedTopic] = {}
        self.groups: dict[str, OwnedGroup] = {}
        self.consumed: dict[str, int] = {}
        self.taken = self.let_go = 0
        self.queues: dict[str, OwnedQueue] = {}
        self.losses = Losses()
        self._budgets = Budgets(self.topics, self.groups, context.clock)
        self._updates = TopicUpdates(handlers, work, self.owned, self.groups, self._budgets, context)
        self.takeover = Takeover(storage.store, storage.checkpoints, self.topics, context)
        self.changing = ChangingTopics(self.topics, self.owned, self.groups)

    @property
    def shrunk_queues(self) -> int:
        """Queues read again because their store had lost messages."""
        return self.takeover.shrunk_queues

    # -------------------------------------------------------------------------------------------- groups come and go

    async def acquire(
        self,
        assigned: Mapping[str, int],
        look: Callable[[int], Awaitable[None]],
        still: Callable[[], bool],
        first: Set[str] = frozenset(),
    ) -> Acquired:
        """Start consuming groups (name to epoch) from their checkpoints, from the next second on.

        The first step is the fence: from then on the stores refuse former owners, and this host sees all that they did
        before. If a server is out of reach, only its groups wait.

        Args:
            assigned: the epoch of each group.
            look: reads the catalog unless the host knows the given version or a newer one.
            still: called at the end; returns False if the groups are not wanted any more.
            first: groups that no host had before, which start at once.

        Raises:
            DatabaseUnavailable: nothing was acquired; try again.
        """
        refused: set[str] = set()
        waiting: dict[str, Failure] = {}
        while True:
            wanted: dict[str, int] = {}
            topics: dict[str, Topic] = {}
            queues: dict[str, list[str]] = {}
            for name, epoch in assigned.items():
                topic_name, index = parts_of(name)
                topic = self.topics.get(topic_name)
                if topic is not None and index < topic.groups and name not in refused and name not in waiting:
                    wanted[name], topics[topic_name], queues[name] = epoch, topic, topic.queues(index)
            newly_refused, found = await self.takeover.fence(wanted, queues, waiting)
            if newly_refused:
                refused |= newly_refused
                continue
            # A former owner that knew more of the catalog may have noted that keys have moved away from its group.
            # The database refuses later notes of it.
            await look(found.catalog)
            served = {g: e for g, e in wanted.items() if g not in waiting}
            saved = await self.takeover.prepare(served, queues, topics, found.saved, waiting)
            if all(self.topics.get(name) is topic for name, topic in topics.items()):
                break  # else a topic was changed or deleted meanwhile: look again
        if not still():
            return Acquired()
        async for name in in_slices([name for name in wanted if name not in waiting]):
            if not still():
                return Acquired()
            topic_name, index = parts_of(name)
            topic = self.topics.get(topic_name)
            if topic is not None and (topic is topics[topic_name] or _still_has(topic, index, saved)):
                try:
                    self._take(topic, index, wanted[name], saved, at_once=name in first)
                except Exception as exc:  # a failure of one group must not keep the host from the others
                    waiting[name] = unexpected(exc)
                    if (group := self.groups.get(name)) is not None:
                        self.forget(group)
        return Acquired(sorted(refused), waiting)

    def _take(self, topic: Topic, index: int, epoch: int, saved: Mapping[str, Checkpoint], *, at_once: bool) -> None:
        group = self._build(topic, index, epoch, saved, at_once=at_once)
        if self._trail.enabled:
            self._trail.record(events.Owned(self._clock.now_us(), topic.name, index, epoch))
        self.work.lanes.acquire(group)
        if group.slot is not None:
            self.work.slots.acquire(group.slot)
        for queue in group.queues:
            self.work.readiness.add(queue)
            if saved[queue.name].epoch:
                self.work.checkpointer.resumed(queue)

    async def forget_all(self) -> None:
        """Forget all groups, because they belong to other hosts now."""
        groups = list(self.groups.values())
        if groups:
            log.warning("letting go of %s", plurals.count(len(groups), "group"))
        for group in groups:
            self.stop(group)
            group.lost = True
        async for group in in_slices(groups):
            if self.groups.get(group.name) is group:
                self.losses.groups += 1
                self._lose(group)

    async def look_at_lanes(self) -> None:
        """Claim from every lane soon; the stores refuse the claims for groups that have a newer owner."""
        async for name in in_slices(self.groups):
            self.work.lanes.at(name, 0)

    def lost(self, group: OwnedGroup) -> None:
        """Forget a group that has a newer owner; its messages in flight here settle nothing more."""
        if self.groups.get(group.name) is group:
            self.losses.add(group, is_deleted=self.is_deleted(group))
            self._lose(group)
        group.lost = True  # also if it was let go of before: messages that end from now on are not saved

    def is_deleted(self, group: OwnedGroup) -> bool:
        """Return True if the group's topic was deleted, even if a new topic has its name."""
        return self.owned.get(group.owner.topic.name) is not group.owner

    def _lose(self, group: OwnedGroup) -> None:
        group.lost = True
        self.forget(group)

    def _build(
        self, topic: Topic, index: int, epoch: int, saved: Mapping[str, Checkpoint], *, at_once: bool
    ) -> OwnedGroup:
        owner = self.owned.get(topic.name) or self._owner(topic)
        quota = quota_of(topic, index)
        counted = owner.counter.join(index, self._clock.now(), at_once=at_once)
        counter = limited(counted, owner.charge, owner.throttle)
        group = OwnedGroup(owner, index, epoch, counter, priority.policy_for(topic), self._gauge)
        group.quota = quota
        group.capacity = buffer_capacity(quota, HORIZON_S, topic.may_expire)
        self.owned[topic.name] = owner
        owner.groups[index] = self.groups[group.name] = group
        self.consumed[group.name] = epoch
        self.taken += 1
        if topic.is_sorted:
            group.slot = OwnedSlot(group, topic.slot(index))
            group.buffers.append(NOTHING)
            group.serial = topic.options.ordering == "slot"
        for i, queue_name in enumerate(topic.queues(index)):
            checkpoint = saved[queue_name]
            tracker = OffsetTracker(checkpoint.watermark, checkpoint.finished)
            queue = OwnedQueue(group, i, tracker, HORIZON_S, marks.Marks(checkpoint.marks))
            queue.notes, queue.capacity = checkpoint.notes, queue_capacity(group.capacity, i, len(topic.priorities))
            group.add(queue)
            self.queues[queue.name] = queue
        group.allowance = self.work.checkpointer.allowance(group)
        self._budgets.acquired(group)
        return group

    def _owner(self, topic: Topic) -> OwnedTopic:
        owner = OwnedTopic(topic, window_begins_s=self._window_begins_s)
        owner.gate = KeyGate(topic) if topic.earlier else None
        owner.charge = self._budgets.charge(topic)
        self._updates.bind(owner)
        return owner

    def stop(self, group: OwnedGroup) -> None:
        """Read and start nothing more of a group."""
        group.stop(self._clock.now())
        if self.groups.get(group.name) is group:
            self.consumed.pop(group.name, None)

    def forget(self, group: OwnedGroup) -> None:
        """Take a group out of all loops; its messages in flight may still end."""
        self.stop(group)
        if group.has_claims and not self.is_deleted(group):
            self.takeover.left(group)
        group.discard()
        self.work.lanes.release(group)
        self.work.expiry.forget(group)
        self.work.checkpointer.released()
        if group.slot is not None:
            self.work.slots.release(group.slot)
        owner = group.owner
        del self.groups[group.name]
        self.let_go += 1
        for queue in group.queues:
            del self.queues[queue.name]
        owner.groups.pop(group.index, None)
        if not owner.groups:
            if owner.receiver is not None:
                owner.receiver.unasked.pop(owner, None)
            if self.owned.get(owner.topic.name) is owner:
                del self.owned[owner.topic.name]

    # ------------------------------------------------------------------------------------- following the catalog

    async def apply(self, changed: Sequence[Topic], deleted: Iterable[str]) -> list[OwnedGroup]:
        """Take over changes of the catalog; new quotas, limits and states count from now on, without a pause.

        Returns:
            Groups still owned here of deleted topics whose names new topics have now.
        """
        former: list[OwnedGroup] = []
        deleted = list(deleted)
        self._budgets.forget(deleted)
        self.losses.deleted(deleted)
        for name in deleted:
            if (topic := self.topics.pop(name, None)) is not None:
                groups = [topic.group(i) for i in range(topic.groups)]
                self.takeover.deleted(groups)
                self.work.lanes.deleted(groups)
            self.changing.forget(name)
            # The assignment will soon take the deleted topic's groups away; they do not belong to a new topic of that
            # name. Start nothing more of them: the new topic's capacity counts on that.
            if (owner := self.owned.pop(name, None)) is not None:
                for held in owner.groups.values():
                    self.stop(held)
        async for topic in in_slices(changed):
            if topic.name not in self.topics:
                former += [group for i in range(topic.groups) if (group := self.groups.get(topic.group(i)))]
            self.topics[topic.name] = topic
            self._budgets.follow(topic)
            self.changing.follow(topic)
            if (owner := self.owned.get(topic.name)) is not None:
                async for group in in_slices(self._updates.update(owner, topic)):
                    if owner.topic is topic and owner.groups.get(group.index) is group:
                        self._updates.update_group(group)
        return former

    def rebind(self, pattern: str) -> None:
        """Bind the owned topics that match `pattern` again, in slices, after a handler or receiver was bound."""
        self._updates.rebind(pattern)


def _still_has(topic: Topic, index: int, saved: Mapping[str, Checkpoint]) -> bool:
    """Return True if a changed topic has the group as it was when the checkpoints were read."""
    return index < topic.groups and all(queue in saved for queue in topic.queues(index))
