"""Waits for a group of the catalog that the store has not opened yet.

The process that grows a topic, or gives up its deletion, changes the catalog first, and opens the group's queues, lane
or slot a moment later. The host that sealed the group opens it, too, once it reads that the topic has grown. If the
catalog has forgotten a change of the topic, nobody would open the group, so the publisher does (`Reopening`).
"""

from __future__ import annotations

import asyncio

from emq.producer.first_publishes import FirstPublishes
from emq.producer.router import Router
from emq.producer.routes import Route
from emq.runtime import errors
from emq.storage.store import Store
from emq.topics import forgotten_layouts
from emq.topics.catalog import Catalog

TRIES = 20
"""Most tries to publish a message whose group turns out to be sealed. With the pauses between them they last 9.5 s."""

STEP_S = 0.05
"""Seconds added to the pause before each further try."""


async def pause(tries: int) -> None:
    """Wait before the next try, after `tries` tries. No pause after the first: mostly a new look is enough."""
    await asyncio.sleep((tries - 1) * STEP_S)


def unopened(topic: str) -> errors.StoreUnavailable:
    """Return the error for the publisher after the last try."""
    waited_s = TRIES * (TRIES - 1) / 2 * STEP_S
    return errors.StoreUnavailable(
        f"a group of topic {topic!r} was closed in the store, and nobody has opened it in {waited_s:g} s; nothing was "
        f"published; publish again, and if that fails as well, open it: emq topic set {topic} qps=..."
    )


class Reopening:
    """Finds the way of messages that a queue has refused."""

    def __init__(self, store: Store, catalog: Catalog, router: Router, first: FirstPublishes) -> None:
        self._store = store
        self._catalog = catalog
        self._router = router
        self._first = first
        self._catching_up = asyncio.Lock()
        self._opening = asyncio.Lock()

    async def look(self, name: str, tries: int) -> Route:
        """Return the topic's newest route after its queues, lanes or slots have refused `tries` times.

        A topic that sleeps, and still refuses, is opened here: nobody else may be there to do it. It may have fallen
        asleep before it was open, so its route is read after that: what is open must be awake.
        """
        await pause(tries)
        route = await self._newest(name)
        if tries > 1 and route.topic.sleeps:
            async with self._opening:
                await self._first.awaken(name)
            route = await self._newest(name)
        return route

    async def _newest(self, name: str) -> Route:
        await self._router.refresh()
        return await self._router.route(name)

    async def route(self, topic: str, layout: int, tries: int) -> Route:
        """Return the topic's newest route after queues, raised to at most `layout`, have refused `tries` times.

        A change of the topic raises its queues after it has changed the catalog. So if the catalog has only an older
        layout now, its database was restored from an older copy (`emq.topics.forgotten_layouts`).
        """
        route = await self.look(topic, tries)
        if route.topic.layout >= layout:
            return route
        async with self._catching_up:  # one does it for all publishers of this process
            if (await self._router.route(topic)).topic.layout < layout:
                await forgotten_layouts.catch_up(self._store, self._catalog, topic, layout)
                await self._router.refresh()
        return await self._router.route(topic)
