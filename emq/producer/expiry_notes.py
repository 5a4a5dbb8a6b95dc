"""Tells the catalog which topics have messages with a time to live of their own."""

from __future__ import annotations

import asyncio
import contextlib

from emq.runtime import errors
from emq.runtime.clock import Clock
from emq.topics import changing
from emq.topics.catalog import Catalog

WAIT_S = 1.0
"""Most seconds that a publish waits for the catalog; without the note, hosts find expired messages later."""

AGAIN_S = 5.0
"""Seconds until a topic may be noted again: by then this process knows the note, or the note has failed."""


class Expiring:
    """Notes a topic at the first publish with a time to live, so that its hosts look ahead for expired messages.

    Else a host would not find such a message behind more messages than it reads, or in a paused topic.
    """

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog = catalog
        self._clock = clock
        self._noted: dict[str, float] = {}

    async def note(self, topic: str) -> None:
        """Note the topic, unless this was tried lately. Raises nothing: the publish goes on without the database."""
        now = self._clock.now()
        if abs(now - self._noted.get(topic, 0.0)) < AGAIN_S:
            return
        self._noted = {name: at for name, at in self._noted.items() if abs(now - at) < AGAIN_S} | {topic: now}
        with contextlib.suppress(errors.EMQError, TimeoutError):
            async with asyncio.timeout(WAIT_S):
                await self._catalog.change(topic, changing.expiring)
