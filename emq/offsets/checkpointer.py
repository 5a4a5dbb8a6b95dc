"""The checkpoint loop: saves the progress of dirty queues, and trims the store behind it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable, Iterable

from emq import errors
from emq.clock import Clock
from emq.offsets.checkpoints import Checkpoint, CheckpointStore
from emq.owned import OwnedGroup, OwnedQueue
from emq.storage import LogStore, Trim

log = logging.getLogger(__name__)

CHECKPOINT_S = 1.0
"""After a crash, at most this much of finished work is delivered again."""

TRIM_EVERY = 5
"""Checkpoints between two trims: dropping in larger pieces costs the store less, and only costs it room."""

TRIM_BATCH = 2_000

NOTES = 50
"""Times in one retention at which a queue's progress is noted; what is retained stays up to a fiftieth longer."""


class Checkpointer:
    """Cost follows activity: only queues whose progress changed are saved, all in one statement.

    Order is what makes it safe: a message is finished, then its offset saved, then its storage dropped.
    """

    def __init__(
        self,
        checkpoints: CheckpointStore,
        store: LogStore,
        clock: Clock,
        *,
        on_lost: Callable[[OwnedGroup], None],
        interval_s: float = CHECKPOINT_S,
    ) -> None:
        self._checkpoints = checkpoints
        self._store = store
        self._clock = clock
        self._on_lost = on_lost
        self._interval_s = interval_s
        self._dirty: list[OwnedQueue] = []
        self._untrimmed: dict[str, OwnedQueue] = {}
        self._retained: list[tuple[float, int, OwnedQueue, int]] = []
        self._tickets = itertools.count()
        self._saving = asyncio.Lock()
        self.saved = 0
        self.unreachable: str | None = None

    def dirty(self, queue: OwnedQueue) -> None:
        """The queue's progress changed for the first time since its last checkpoint (its `dirty` is set)."""
        self._dirty.append(queue)

    def resumed(self, queue: OwnedQueue) -> None:
        """The queue goes on from a checkpoint; its former owner may have ended before it told the store to drop."""
        queue.trimmed = 0
        self._untrimmed[queue.name] = queue

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
        batch = []
        for queue in queues:
            queue.dirty = False
            tracker = queue.tracker
            batch.append(Checkpoint(queue.name, queue.group.epoch, tracker.watermark, tuple(tracker.finished())))
        try:
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
        for queue, checkpoint in zip(queues, batch, strict=True):
            if queue.name in refused:
                self._on_lost(queue.group)
            elif checkpoint.watermark > queue.saved:
                queue.saved = checkpoint.watermark
                self._untrimmed[queue.name] = queue

    async def trim(self) -> None:
        """Drop from the store what the checkpoints are past, later by the topic's retention."""
        now = self._clock.now()
        queues, self._untrimmed = self._untrimmed, {}
        ripe: dict[str, tuple[OwnedQueue, int]] = {}
        for queue in queues.values():
            retention_s = queue.group.owner.topic.options.retention_s
            if retention_s <= 0:
                ripe[queue.name] = queue, queue.saved
            elif now >= queue.noted_s + retention_s / NOTES:
                queue.noted_s = now
                heapq.heappush(self._retained, (now + retention_s, next(self._tickets), queue, queue.saved))
            elif not queue.group.stopping:
                self._untrimmed[queue.name] = queue
        while self._retained and self._retained[0][0] <= now:
            _, _, queue, upto = heapq.heappop(self._retained)
            ripe[queue.name] = queue, upto
        due = [(q, upto) for q, upto in ripe.values() if upto > q.trimmed and not q.group.stopping]
        for start in range(0, len(due), TRIM_BATCH):
            await self._trim(due[start : start + TRIM_BATCH])

    async def _trim(self, due: list[tuple[OwnedQueue, int]]) -> None:
        try:
            answers = await self._store.trim([Trim(q.name, upto, q.group.epoch) for q, upto in due])
        except (errors.StoreUnavailable, errors.StoreFull) as exc:
            log.warning("%s; trimming waits", exc)
            self._untrimmed.update({q.name: q for q, _ in due if q.name not in self._untrimmed})
            return
        for (queue, upto), answer in zip(due, answers, strict=True):
            if isinstance(answer, errors.NotOwner):
                self._on_lost(queue.group)
            else:
                queue.trimmed = upto

    def _keep_dirty(self, queues: Iterable[OwnedQueue]) -> None:
        for queue in queues:
            if not queue.dirty:
                queue.dirty = True
                self._dirty.append(queue)
