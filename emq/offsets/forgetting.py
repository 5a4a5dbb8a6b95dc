"""Drops what the catalog and the store still know of topics that ended long ago, so that names cost nothing for ever.

A row of a topic that was deleted, or sleeps and had a row that said nothing of its own, names the topic's queues, lanes
and slots. Those are sealed and empty. The store forgets them, and then the row goes.

A publish may make a topic of the same name at any moment. Its host then finds out where the queues begin, and must not
go on from there if the store forgets them. So the steps are these:

1. Let the store mark the groups (`Store.forget`). Whoever comes to own a group replaces its mark.
2. Read the rows again, and leave out those that have changed. No host has acquired a group of the rest before step 1,
   since a host acquires a group only if the catalog has it.
3. Let the store forget the groups that still have the mark. A host that acquires one later finds unused queues.
4. Drop the rows that have not changed.

A store without `forget` keeps what it knows.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from emq.runtime import errors
from emq.runtime.clock import Clock
from emq.storage.answers import served
from emq.storage.store import Ended, Store
from emq.topics import row_codec
from emq.topics.catalog import Catalog
from emq.topics.opening import CHUNK, Place, places_of
from emq.trail import events
from emq.trail.sink import TrailSink


class Forgetting:
    """Drops topics that were deleted `BURIED_S` ago. Any host may do this, also several at once."""

    def __init__(self, store: Store, catalog: Catalog, clock: Clock, trail: TrailSink) -> None:
        self._store = store
        self._catalog = catalog
        self._clock = clock
        self._trail = trail

    async def forget(self) -> int:
        """Drop the oldest such topics; return the number of rows that were found.

        Raises:
            StoreUnavailable, StoreFull, DatabaseUnavailable: try again later.
        """
        now_s = self._clock.now()
        rows = await self._catalog.families.buried(now_s)
        if rows:
            if getattr(self._store, "forget", None) is not None:
                await self._forget(rows, now_s)
            await self._catalog.families.drop_buried(now_s, [*rows])
        return len(rows)

    async def _forget(self, rows: dict[str, str], now_s: float) -> None:
        topics = [topic for name, body in rows.items() if (topic := row_codec.shape(name, body)) is not None]
        places, mark = places_of(topics), -2 - secrets.randbits(47)
        await self._told(places, mark)
        now = await self._catalog.families.buried(now_s)
        places = [place for place in places if now.get(place.topic.name) == rows[place.topic.name]]
        for place, tails in zip(places, await self._told(places, mark), strict=True):
            self._record(place, tails)

    async def _told(self, places: Sequence[Place], mark: int) -> list[Sequence[int] | None]:
        """Call the store for all groups; return its answers."""
        found: list[Sequence[int] | None] = []
        for start in range(0, len(places), CHUNK):
            ended = [
                Ended(p.lane, p.topic.queues(p.group), p.topic.slot(p.group) if p.topic.is_sorted else None, mark)
                for p in places[start : start + CHUNK]
            ]
            answers = await self._store.forget(ended)  # type: ignore[attr-defined]
            # What belongs to a damaged key stays there, and holds up no other row.
            found += served([None if isinstance(answer, errors.KeyDamaged) else answer for answer in answers])
        return found

    def _record(self, place: Place, tails: Sequence[int] | None) -> None:
        """Record that the offsets of the group's queues begin again."""
        first, now_us = self._store.log.first_offset, self._clock.now_us()
        for priority, tail in enumerate(tails or ()):
            if tail > first and self._trail.enabled:
                name, group = place.topic.name, place.group
                self._trail.record(events.Forgotten(now_us, name, group, priority, first, tail))
