"""The checkpoint loop: saves the progress of dirty queues, and trims the store behind it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable

from emq import errors
from emq.clock import Clock
from emq.groups.owned import OwnedGroup, OwnedQueue
from emq.loops.slicing import in_slices
from emq.loops.troubles import Troubles
from emq.offsets.checkpoints import Checkpoint, CheckpointStore
from emq.offsets.retention import Retention
from emq.storage.answers import FAILURES, of_each
from emq.storage.store import LogStore, Trim

log = logging.getLogger(__name__)

CHECKPOINT_S = 1.0
"""After a crash, at most this much of finished work is delivered again."""

MAX_UNSAVED_S = 5.0
"""While no checkpoint can be saved, a group goes on for so many seconds of its quota, and then waits. A crash then
repeats no more than that, and what was in flight. Longer keeps deliveries going through longer outages of the database;
shorter has a crash within one repeat less."""

INTERVALS = 2
"""The bound is at least so many intervals between checkpoints, and what is buffered, so that it never slows down a host
that can save."""

TRIM_EVERY = 5
"""Checkpoints between two trims: dropping in larger pieces costs the store less, and only costs it room."""

TRIM_BATCH = 500

TOGETHER = 500
"""Queues whose progress is gathered before the event loop serves everybody else."""


class Checkpointer:
    """Cost follows activity: only queues whose progress changed are saved, all in one statement.

    Order is what makes it safe: a message is finished, then its offset saved, then its storage dropped. Queues are read
    only so far beyond their last checkpoints as `allowance` says, so that a host that cannot save comes to a stop. The
    bound is kept where queues are read (`emq.fetcher.readiness`), once for each read and not for each message.
    """

    def __init__(
        self,
        checkpoints: CheckpointStore,
        store: LogStore,
        clock: Clock,
        *,
        on_lost: Callable[[OwnedGroup], None],
        on_shrunk: Callable[[OwnedGroup], None],
        on_saved: Callable[[], None] = lambda: None,
        interval_s: float = CHECKPOINT_S,
        max_unsaved_s: float = MAX_UNSAVED_S,
    ) -> None:
        """Args:
        on_lost: called with a group whose checkpoint was refused.
        on_shrunk: called when the store came back from a crash without messages that were read.
        on_saved: called when progress was saved.
        max_unsaved_s: see `MAX_UNSAVED_S`.
        """
        self._checkpoints = checkpoints
        self._store = store
        self._clock = clock
        self._on_lost = on_lost
        self._on_saved = on_saved
        self._on_shrunk = on_shrunk
        self._interval_s = interval_s
        self._max_unsaved_s = max_unsaved_s
        self._dirty: list[OwnedQueue] = []
        self._untrimmed: dict[str, OwnedQueue] = {}
        self._retention = Retention()
        self._saving = asyncio.Lock()
        self._troubles = Troubles("what is finished there is dropped later")
        self.saved = 0
        self.unreachable: str | None = None

    def allowance(self, group: OwnedGroup) -> int:
        """How many messages the group's queues may be ahead of their checkpoints, taken together."""
        topic = group.owner.topic
        rate = max(group.quota, topic.qps) if topic.options.borrow else group.quota
        buffers = group.capacity * max(1, len(topic.priorities))  # a higher priority's holds twice as much, if it may
        least = math.ceil(rate * INTERVALS * self._interval_s) + buffers
        return max(least, math.ceil(rate * self._max_unsaved_s))

    def dirty(self, queue: OwnedQueue) -> None:
        """The queue's progress changed for the first time since its last checkpoint (its `dirty` is set)."""
        self._dirty.append(queue)

    def resumed(self, queue: OwnedQueue) -> None:
        """The queue goes on from a checkpoint; its former owner may have ended before it told the store to drop."""
        queue.trimmed = 0
        self._retention.resumed(queue)
        self._untrimmed[queue.name] = queue

    def released(self) -> None:
        """A group was let go of: its queues are forgotten at the next trim."""
        self._retention.outdated = True

    async def checkpoint(self) -> None:
        """Save at every interval, trim at every `TRIM_EVERY`-th. Ends by cancellation."""
        rounds = 0
        while True:
            await asyncio.sleep(self._interval_s)
            rounds += 1
            await self.save()
            if rounds % TRIM_EVERY == 0:
                await self.trim()

    async def save(self) -> None:
        """Save the progress of all dirty queues now. Where the database does not answer they stay dirty.

        A lost group's is never saved: what the store refused to settle counts as finished here, and while its new owner
        has saved nothing yet, nobody would refuse us. One save at a time: when it returns, all that was finished before
        the call is saved, also by a save that was under way.
        """
        async with self._saving:
            await self._save()

    async def _save(self) -> None:
        queues, self._dirty = [queue for queue in self._dirty if not queue.group.lost], []
        if not queues:
            return
        for queue in queues:
            queue.dirty = False
        batch: list[Checkpoint] = []
        saving: list[OwnedQueue] = []
        try:
            now = self._clock.now()
            async for queue in in_slices(queues, TOGETHER):
                if queue.group.lost:
                    continue  # meanwhile
                tracker, marks = queue.tracker, queue.marks.saved(now)
                finished = tuple(tracker.finished())
                batch.append(Checkpoint(queue.name, queue.group.epoch, tracker.watermark, finished, marks, queue.notes))
                saving.append(queue)
            refused = set(await self._checkpoints.save(batch))
        except errors.DatabaseUnavailable as exc:
            if self.unreachable is None:
                log.warning("%s; checkpoints wait", exc)
            self.unreachable = str(exc)
            self._keep_dirty(queues)
            return
        except BaseException:
            self._keep_dirty(queues)
            raise
        self.unreachable = None
        self.saved += len(batch)
        async for queue, checkpoint in in_slices(zip(saving, batch, strict=True), TOGETHER):
            if queue.name in refused:
                self._on_lost(queue.group)
                continue
            covered = checkpoint.watermark + sum(end - start for start, end in checkpoint.finished)
            queue.group.ahead -= covered - queue.covered
            queue.covered = covered
            if checkpoint.watermark > queue.saved:
                queue.saved = checkpoint.watermark
                self._untrimmed[queue.name] = queue
        self._on_saved()

    async def trim(self) -> None:
        """Drop from the store what the checkpoints are past, later by the topic's retention."""
        now = self._clock.now()
        queues, self._untrimmed = self._untrimmed, {}
        ripe: dict[str, tuple[OwnedQueue, int]] = {}
        async for queue in in_slices(queues.values(), TOGETHER):
            if queue.group.stopping:
                continue
            notes = queue.notes
            if queue.group.owner.topic.options.retention_s <= 0:
                queue.notes = ()
                ripe[queue.name] = queue, queue.saved
            elif not self._retention.progressed(queue, now):
                self._untrimmed[queue.name] = queue
            if queue.notes is not notes:
                self._keep_dirty([queue])
        async for queue, upto in in_slices(self._retention.ripe(now), TOGETHER):
            if upto > queue.trimmed:
                ripe[queue.name] = queue, upto
            else:
                self._retention.dropped(queue, upto)
        due = list(ripe.values())
        for start in range(0, len(due), TRIM_BATCH):
            part = due[start : start + TRIM_BATCH]
            await self._trim([(q, upto) for q, upto in part if upto > q.trimmed and not q.group.stopping])
            await asyncio.sleep(0)

    async def _trim(self, due: list[tuple[OwnedQueue, int]]) -> None:
        if not due:
            return
        trims = [Trim(q.name, upto, q.group.epoch, mark=q.marks.newest) for q, upto in due]
        answers = await of_each(self._store.trim(trims), len(due))
        for (queue, upto), answer in zip(due, answers, strict=True):
            if isinstance(answer, errors.NotOwner):
                self._on_lost(queue.group)
            elif isinstance(answer, errors.MessagesLost):
                self._on_shrunk(queue.group)
            elif isinstance(answer, FAILURES):
                self._troubles.failed(queue.name, answer)
                self._untrimmed.setdefault(queue.name, queue)
                self._retention.failed(queue, self._clock.now())
            else:
                self._troubles.well(queue.name)
                queue.trimmed = upto
                self._retention.dropped(queue, upto)

    def _keep_dirty(self, queues: Iterable[OwnedQueue]) -> None:
        for queue in queues:
            if not queue.dirty:
                queue.dirty = True
                self._dirty.append(queue)
