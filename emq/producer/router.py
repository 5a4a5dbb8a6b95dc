"""The producer's picture of the catalog: which topics there are, and which group a message goes to."""

from __future__ import annotations

import time
import zlib
from typing import NamedTuple

from emq import errors
from emq.catalog import Catalog
from emq.model import State, Topic

CATALOG_POLL_S = 1.0
"""How old the producer's picture of the catalog may be. It is corrected at once where the store finds it outdated."""


class Route(NamedTuple):
    """A topic as the producer needs it.

    Attributes:
        queues: names of its queues, by group and priority.
        max_length: what one group may hold, or None.
    """

    topic: Topic
    queues: list[list[str]]
    max_length: int | None


class Router:
    """Knows the catalog's topics, and deals messages out to their groups."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._routes: dict[str, Route] = {}
        self._turns: dict[str, int] = {}
        self._version = -1
        self._checked_at = 0.0

    async def route(self, name: str) -> Route:
        """The topic's route.

        Raises:
            UnknownTopic: there is no such topic.
            TopicClosed: it is draining.
        """
        now = time.monotonic()
        if self._version < 0:
            await self.refresh()
        elif now - self._checked_at > CATALOG_POLL_S:
            self._checked_at = now
            if await self._catalog.version() != self._version:
                await self.refresh()
        route = self._routes.get(name)
        if route is None:
            await self.refresh()
            route = self._routes.get(name)
        if route is None:
            await self._catalog.get(name)  # raises UnknownTopic with a hint
            raise errors.UnknownTopic(f"no topic {name!r}; create it first")
        if route.topic.state is State.DRAINING:
            raise errors.TopicClosed(f"topic {name!r} is draining and takes no new messages; resume it first")
        return route

    async def topic_now(self, name: str) -> Topic:
        """The topic as the catalog has it now, for certain.

        Raises:
            UnknownTopic: it was deleted in the meantime.
        """
        if await self._catalog.version() != self._version:
            await self.refresh()
        route = self._routes.get(name)
        if route is None:
            raise errors.UnknownTopic(f"topic {name!r} was deleted while a message was published to it")
        return route.topic

    async def refresh(self) -> None:
        """Read the catalog's changes now."""
        changes = await self._catalog.changes_since(max(0, self._version))
        for name in changes.deleted:
            self._routes.pop(name, None)
        for topic in changes.changed:
            self._routes[topic.name] = _route(topic)
        self._version = changes.version
        self._checked_at = time.monotonic()

    def group(self, topic: Topic, key: str | None) -> int:
        """The group for a message of that key, or the next in turn."""
        groups = topic.active_groups
        if groups == 1:
            return 0
        if key is not None:
            return zlib.crc32(key.encode()) % groups
        turn = self._turns.get(topic.name, 0)
        self._turns[topic.name] = turn + 1
        return turn % groups


def _route(topic: Topic) -> Route:
    length = topic.options.max_length
    share = None if length is None else max(1, length // topic.active_groups)
    return Route(topic, [topic.queues(g) for g in range(topic.active_groups)], share)
