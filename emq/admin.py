"""Administration of topics across catalog, store and checkpoints, in the order that loses nothing."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Literal

from emq import errors, recall, slots
from emq.catalog import Catalog
from emq.lag import Lag, SlotLag, of_queues, of_slots
from emq.model import State, Topic
from emq.offsets.checkpoints import Checkpoint, CheckpointStore
from emq.storage import Claim, Settle, Store, Trim, Verdict
from emq.trail.sink import TrailSink

CHUNK = 3_000
"""Queues in one call to the store."""

EMPTYING_TRIES = 10

FAR_FUTURE_MS = 1 << 52


class Admin:
    """What the command line and the API may do to topics."""

    def __init__(
        self,
        catalog: Catalog,
        store: Store,
        checkpoints: CheckpointStore,
        next_epoch: Callable[[], Awaitable[int]],
        trail: TrailSink | None = None,
    ) -> None:
        self.catalog = catalog
        self._store = store
        self._checkpoints = checkpoints
        self._next_epoch = next_epoch
        self._trail = trail

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

    async def import_(self, text: str, fmt: Literal["toml", "json"]) -> Sequence[Topic]:
        """Create or update the topics of an export, all or none; see `Catalog.import_`."""
        topics = await self.catalog.import_(text, fmt)
        await self._open(topics)
        return topics

    async def set_state(self, name: str, state: State) -> Topic:
        return await self.catalog.update(name, state=state)

    async def delete(self, name: str, *, force: bool = False) -> int:
        """Delete a topic with its messages, retries, dead letters and checkpoints; answers how many messages went.

        Raises:
            StillConsumed: it holds messages and `force` is not set; drain it first, or insist.
        """
        topic = await self.catalog.get(name)
        held = sum(lag.unfinished for lag in await self.lag([topic]))
        held += sum(s.ready + s.delayed + s.claimed for s in await self.slot_lag([topic]))
        if held and not force:
            messages = "1 message" if held == 1 else f"{held} messages"
            raise errors.StillConsumed(f"topic {name!r} still holds {messages}; drain it first, or delete with force")
        await self.catalog.delete(name)
        queues = topic.all_queues()
        await self._empty_queues(queues)
        await self._empty_lanes([topic.group(group) for group in range(topic.groups)])
        if topic.is_sorted:
            await self._empty_slots([topic.slot(group) for group in range(topic.slots)])
        await self._checkpoints.drop(queues)
        return held

    async def recall(self, name: str, ids: Collection[str]) -> set[str]:
        """Take back messages that nobody has claimed yet; see `emq.recall`."""
        return await recall.recall(self._store, await self.catalog.get(name), ids, self._trail)

    async def lag(self, topics: Sequence[Topic]) -> list[Lag]:
        """Unfinished messages of each topic and priority."""
        return await of_queues(self._store.log, self._checkpoints, topics)

    async def slot_lag(self, topics: Sequence[Topic]) -> list[SlotLag]:
        """What waits in lanes and slots, what is claimed from them, and dead letters, of each topic."""
        return await of_slots(self._store, topics, int(time.time() * 1000))

    async def offsets(self, topic: Topic) -> list[tuple[Checkpoint, int, int]]:
        """(checkpoint, head, tail) of each of the topic's queues; watermark = head where there is none yet."""
        queues = topic.all_queues()
        saved = await self._checkpoints.load(queues)
        bounds = await self._store.log.bounds(queues)
        return [(saved.get(q, Checkpoint(q, 0, b.head)), b.head, b.tail) for q, b in zip(queues, bounds, strict=True)]

    # ------------------------------------------------------------------------------------------------------- details

    async def _open(self, topics: Sequence[Topic]) -> None:
        queues = [q for topic in topics for q in topic.all_queues()]
        for start in range(0, len(queues), CHUNK):
            await self._store.log.trim([Trim(q, 0, None, seal=False) for q in queues[start : start + CHUNK]])

    async def _empty_queues(self, queues: Sequence[str]) -> None:
        """Drop all messages and seal the queues, once more where a producer that was not told yet came in between."""
        for _ in range(EMPTYING_TRIES):
            tails = [b.tail for b in await self._store.log.bounds(queues)]
            trims = [Trim(q, t, None, seal=True) for q, t in zip(queues, tails, strict=True)]
            if all(sealed is True for sealed in await self._store.log.trim(trims)):
                return

    async def _empty_lanes(self, lanes: Sequence[str]) -> None:
        """Empty lanes under an epoch of our own, which fences off a host that still owns them."""
        epoch = await self._next_epoch()
        await self._store.lanes.recover([(lane, epoch) for lane in lanes])
        for slot in lanes:
            while True:
                [claimed] = await self._store.lanes.claim([Claim(slot, CHUNK, epoch)], FAR_FUTURE_MS)
                if isinstance(claimed, errors.NotOwner) or not claimed.entries:
                    break
                await self._store.lanes.settle([Settle(slot, i, Verdict.ACK, epoch) for i, _ in claimed.entries])
            while page := await self._store.lanes.dead(slot, limit=CHUNK):
                await self._store.lanes.settle([Settle(slot, d.id, Verdict.PURGE) for d in page])

    async def _empty_slots(self, emptied: Sequence[slots.Slot]) -> None:
        """As for lanes. Foreign producers may add again at any time; what they add then is an orphan of theirs."""
        store, epoch = self._store.sorted, await self._next_epoch()
        now_ms = int(time.time() * 1000)
        await store.recover([slots.Recover(slot, epoch) for slot in emptied], now_ms)
        for slot in emptied:
            while page := await store.waiting(slot, 0, CHUNK):
                await store.settle([slots.Settle(slot, w.member, slots.Verdict.RECALL) for w in page])
            while letters := await store.dead(slot, limit=CHUNK):
                await store.settle([slots.Settle(slot, d.member, slots.Verdict.PURGE) for d in letters])
