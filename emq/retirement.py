"""The retirement loop: drops the groups of a shrunk topic once nothing is left in them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from emq import dead_letters, errors, lag
from emq.catalog import Catalog
from emq.model import Topic
from emq.offsets.checkpoints import CheckpointStore
from emq.storage import Add, Settle, Store, Trim, Verdict

log = logging.getLogger(__name__)

RETIRE_S = 2.0
"""How often shrunk topics are looked at; only those, and mostly there are none."""

RESCUE_PAGE = 500


class Retirement:
    """Retires groups of the topics that this host answers for (those whose last group it owns).

    Loses nothing: first every queue of the retired groups must be finished by its checkpoint; then each is sealed,
    which the store does only while nothing is left in it, so that a producer with an old picture of the catalog is
    refused and cannot write where nobody reads any more; the catalog is changed last.
    """

    def __init__(
        self,
        catalog: Catalog,
        store: Store,
        checkpoints: CheckpointStore,
        shrunk: Callable[[], Iterable[Topic]],
        interval_s: float = RETIRE_S,
    ) -> None:
        """Args:
        shrunk: the topics to look at: those with more `groups` than `active_groups`.
        """
        self._catalog = catalog
        self._store = store
        self._checkpoints = checkpoints
        self._shrunk = shrunk
        self._interval_s = interval_s

    async def watch(self) -> None:
        """Look at shrunk topics every few seconds. Ends by cancellation."""
        while True:
            await asyncio.sleep(self._interval_s)
            for topic in list(self._shrunk()):
                try:
                    await self.retire(topic)
                except (
                    errors.UnknownTopic,
                    errors.StoreUnavailable,
                    errors.StoreFull,
                    errors.DatabaseUnavailable,
                ) as exc:
                    log.info("%s; the retired groups of %s stay for now", exc, topic.name)

    async def retire(self, topic: Topic) -> bool:
        """Drop the topic's retired groups; False, and nothing changed, if something is left in them."""
        retired = range(topic.active_groups, topic.groups)
        queues = [q for group in retired for q in topic.queues(group)]
        slots = [topic.group(group) for group in retired]
        if any(await lag.unfinished(self._store.log, self._checkpoints, queues)):
            return False
        if await self._retrying(slots):
            return False
        saved = await self._checkpoints.load(queues)
        bounds = await self._store.log.bounds(queues)
        # Up to what was finished and no further: a message that came since keeps its queue from being sealed.
        finished = [saved[q].watermark if q in saved else b.head for q, b in zip(queues, bounds, strict=True)]
        sealed = await self._store.log.trim([Trim(q, f, None, True) for q, f in zip(queues, finished, strict=True)])
        # Looked at again: a message that came and failed since has left its queue for the slot.
        done = all(s is True for s in sealed) and not await self._retrying(slots) and await self._drop(topic, slots)
        if not done:
            await self._store.log.trim([Trim(q, 0, None, seal=False) for q in queues])
        return done

    async def _retrying(self, slots: Sequence[str]) -> bool:
        return any(s.waiting or s.prepared for s in await self._store.lanes.inspect(slots))

    async def _drop(self, topic: Topic, slots: Sequence[str]) -> bool:
        """Compare-and-set in the catalog; False if the topic has changed meanwhile, perhaps grown again."""
        for slot in slots:
            await dead_letters.move(self._store.lanes, slot, topic.group(0))
        after = await self._catalog.retire(topic.name, topic)
        if not after.groups == after.active_groups == topic.active_groups:
            return False
        await self._rescue(slots, topic.group(0))
        return True

    async def _rescue(self, lanes: Sequence[str], to: str) -> None:
        """Move what producers added to a retired group's lane before they could see the change of the catalog.

        They look at the catalog after each add, so what comes later than this look they place anew themselves.
        """
        store = self._store.lanes
        for lane in lanes:
            while page := await store.waiting(lane, 0, RESCUE_PAGE):
                await store.add([Add(to, e.id, e.body, e.due_ms, priority=e.priority) for e in page])
                await store.settle([Settle(lane, e.id, Verdict.RECALL) for e in page])
