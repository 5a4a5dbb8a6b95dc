"""The checkpoint loop: saves the progress of dirty queues, and trims the store behind it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Mapping

from emq.groups.context import HostContext
from emq.groups.owned import OwnedGroup, OwnedQueue
from emq.offsets.checkpoints import Checkpoint, CheckpointStore
from emq.offsets.retention import Retention
from emq.runtime import errors, pace
from emq.runtime.slicing import in_slices
from emq.runtime.troubles import Troubles
from emq.storage.answers import FAILURES, of_each
from emq.storage.log_store import LogStore, Trim

log = logging.getLogger(__name__)

CHECKPOINT_S = 1.0
"""Seconds between checkpoints. After a crash, at most this much finished work is delivered again."""

SOON_S = 0.1
"""Least seconds between a checkpoint and the next one that somebody asks for."""

MAX_UNSAVED_S = 5.0
"""Seconds of its quota for which a group goes on while no checkpoint can be saved; then the group waits. A crash then
repeats no more than this work and the messages in flight. A group may also use what the topic's other groups on this
host leave of theirs. A larger value bridges longer outages of the database; a smaller one repeats less after a crash
during an outage."""

INTERVALS = 2
"""The bound on unsaved work is at least this many checkpoint intervals plus the buffers, so that the bound never slows
down a host that can save."""

TRIM_EVERY = 5
"""Checkpoints between two trims. Fewer trims cost the store less work, but more room."""

TRIM_BATCH = 500

TOGETHER = 500
"""Most queues whose progress is gathered before the event loop serves other tasks."""


class Checkpointer:
    """Saves the progress of queues. Only queues whose progress changed are saved, all in one statement.

    The order makes this safe: a message is finished, then records of it are written, then its offset is saved, then the
    store drops it. `allowance` bounds how far a host reads beyond the last checkpoints, so a host that cannot save
    comes to a stop. `emq.fetcher.readiness` checks this bound once for each read.

    Attributes:
        saved: number of checkpoints saved.
        failures: number of saves that failed.
        unreachable: reason why the last save failed; None if the last save succeeded.
    """

    def __init__(
        self,
        checkpoints: CheckpointStore,
        store: LogStore,
        context: HostContext,
        interval_s: float = CHECKPOINT_S,
        max_unsaved_s: float = MAX_UNSAVED_S,
    ) -> None:
        """Args:
        interval_s: seconds between checkpoints.
        max_unsaved_s: see `MAX_UNSAVED_S`.
        """
        self._clock = context.clock
        self._events = context.events
        self._records = context.records
        self._checkpoints = checkpoints
        self._store = store
        self._interval_s = interval_s
        self._max_unsaved_s = max_unsaved_s
        self._dirty: list[OwnedQueue] = []
        self._untrimmed: dict[str, OwnedQueue] = {}
        self._retention = Retention()
        self._saving = asyncio.Lock()
        self._asked = asyncio.Event()
        self._troubles = Troubles("what is finished there is dropped later")
        self.saved = 0
        self.failures = 0
        self._dirty_since: float | None = None
        self._saving_since: float | None = None
        self.unreachable: str | None = None

    @property
    def unsaved_s(self) -> float:
        """Age of the oldest progress that no checkpoint covers, in seconds; 0.0 without any."""
        since = self._dirty_since if self._saving_since is None else self._saving_since
        return 0.0 if since is None else max(0.0, self._clock.now() - since)

    def allowance(self, group: OwnedGroup) -> int:
        """Return how many messages the group's queues may be ahead of their checkpoints, by the group's share."""
        topic = group.owner.topic
        rate = group.quota
        # Buffers of higher priorities may hold up to twice the capacity, as far as the allowance permits.
        buffers = group.capacity * max(1, len(topic.priorities))
        least = math.ceil(rate * INTERVALS * self._interval_s) + buffers
        return max(least, math.ceil(rate * self._max_unsaved_s))

    def dirty(self, queue: OwnedQueue) -> None:
        """The queue's progress changed for the first time since its last checkpoint (its `dirty` is set)."""
        if self._dirty_since is None:
            self._dirty_since = self._clock.now()
        self._dirty.append(queue)

    def resumed(self, queue: OwnedQueue) -> None:
        """The queue goes on from a checkpoint. Trim it again: its former owner may have ended before its last trim."""
        queue.trimmed = 0
        self._retention.resumed(queue)
        self._untrimmed[queue.name] = queue

    def released(self) -> None:
        """A group was released: forget its queues at the next trim."""
        self._retention.outdated = True

    async def checkpoint(self) -> None:
        """Save at every interval, sooner if asked to; trim at every `TRIM_EVERY`-th interval. Ends by cancellation."""
        rounds = 0
        while True:
            ends = pace.end_of_rest(self._interval_s)
            while await self._asked_before(ends):
                await self.save()
            await self.save()
            rounds += 1
            if rounds % TRIM_EVERY == 0:
                await self.trim()

    async def _asked_before(self, ends: float) -> bool:
        """Wait until a checkpoint is asked for, or until `ends` by the loop's time; return True in the former case."""
        now = asyncio.get_running_loop().time
        soonest = min(now() + SOON_S, ends)
        try:
            async with asyncio.timeout_at(ends):
                await self._asked.wait()
        except TimeoutError:
            return False
        await asyncio.sleep(soonest - now())
        self._asked.clear()
        return True

    def soon(self) -> None:
        """Save `SOON_S` after the last checkpoint, unless that one failed."""
        if self.unreachable is None:
            self._asked.set()

    async def save(self) -> None:
        """Save the progress of all dirty queues now. If the database does not answer, the queues stay dirty.

        The progress of a lost group is never saved: it counts messages as finished that the store refused to settle,
        and the database takes it until the new owner has saved. Only one save runs at a time. If the database answered,
        all progress from before the call is saved.
        """
        async with self._saving:
            await self._save()

    async def until_idle(self) -> None:
        """Wait until the saves that are under way have ended, whether or not they succeeded."""
        async with self._saving:
            pass

    async def _save(self) -> None:
        queues, self._dirty = [queue for queue in self._dirty if not queue.group.lost], []
        if not queues:
            self._dirty_since = None
            return
        self._saving_since, self._dirty_since = self._dirty_since, None
        for queue in queues:
            queue.begin_save()
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
            await self._records.written()
            refused = set(await self._checkpoints.save(batch))
        except errors.DatabaseUnavailable as exc:
            if self.unreachable is None:
                log.warning("%s; checkpoints wait", exc)
            self.failures += 1
            self.unreachable = str(exc)
            self._not_saved(queues)
            return
        except BaseException:
            self._not_saved(queues)
            raise
        self.unreachable = self._saving_since = None
        self.saved += len(batch)
        try:
            async for queue, checkpoint in in_slices(zip(saving, batch, strict=True), TOGETHER):
                if queue.name in refused:
                    self._events.lost(queue.group)
                    continue
                covered = checkpoint.watermark + sum(end - start for start, end in checkpoint.finished)
                queue.cover(covered)
                if checkpoint.watermark > queue.saved:
                    queue.saved = checkpoint.watermark
                    self._untrimmed[queue.name] = queue
            self._events.saved()
        except BaseException:  # save once more: a queue that is not covered may be held back until it is
            self._keep_dirty(queues)
            raise

    async def trim(self) -> None:
        """Drop from the store the messages below the checkpoints, after the topic's retention has passed."""
        now = self._clock.now()
        queues, self._untrimmed = self._untrimmed, {}
        ripe: dict[str, tuple[OwnedQueue, int]] = {}
        try:
            await self._trim_all(queues, ripe, now)
        except BaseException:
            self._untrimmed = {**queues, **self._untrimmed}
            for queue, upto in ripe.values():
                if upto > queue.trimmed:
                    self._retention.failed(queue, now)
            raise

    async def _trim_all(
        self, queues: Mapping[str, OwnedQueue], ripe: dict[str, tuple[OwnedQueue, int]], now: float
    ) -> None:
        """Trim these queues; note in `ripe` which of them have messages to drop, and up to which offset."""
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
                self._events.lost(queue.group)
            elif isinstance(answer, errors.MessagesLost):
                self._events.shrunk(queue.group)
            elif isinstance(answer, FAILURES):
                self._troubles.failed(queue.name, answer)
                self._untrimmed.setdefault(queue.name, queue)
                self._retention.failed(queue, self._clock.now())
            else:
                self._troubles.well(queue.name)
                queue.trimmed = upto
                self._retention.dropped(queue, upto)

    def save_again(self, groups: Iterable[OwnedGroup]) -> None:
        """Save all progress of these groups at the next checkpoint: the database has lost some of its last rows.

        Otherwise an idle queue would never get its checkpoint back. Its next owner would deliver all its messages
        again, and a retired group would stay for ever.
        """
        first = self._store.first_offset
        self._keep_dirty(queue for group in groups for queue in group.queues if queue.covered > first)

    def _not_saved(self, queues: Iterable[OwnedQueue]) -> None:
        self._dirty_since, self._saving_since = self._saving_since, None
        self._keep_dirty(queues)

    def _keep_dirty(self, queues: Iterable[OwnedQueue]) -> None:
        for queue in queues:
            if not queue.dirty:
                queue.mark_dirty()
                self.dirty(queue)
