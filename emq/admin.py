"""Administration of topics across catalog, store and checkpoints, in the order that loses nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from emq import dead_letters, errors
from emq.catalog import Catalog
from emq.model import State, Topic
from emq.offsets.checkpoints import Checkpoint, CheckpointStore
from emq.storage import Claim, Settle, Store, Trim, Verdict

CHUNK = 3_000
"""Queues in one call to the store."""

FAR_FUTURE_MS = 1 << 52


class Lag(NamedTuple):
    """What a topic still has to do, by priority, never one lump.

    Attributes:
        priority: its name.
        unfinished: in the log and not finished: ready, or in flight on a host.
    """

    topic: str
    priority: str
    unfinished: int


class SlotLag(NamedTuple):
    """Attributes:
    delayed: waiting in the retry slots for their time.
    retrying: claimed from them: buffered or in flight on a host.
    dead: dead letters.
    """

    topic: str
    delayed: int
    retrying: int
    dead: int


class Admin:
    """What the command line and the API may do to topics."""

    def __init__(
        self, catalog: Catalog, store: Store, checkpoints: CheckpointStore, next_epoch: Callable[[], Awaitable[int]]
    ) -> None:
        self.catalog = catalog
        self._store = store
        self._checkpoints = checkpoints
        self._next_epoch = next_epoch

    async def create(self, topics: Sequence[Topic], *, exist_ok: bool = False) -> list[Topic]:
        """Create topics, all or none. Their queues are opened first, in case they were sealed by an earlier life."""
        created = await self.catalog.create_many(topics, exist_ok=exist_ok)
        await self._open(created)
        return created

    async def update(self, name: str, **changes: Any) -> Topic:
        """Change a topic's settings; see `Catalog.update`. Growing opens the groups that come back."""
        before = await self.catalog.get(name)
        topic = await self.catalog.update(name, **changes)
        if topic.active_groups > before.active_groups:
            await self._open([topic])
        return topic

    async def set_state(self, name: str, state: State) -> Topic:
        return await self.catalog.update(name, state=state)

    async def delete(self, name: str, *, force: bool = False) -> int:
        """Delete a topic with its messages, retries, dead letters and checkpoints; answers how many messages went.

        Raises:
            StillConsumed: it holds messages and `force` is not set; drain it first, or insist.
        """
        topic = await self.catalog.get(name)
        held = sum(lag.unfinished for lag in await self.lag([topic]))
        held += sum(s.delayed + s.retrying for s in await self.slot_lag([topic]))
        if held and not force:
            raise errors.StillConsumed(
                f"topic {name!r} still holds {held} messages; drain it first, or delete with force"
            )
        await self.catalog.delete(name)
        queues = _queues([topic])
        tails = [b.tail for b in await self._store.log.bounds(queues)]
        await self._store.log.trim([Trim(q, t, None, seal=True) for q, t in zip(queues, tails, strict=True)])
        await self._empty_slots([topic.group(group) for group in range(topic.groups)])
        await self._checkpoints.drop(queues)
        return held

    async def retire(self, name: str) -> Topic:
        """Drop a shrunk topic's retired groups if nothing is left in them; otherwise leave everything as it is.

        Seals first and changes the catalog after that, so that a producer with an old picture of the catalog is
        refused and cannot write to a group that nobody consumes any more.
        """
        topic = await self.catalog.get(name)
        retired = range(topic.active_groups, topic.groups)
        queues = [q for group in retired for q in topic.queues(group)]
        slots = [topic.group(group) for group in retired]
        if not queues or not await self._all_finished(queues):
            return topic
        for slot in slots:
            await dead_letters.move(self._store.sorted, slot, topic.group(0))
        if any(s.waiting or s.prepared for s in await self._store.sorted.inspect(slots)):
            return topic
        tails = [b.tail for b in await self._store.log.bounds(queues)]
        # Sealing fails for a queue that got a message since it was found finished: `upto` is what was finished.
        sealed = await self._store.log.trim(
            [Trim(q, t, None, seal=True) for q, t in zip(queues, await self._watermarks(queues, tails), strict=True)]
        )
        if all(s is True for s in sealed):
            topic = await self.catalog.retire(name, topic)
        if topic.groups > topic.active_groups or topic.active_groups > retired.start:
            await self._store.log.trim([Trim(q, 0, None, seal=False) for q in queues])
        return topic

    async def lag(self, topics: Sequence[Topic]) -> list[Lag]:
        """Unfinished messages of each topic and priority."""
        queues = _queues(topics)
        counts = dict(zip(queues, await self._unfinished(queues), strict=True))
        return [
            Lag(t.name, p, sum(counts[t.queue(g, i)] for g in range(t.groups)))
            for t in topics
            for i, p in enumerate(t.priorities)
        ]

    async def slot_lag(self, topics: Sequence[Topic]) -> list[SlotLag]:
        """Delayed, claimed and dead messages of each topic."""
        slots = [t.group(g) for t in topics for g in range(t.groups)]
        states = iter(await self._store.sorted.inspect(slots))
        found = []
        for t in topics:
            of_topic = [next(states) for _ in range(t.groups)]
            sums = [sum(column) for column in zip(*((s.waiting, s.prepared, s.dead) for s in of_topic), strict=True)]
            found.append(SlotLag(t.name, *sums))
        return found

    async def offsets(self, topic: Topic) -> list[tuple[Checkpoint, int, int]]:
        """(checkpoint, head, tail) of each of the topic's queues; watermark = head where there is none yet."""
        queues = _queues([topic])
        saved = await self._checkpoints.load(queues)
        bounds = await self._store.log.bounds(queues)
        return [(saved.get(q, Checkpoint(q, 0, b.head)), b.head, b.tail) for q, b in zip(queues, bounds, strict=True)]

    # ------------------------------------------------------------------------------------------------------- details

    async def _open(self, topics: Sequence[Topic]) -> None:
        queues = _queues(topics)
        for start in range(0, len(queues), CHUNK):
            await self._store.log.trim([Trim(q, 0, None, seal=False) for q in queues[start : start + CHUNK]])

    async def _unfinished(self, queues: Sequence[str]) -> list[int]:
        saved = await (self._checkpoints.load_all() if len(queues) > CHUNK else self._checkpoints.load(queues))
        counts = []
        for queue, bounds in zip(queues, await self._store.log.bounds(queues), strict=True):
            checkpoint = saved.get(queue)
            start = bounds.head if checkpoint is None else max(bounds.head, checkpoint.watermark)
            beyond = 0 if checkpoint is None else sum(e - max(s, start) for s, e in checkpoint.finished if e > start)
            counts.append(max(0, bounds.tail - start - beyond))
        return counts

    async def _all_finished(self, queues: Sequence[str]) -> bool:
        return not any(await self._unfinished(queues))

    async def _watermarks(self, queues: Sequence[str], tails: Sequence[int]) -> list[int]:
        saved = await self._checkpoints.load(queues)
        return [saved[q].watermark if q in saved else t for q, t in zip(queues, tails, strict=True)]

    async def _empty_slots(self, slots: Sequence[str]) -> None:
        """Empty retry slots under an epoch of our own, which fences off a host that still owns them."""
        epoch = await self._next_epoch()
        await self._store.sorted.recover([(slot, epoch) for slot in slots])
        for slot in slots:
            while True:
                [claimed] = await self._store.sorted.claim([Claim(slot, CHUNK, epoch)], FAR_FUTURE_MS)
                if isinstance(claimed, errors.NotOwner) or not claimed.entries:
                    break
                await self._store.sorted.settle([Settle(slot, i, Verdict.ACK, epoch) for i, _ in claimed.entries])
            while page := await self._store.sorted.dead(slot, limit=CHUNK):
                await self._store.sorted.settle([Settle(slot, d.id, Verdict.PURGE) for d in page])


def _queues(topics: Sequence[Topic]) -> list[str]:
    return [q for t in topics for g in range(t.groups) for q in t.queues(g)]
