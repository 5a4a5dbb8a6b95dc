"""The orphans loop: one host logs messages that the catalog does not know, and wakes topics that hold messages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping

from emq.allocation.bucket_membership import BucketMembership
from emq.offsets import orphans
from emq.runtime import errors, pace
from emq.storage.store import Store
from emq.topics.catalog import Catalog
from emq.topics.model import Topic

log = logging.getLogger(__name__)

SOON_S = 5.0
"""Times of the looks, in seconds after a start or a loss of changes in the database."""

EVERY_S = 3_600.0
"""Seconds between two looks otherwise. A look lists everything in the store."""


class OrphanWatch:
    """Looks for orphans while this host leads its cluster; see `emq.offsets.orphans`.

    Args:
        topics: the topics that the host knows, by name.
    """

    def __init__(
        self, store: Store, catalog: Catalog, topics: Mapping[str, Topic], membership: BucketMembership
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._topics = topics
        self._membership = membership
        self._asked = asyncio.Event()
        self._told = ""

    def soon(self) -> None:
        """Look soon: the catalog may have forgotten topics."""
        self._asked.set()

    async def watch(self) -> None:
        """Look again and again. Ends by cancellation."""
        while True:
            await pace.rest(SOON_S)
            with contextlib.suppress(errors.StoreUnavailable, errors.StoreFull, errors.DatabaseUnavailable):
                if self._membership.leads and orphans.can_find(self._store):
                    await self._look()
            await pace.wait(self._asked, EVERY_S)
            self._asked.clear()

    async def _look(self) -> None:
        suspects = await orphans.find(self._store, self._topics)
        if not suspects:
            return
        # A topic may be so new that this host does not know it yet, or it sleeps.
        there = await self._catalog.some({one.topic for one in suspects})
        awake = {name: topic for name, topic in there.items() if not topic.asleep_s}
        found = await orphans.find(self._store, {**self._topics, **awake})
        # The store has lost that a topic was sealed, or the database that it woke; or a producer without the database
        # has published to a name that ended meanwhile. Names of no family stay unknown.
        made = await self._catalog.families.make({one.topic for one in found if one.topic not in awake})
        found = [one for one in found if not isinstance(made.found.get(one.topic), Topic)]
        told = orphans.told(found)
        if found and told != self._told:
            self._told = told
            log.warning(
                "the store holds messages of topics or groups that the catalog does not know; nobody consumes them: "
                "%s; see emq store orphans",
                told,
            )
