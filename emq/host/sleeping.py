"""The sleeping loop: puts topics to sleep that are empty and idle; the next publish wakes them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from emq.groups.owned import OwnedTopic
from emq.host.assignments import Assignments
from emq.host.catalog_loop import CatalogLoop
from emq.host.changing_topics import ChangingTopics
from emq.host.surroundings import Storage
from emq.offsets.sleep import empty_ones, put_to_sleep
from emq.quota.counter import own_counter
from emq.runtime import errors, pace
from emq.runtime.clock import Clock
from emq.topics.model import Topic

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Seconds between two steps of a pass over the topics."""

PASS_S = 5.0
"""Seconds between two passes."""

LOOKED_AT = 2_000
"""Topics looked at in one step, in this host's memory only."""

AT_ONCE = 500
"""Most topics put to sleep in one step: with a few calls to the store, and one transaction."""


class _Seen(NamedTuple):
    """A topic as it was at an earlier look.

    Attributes:
        mark: changes with every message that is read or started, or comes into a lane.
        since_s: the time of the first look that found this mark.
    """

    mark: tuple[int, int, int]
    since_s: float


class Sleeping:
    """Puts topics with an `idle_s` to sleep, all of whose groups this host owns.

    A pass over these topics compares what they have read and started with what they had at the pass before. A topic
    that has done nothing for its `idle_s`, and for as long as it must stay itself (`_least_s`), is looked at
    in the store, and put to sleep if it holds nothing (`emq.offsets.sleep`). If it holds something, such as a schedule
    or a dead letter, the host looks again after the same time. There is no timer for each topic, and no work for topics
    without an `idle_s`.

    Sorted topics sleep only with merge "key": other programs may write bare contents to slots, and know no catalog.
    A topic that is the budget of others does not sleep, nor one that somebody has paused or drained by itself. See also
    `is_safe`.
    """

    def __init__(
        self, storage: Storage, known: ChangingTopics, catalog: CatalogLoop, assignments: Assignments, clock: Clock
    ) -> None:
        self._store = storage.store
        self._catalog = storage.catalog
        self._checkpoints = storage.checkpoints
        self._known = known
        self._followed = catalog
        self._assignments = assignments
        self._clock = clock
        self._seen: dict[str, _Seen] = {}
        self.slept = 0

    @property
    def is_safe(self) -> bool:
        """False if seals of the store hold for one process only: then nobody may sleep."""
        return not getattr(self._store.log, "forgets_seals", False)

    async def watch(self) -> None:
        """Look at the topics that may sleep, in passes. Ends by cancellation."""
        while True:
            await self._known.until_some_sleep()
            await pace.rest(PASS_S)
            try:
                await self._pass()
            except (errors.StoreUnavailable, errors.StoreFull, errors.DatabaseUnavailable, errors.InvalidTopic) as exc:
                log.info("%s; topics that are idle stay for now", exc)

    async def _pass(self) -> None:
        seen, due = dict[str, _Seen](), list[OwnedTopic]()
        for looked_at, owner in enumerate(self._known.sleepy(), 1):
            self._look(owner, seen, due)
            if len(due) >= AT_ONCE or looked_at % LOOKED_AT == 0:
                await self._sleep(due)
                due.clear()
                await pace.rest(LOOK_S)
        if due:
            await self._sleep(due)
        self._seen = seen

    def _look(self, owner: OwnedTopic, seen: dict[str, _Seen], due: list[OwnedTopic]) -> None:
        """Note what a topic has done; add it to those due if it has done nothing for long."""
        topic, now_s = owner.topic, self._clock.now()
        mark = _mark(owner)
        before = self._seen.get(topic.name)
        if before is None or before.mark != mark or owner.in_flight:
            before = _Seen(mark, now_s)
        idle_s = topic.options.idle_s
        if idle_s is None or now_s - before.since_s < max(idle_s, _least_s(topic)):
            seen[topic.name] = before
            return
        seen[topic.name] = _Seen(mark, now_s)  # if it holds something, look again when it has been idle as long again
        due.append(owner)

    async def _sleep(self, owners: Sequence[OwnedTopic]) -> None:
        now_ms = int(self._clock.now() * 1000)
        empty = await empty_ones(self._store, self._checkpoints, [owner.topic for owner in owners], now_ms)
        # One that has begun a message just now would hold up all others below, for as long as its handler runs.
        busy = {owner.topic.name for owner in owners if owner.in_flight}
        empty = [topic for topic in empty if topic.name not in busy]
        if not empty:
            return
        # A topic may wake before this host has heard that it slept. What its former groups here would start of the new
        # life would be started again by the next owner, or in the same second.
        async with self._assignments.apart([topic.group(i) for topic in empty for i in range(topic.groups)]):
            slept = await put_to_sleep(self._store, self._catalog, self._checkpoints, empty, now_ms)
            if slept:
                self.slept += len(slept)
                await self._followed.look()


def _least_s(topic: Topic) -> float:
    """Return the seconds after its last start for which a topic stays.

    It remembers ids. And a topic that wakes is new: with a qps below 1, its first start is due as soon as all hosts
    know it. So it sleeps no sooner than its next start would have been due in any case.
    """
    return max(topic.options.dedupe_s, 1 / topic.qps)


def _mark(owner: OwnedTopic) -> tuple[int, int, int]:
    read = started = delayed = 0
    for group in owner.groups.values():
        started += own_counter(group.counter).reserved
        delayed += group.lane_finds  # also what is recalled before it starts: the group remembers its id
        for queue in group.queues:
            read += queue.position
    return read, started, delayed
