"""Administration of topics across catalog, store and checkpoints, in the order that loses nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

from emq import errors
from emq.catalog import Catalog
from emq.lag import Lag, SlotLag, of_queues, of_slots
from emq.model import State, Topic
from emq.offsets.checkpoints import Checkpoint, CheckpointStore
from emq.storage import Claim, Settle, Store, Trim, Verdict

CHUNK = 3_000
"""Queues in one call to the store."""

EMPTYING_TRIES = 10

FAR_FUTURE_MS = 1 << 52


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
        held += sum(s.delayed + s.retrying for s in await self.slot_lag([topic]))
        if held and not force:
            raise errors.StillConsumed(
                f"topic {name!r} still holds {held} messages; drain it first, or delete with force"
            )
        await self.catalog.delete(name)
        queues = topic.all_queues()
        await self._empty_queues(queues)
        await self._empty_slots([topic.group(group) for group in range(topic.groups)])
        await self._checkpoints.drop(queues)
        return held

    async def lag(self, topics: Sequence[Topic]) -> list[Lag]:
        """Unfinished messages of each topic and priority."""
        return await of_queues(self._store.log, self._checkpoints, topics)

    async def slot_lag(self, topics: Sequence[Topic]) -> list[SlotLag]:
        """Delayed, claimed and dead messages of each topic."""
        return await of_slots(self._store.lanes, topics)

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

    async def _empty_slots(self, slots: Sequence[str]) -> None:
        """Empty retry slots under an epoch of our own, which fences off a host that still owns them."""
        epoch = await self._next_epoch()
        await self._store.lanes.recover([(slot, epoch) for slot in slots])
        for slot in slots:
            while True:
                [claimed] = await self._store.lanes.claim([Claim(slot, CHUNK, epoch)], FAR_FUTURE_MS)
                if isinstance(claimed, errors.NotOwner) or not claimed.entries:
                    break
                await self._store.lanes.settle([Settle(slot, i, Verdict.ACK, epoch) for i, _ in claimed.entries])
            while page := await self._store.lanes.dead(slot, limit=CHUNK):
                await self._store.lanes.settle([Settle(slot, d.id, Verdict.PURGE) for d in page])
