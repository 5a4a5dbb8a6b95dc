"""Takes over groups in the stores: keeps former owners out, and finds where to go on."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from emq.groups.context import HostContext
from emq.groups.owned import OwnedGroup
from emq.offsets import rewinding
from emq.offsets.checkpoints import Checkpoint, CheckpointStore, Fenced
from emq.runtime import errors, plurals
from emq.runtime.slicing import SLICE
from emq.storage import marks
from emq.storage.answers import FAILURES, Failure, of_each
from emq.storage.lane_store import LaneClaim
from emq.storage.log_store import Bounds, Trim
from emq.storage.names import group_of, index_of, parts_of, priority_of, topic_of
from emq.storage.slot_store import Recover
from emq.storage.store import Store
from emq.topics.model import Topic
from emq.trail import events

log = logging.getLogger(__name__)


class Takeover:
    """Prepares the stores before the host starts messages of groups: first call `fence`, then `prepare`.

    Attributes:
        shrunk_queues: queues read again because their store had lost messages.
    """

    def __init__(
        self, store: Store, checkpoints: CheckpointStore, topics: Mapping[str, Topic], context: HostContext
    ) -> None:
        """Args:
        topics: every topic of the catalog as the host knows it, by name.
        """
        self._store = store
        self._checkpoints = checkpoints
        self._topics = topics
        self._clock = context.clock
        self._trail = context.trail
        self._left: dict[str, int] = {}
        self._read: dict[str, marks.Mark] = {}
        self.shrunk_queues = 0

    def abandoned(self, group: OwnedGroup) -> None:
        """Note that the host lets go of a group whose store has lost messages, and may take the group over again.

        The newest message that the host read of each queue shows how far the store had come.
        """
        self.left(group)
        self._read.update({q.name: mark for q in group.queues if (mark := q.marks.newest) is not None})

    def left(self, group: OwnedGroup) -> None:
        """Note that the host lets go of a group, and that entries or members may be claimed that no host has.

        If the group comes back under the same epoch, the takeover puts them back. It does so anyway under a higher one.
        """
        self._left[group.name] = group.epoch

    def deleted(self, groups: Iterable[str]) -> None:
        """Forget groups of a deleted topic; nothing of them is put back."""
        for group in groups:
            self._left.pop(group, None)

    async def fence(
        self, wanted: Mapping[str, int], queues: Mapping[str, Sequence[str]], waiting: dict[str, Failure]
    ) -> tuple[set[str], Fenced]:
        """Make store and database refuse every lower epoch from now on.

        Returns the groups whose own epoch they refuse, and what the database has behind the fence. Groups that the
        store cannot serve are added to `waiting`.

        Args:
            wanted: the epoch of each group.
            queues: those of each group.
        """
        claims = [LaneClaim(group, 0, epoch) for group, epoch in wanted.items()]
        answers = await of_each(self._store.lanes.claim(claims, 0), len(claims)) if claims else ()
        refused = {c.lane for c, a in zip(claims, answers, strict=True) if isinstance(a, errors.NotOwner)}
        waiting.update({c.lane: a for c, a in zip(claims, answers, strict=True) if isinstance(a, FAILURES)})
        epochs = {q: epoch for group, epoch in wanted.items() if group not in waiting for q in queues[group]}
        found = await self._checkpoints.fence(epochs)
        return refused | {group_of(queue) for queue in found.refused}, found

    async def prepare(
        self,
        wanted: Mapping[str, int],
        queues: Mapping[str, Sequence[str]],
        topics: Mapping[str, Topic],
        saved: Mapping[str, Checkpoint],
        waiting: dict[str, Failure],
    ) -> dict[str, Checkpoint]:
        """Put back entries that former owners claimed; return the checkpoint from which to read each queue.

        Groups that the store cannot serve are added to `waiting`.

        Args:
            saved: what `fence` found of each queue.
        """
        bounds = await self._bounds([q for group in wanted for q in queues[group]], waiting)
        wanted = {g: e for g, e in wanted.items() if g not in waiting}
        names = [q for group in wanted for q in queues[group]]
        saved = {name: saved[name] for name in names if name in saved}
        read = [name for name in names if name in self._read]
        known = saved | {name: self._as_read(name, saved.get(name), bounds) for name in read} if read else saved
        if shrunk := await rewinding.rewound(self._store.log, known, bounds, wanted, waiting):
            if self._checkpoints.stores is not None:
                await self._checkpoints.stores.keep()  # the store may have lost its identity as well
            await self._checkpoints.rewind([*shrunk.values()])
            await self._raise_again({topic_of(group_of(name)) for name in shrunk}, topics)
            self._record_shrunk(shrunk, known, topics)
            saved |= shrunk
        for name in read:
            if group_of(name) not in waiting:
                del self._read[name]
        begun = []  # rows for queues without a checkpoint: a former owner might still write the first one
        for name in names:
            checkpoint, (head, tail, _) = saved.get(name), bounds[name]
            found = checkpoint or Checkpoint(name, 0, head)
            if not found.marks and head > self._store.log.first_offset:
                found = found._replace(marks=(marks.dropped(head),))
            saved[name] = found
            if checkpoint is None and tail > head:
                begun.append(found._replace(epoch=wanted[group_of(name)]))
            if checkpoint is None and head > self._store.log.first_offset:
                self._record_dropped(name, head)
        await self._checkpoints.save(begun)
        await self._recover(wanted, topics, waiting)
        return saved

    async def _bounds(self, names: Sequence[str], waiting: dict[str, Failure]) -> dict[str, Bounds]:
        found: dict[str, Bounds] = {}
        answers = await of_each(self._store.log.bounds(names), len(names)) if names else ()
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, FAILURES):
                waiting[group_of(name)] = answer
            else:
                found[name] = answer
        return found

    async def _recover(
        self, wanted: Mapping[str, int], topics: Mapping[str, Topic], waiting: dict[str, Failure]
    ) -> None:
        answers = await of_each(self._store.lanes.recover(list(wanted.items())), len(wanted)) if wanted else ()
        waiting.update({g: a for g, a in zip(wanted, answers, strict=True) if isinstance(a, FAILURES)})
        if again := [(g, e) for g, e in wanted.items() if self._left.get(g) == e and g not in waiting]:
            # Recover under the same epoch, too: no host holds entries that were claimed before now.
            older_than_ms = int(self._clock.now() * 1000) + 1
            put_back = await of_each(self._store.lanes.recover(again, older_than_ms), len(again))
            waiting.update({g: a for (g, _), a in zip(again, put_back, strict=True) if isinstance(a, FAILURES)})
        recovers = [
            Recover(topic.slot(index_of(g)), epoch, lost=self._left.get(g) == epoch)
            for g, epoch in wanted.items()
            if g not in waiting and (topic := topics[topic_of(g)]).is_sorted
        ]
        if recovers:
            now_ms = int(self._clock.now() * 1000)
            recovered = await of_each(self._store.sorted.recover(recovers, now_ms), len(recovers))
            waiting.update(
                {r.slot.name: a for r, a in zip(recovers, recovered, strict=True) if isinstance(a, FAILURES)}
            )
        for group in wanted.keys() - waiting.keys():
            self._left.pop(group, None)

    def _as_read(self, name: str, checkpoint: Checkpoint | None, bounds: Mapping[str, Bounds]) -> Checkpoint:
        """Add the newest message that this host read of a queue, before the store lost messages, to the checkpoint."""
        checkpoint = checkpoint or Checkpoint(name, 0, bounds[name].head)
        newest = self._read[name]
        if checkpoint.marks and checkpoint.marks[0].offset >= newest.offset:
            return checkpoint
        return checkpoint._replace(marks=(newest, *checkpoint.marks))

    async def _raise_again(self, names: Iterable[str], topics: Mapping[str, Topic]) -> None:
        """Make the queues of topics refuse messages routed by former layouts; the store has forgotten to refuse them.

        This covers all queues of each topic, on any host: the owner of an empty queue notices no loss.
        """
        queues = [(q, t.layout) for t in map(topics.__getitem__, names) if t.layout for q in t.all_queues()]
        for start in range(0, len(queues), SLICE):
            trims = [Trim(queue, 0, None, layout=layout) for queue, layout in queues[start : start + SLICE]]
            answers = await of_each(self._store.log.trim(trims), len(trims))
            if failures := [answer for answer in answers if isinstance(answer, FAILURES)]:
                log.warning(
                    "%s; %s may still take keys by a former layout", failures[0], plurals.count(len(failures), "queue")
                )

    def _record_dropped(self, name: str, head: int) -> None:
        """Record the messages that the topic dropped as its oldest ones before the queue had an owner."""
        group, priority = group_of(name), priority_of(name)
        topic = self._topics.get(topic_of(group))
        if self._trail.enabled and topic is not None and topic.drops_oldest:
            place, first = topic.priorities.index(priority), self._store.log.first_offset
            self._trail.record(events.Dropped(self._clock.now_us(), *parts_of(group), place, first, head))

    def _record_shrunk(
        self, shrunk: Mapping[str, Checkpoint], before: Mapping[str, Checkpoint], topics: Mapping[str, Topic]
    ) -> None:
        now_us = self._clock.now_us()
        for name, checkpoint in shrunk.items():
            self.shrunk_queues += 1
            upto, known = checkpoint.next_unread, before[name].next_unread
            log.warning(
                "queue %s: its store came back from a crash without offsets %d to %d, or some of them; it is read again"
                " from offset %d on. To lose nothing, publish with a durability that the store keeps",
                name,
                upto,
                known - 1,
                checkpoint.watermark,
            )
            if self._trail.enabled:
                group, priority = group_of(name), priority_of(name)
                topic = topics[topic_of(group)]  # the topic at the time of the call; it may have been deleted since
                index = topic.priorities.index(priority)
                self._trail.record(events.Lost(now_us, *parts_of(group), index, upto, max(known, upto + 1)))
