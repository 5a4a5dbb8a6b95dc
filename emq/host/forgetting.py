"""The forgetting loop: one host drops what catalog and store know of topics that ended long ago.

Else each name would cost some hundred bytes for ever. The row of a topic that was deleted, or that sleeps without a
setting of its own, tells the topic's queues, lanes and slots. These are sealed and empty.

A publish may make a topic of the same name at any moment, whose host goes on from where the queues end. So that no host
goes on from an offset that the store forgets:

1. The store marks the groups (`Store.forget`). Whoever comes to own a group replaces the mark.
2. Rows that have changed by now are left out. No host has acquired a group of the others before step 1, since a host
   acquires a group only if the catalog has it.
3. The store forgets the groups that still have the mark. A host that acquires one later finds unused queues.
4. The rows go that have not changed.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence

from emq.allocation.bucket_membership import BucketMembership
from emq.groups.context import HostContext
from emq.host.surroundings import Storage
from emq.runtime import errors, pace
from emq.storage.answers import FAILURES, served
from emq.storage.store import Ended
from emq.topics import row_codec
from emq.topics.opening import CHUNK, Place, places_of
from emq.trail import events

log = logging.getLogger(__name__)

LOOK_S = 60.0
"""Seconds between two looks for such topics."""


class Forgetting:
    """Forgets topics that ended `BURIED_S` ago, while this host leads its cluster. Two hosts at once do no harm."""

    def __init__(self, storage: Storage, membership: BucketMembership, context: HostContext) -> None:
        self._store = storage.store
        self._families = storage.catalog.families
        self._membership = membership
        self._clock = context.clock
        self._trail = context.trail

    async def watch(self) -> None:
        """Look again and again. Ends by cancellation."""
        while True:
            await pace.rest(LOOK_S)
            try:
                while self._membership.leads and await self.forget():
                    await pace.rest(1.0)
            except (errors.StoreUnavailable, errors.StoreFull, errors.DatabaseUnavailable) as exc:
                log.info("%s; names that ended stay known for now", exc)

    async def forget(self) -> int:
        """Drop the oldest such topics; return the number of rows that were found.

        Raises:
            StoreUnavailable, StoreFull, DatabaseUnavailable: try again later.
        """
        now_s = self._clock.now()
        rows = await self._families.buried(now_s)
        if rows:
            if getattr(self._store, "forget", None) is not None:
                await self._forget(rows, now_s)
            await self._families.drop_buried(now_s, [*rows])
        return len(rows)

    async def _forget(self, rows: dict[str, str], now_s: float) -> None:
        topics = [topic for name, body in rows.items() if (topic := row_codec.shape(name, body)) is not None]
        places, mark = places_of(topics), -2 - secrets.randbits(47)
        await self._tell(places, mark, now_s)
        now = await self._families.buried(now_s)
        await self._tell([p for p in places if now.get(p.topic.name) == rows[p.topic.name]], mark, now_s)

    async def _tell(self, places: Sequence[Place], mark: int, now_s: float) -> None:
        """Call the store for all groups; record those that it forgot, also if it cannot serve the others."""
        for start in range(0, len(places), CHUNK):
            part = places[start : start + CHUNK]
            ended = [
                Ended(p.lane, p.topic.queues(p.group), p.topic.slot(p.group) if p.topic.is_sorted else None, mark)
                for p in part
            ]
            answers = await self._store.forget(ended)  # type: ignore[attr-defined]
            for place, tails in zip(part, answers, strict=True):
                if not isinstance(tails, FAILURES):
                    self._record(place, tails, round(now_s * 1e6))
            # What belongs to a damaged key stays there, and holds up no other row.
            served([None if isinstance(answer, errors.KeyDamaged) else answer for answer in answers])

    def _record(self, place: Place, tails: Sequence[int] | None, at_us: int) -> None:
        """Record that the offsets of the group's queues begin again, as of a time before the next topic's first one."""
        first = self._store.log.first_offset
        for priority, tail in enumerate(tails or ()):
            if tail > first and self._trail.enabled:
                name, group = place.topic.name, place.group
                self._trail.record(events.Forgotten(at_us, name, group, priority, first, tail))
