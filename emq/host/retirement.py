"""The retirement loop: what retired groups no longer need of a shrunk topic's quota goes to the others, and the groups
are dropped once nothing is left in any of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

from emq import errors
from emq.clock import Clock
from emq.inspect import dead_letters
from emq.loops.guard import SAID_AGAIN_S
from emq.loops.slicing import in_slices
from emq.offsets import lag
from emq.offsets.checkpoints import CheckpointStore
from emq.storage.answers import accepted, served
from emq.storage.store import Add, Settle, Store, Trim, Verdict
from emq.topics.catalog import Catalog
from emq.topics.model import Topic

log = logging.getLogger(__name__)

RETIRE_S = 0.5
"""How often shrunk topics are looked at; only those, and mostly there are none."""

GROUPS = 2_000
"""So many retired groups can be looked at each time; of more there are fewer looks."""

TOGETHER = 500
"""Queues or lanes that are looked at before the event loop serves everybody else."""

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
        clock: Clock,
        interval_s: float = RETIRE_S,
    ) -> None:
        """Args:
        shrunk: the topics to look at: those with more `groups` than `active_groups`.
        """
        self._catalog = catalog
        self._store = store
        self._checkpoints = checkpoints
        self._shrunk = shrunk
        self._clock = clock
        self._interval_s = interval_s
        self._complained: dict[str, float] = {}

    async def watch(self) -> None:
        """Look at shrunk topics every few seconds. Ends by cancellation."""
        while True:
            # Large ones less often, since each look is at each of their retired groups.
            retired = sum(topic.groups - topic.active_groups for topic in self._shrunk())
            await asyncio.sleep(self._interval_s * max(1, retired / GROUPS))
            shrunk = list(self._shrunk())
            if not shrunk:
                self._complained.clear()
            for topic in shrunk:
                try:
                    await self.retire(topic)
                except (
                    errors.UnknownTopic,
                    errors.QueueSealed,  # the topic is being deleted
                    errors.StoreUnavailable,
                    errors.StoreFull,
                    errors.DatabaseUnavailable,
                ) as exc:
                    log.info("%s; the retired groups of %s stay for now", exc, topic.name)
                except Exception:  # of one topic only
                    if self._complained.get(topic.name, 0) <= self._clock.now():
                        self._complained[topic.name] = self._clock.now() + SAID_AGAIN_S
                        log.exception("the retired groups of topic %s stay for now", topic.name)

    async def retire(self, topic: Topic) -> bool:
        """Drop the topic's retired groups; False if something is left in them. Then only these share the quota."""
        retired = range(topic.active_groups, topic.groups)
        now_ms = int(self._clock.now() * 1000)
        draining = tuple(sorted(await lag.holding(self._store, self._checkpoints, topic, retired, now_ms)))
        if draining != topic.division.draining:
            await self._catalog.share(topic.name, topic, draining)
            return False
        queues = [q async for group in in_slices(retired, TOGETHER) for q in topic.queues(group)]
        slots = [topic.group(group) async for group in in_slices(retired, TOGETHER)]
        if any(await lag.unfinished(self._store.log, self._checkpoints, queues)):
            return False
        if await self._retrying(slots):
            return False
        # Looked at again: a message that came and failed since has left its queue for the slot.
        done = await self._sealed(queues) and not await self._retrying(slots) and await self._drop(topic, slots)
        if not done:
            for part in _parts(queues):
                served(await self._store.log.trim([Trim(q, 0, None, seal=False) for q in part]))
                await asyncio.sleep(0)
        return done

    async def _sealed(self, queues: Sequence[str]) -> bool:
        """Seal the queues; False where one of them holds something, the others may be sealed then."""
        for part in _parts(queues):
            saved = await self._checkpoints.load(part)
            bounds = served(await self._store.log.bounds(part))
            # Up to what was finished and no further: a message that came since keeps its queue from being sealed.
            finished = [saved[q].watermark if q in saved else b.head for q, b in zip(part, bounds, strict=True)]
            seals = [Trim(q, f, None, True) for q, f in zip(part, finished, strict=True)]
            if not all(sealed is True for sealed in served(await self._store.log.trim(seals))):
                return False
            await asyncio.sleep(0)
        return True

    async def _retrying(self, slots: Sequence[str]) -> bool:
        for part in _parts(slots):
            if any(s.waiting or s.prepared for s in served(await self._store.lanes.inspect(part))):
                return True
            await asyncio.sleep(0)
        return False

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
                accepted(await store.add([Add(to, e.id, e.body, e.due_ms, priority=e.priority) for e in page]))
                served(await store.settle([Settle(lane, e.id, Verdict.RECALL) for e in page]))


def _parts(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[start : start + TOGETHER] for start in range(0, len(names), TOGETHER))
