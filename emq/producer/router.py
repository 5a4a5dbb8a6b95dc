"""The producer's view of the catalog."""

from __future__ import annotations

import asyncio
import logging

from emq import errors
from emq.clock import boot_s
from emq.producer.routes import Memory, Route, route_of
from emq.topics.catalog import Catalog
from emq.topics.model import State, Topic
from emq.topics.rules import validate_text

log = logging.getLogger(__name__)

CATALOG_POLL_S = 1.0
"""Most seconds between two looks at the catalog. If the store refuses a message as routed by an old catalog, the
producer looks at once."""

PATIENCE_S = 1.0
"""Seconds that a publish waits for a look at the catalog before it uses the catalog as last seen."""

STALE_S = 3600.0
"""Seconds for which publishing goes on by the catalog as last seen while the database is away."""

_now_s = boot_s
"""A clock that goes on while the machine is suspended, since an earlier look is then old."""


class Router:
    """Knows the catalog's topics, and deals messages out to their groups.

    While the database is away, messages are routed by the catalog as last seen, for at most `STALE_S`. This is safe: a
    topic changes only in the database, and groups retired by a host that still reaches the database refuse messages.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._looking: asyncio.Task[None] | None = None
        self._looks: set[asyncio.Task[None]] = set()
        self._seen_at = 0.0
        self._away = False
        self._routes: dict[str, Route] = {}
        self._version = -1
        self._checked_at = 0.0
        self._reading = asyncio.Lock()
        self._readings = 0

    async def route(self, name: str) -> Route:
        """Return the topic's route.

        Raises:
            UnknownTopic: there is no such topic.
            TopicClosed: the topic is draining.
            DatabaseUnavailable: this process does not know the topic, or has not seen the catalog for `STALE_S`.
        """
        if self._version < 0:
            await self.refresh()
        elif _now_s() - self._checked_at > CATALOG_POLL_S:
            await self._look()
        elif self._looking is not None and not self._looking.done() and not self._away:
            await self._wait_for(self._looking)  # this message must not overtake others that wait for the look
        if self._away:
            self._refuse_stale()
        try:
            route = self._routes.get(name)
        except TypeError:  # a list, for one, cannot be looked up
            validate_text(name)
            raise
        if route is None:
            await self.refresh()
            route = self._routes.get(name)
        if route is None:
            await self._catalog.get(name)  # raises UnknownTopic with a hint
            raise errors.UnknownTopic(f"topic {name!r} was created just now; publish again")
        if route.topic.state is State.DRAINING:
            raise errors.TopicClosed(f"topic {name!r} is draining and takes no new messages; resume it first")
        return route

    async def _look(self) -> None:
        """Look for changes of the catalog; wait for the look only while the database answers promptly."""
        self._checked_at = _now_s()
        look = self._begin_look()
        if not self._away:
            await self._wait_for(look)

    def _refuse_stale(self) -> None:
        age_s = _now_s() - self._seen_at
        if age_s > STALE_S:
            raise errors.DatabaseUnavailable(
                f"the catalog was last seen {age_s:.0f} s ago and cannot be read; nothing was published; see that the "
                "database answers"
            )

    async def topic_now(self, name: str) -> Topic:
        """Return the topic as the catalog has it now, read after the call began.

        Raises:
            UnknownTopic: the topic was deleted in the meantime.
            DatabaseUnavailable: the catalog cannot be read; ask again later.
        """
        if not self._away:
            self._looking = None  # the database may have answered a look that is under way before the call
        look = self._begin_look()
        if not self._away:
            await self._wait_for(look)
        if self._away:
            raise errors.DatabaseUnavailable("the catalog cannot be read while the database is away")
        route = self._routes.get(name)
        if route is None:
            raise errors.UnknownTopic(f"topic {name!r} was deleted while a message was published to it")
        return route.topic

    def _begin_look(self) -> asyncio.Task[None]:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._try_to_look(), name="emq look at the catalog")
            self._looks.add(self._looking)
            self._looking.add_done_callback(self._looks.discard)
        return self._looking

    async def _wait_for(self, look: asyncio.Task[None]) -> None:
        await asyncio.wait({look}, timeout=PATIENCE_S)
        if look.done():
            look.result()
        else:
            self._missed(f"the database has given no answer for {PATIENCE_S:g} s")

    async def _try_to_look(self) -> None:
        try:
            if await self._catalog.version() != self._version:
                await self.refresh()
        except errors.DatabaseUnavailable as exc:
            self._missed(str(exc))
        else:
            self._seen()

    def _missed(self, why: str) -> None:
        if not self._away:
            log.warning("%s; publishing uses the last known catalog, for at most %g minutes", why, STALE_S / 60)
        self._away = True

    def _seen(self) -> None:
        if self._away:
            log.info("publishing uses the current catalog again")
        self._away, self._seen_at = False, _now_s()

    async def refresh(self) -> None:
        """Read the catalog's changes now.

        Callers that ask at the same time share a reading that began after they asked. Otherwise an app that starts to
        publish to many topics at once would read the whole catalog once for each topic.
        """
        needed = self._readings + 1 + self._reading.locked()
        async with self._reading:
            if self._readings < needed:
                await self._read()
                self._readings += 1

    async def _read(self) -> None:
        changes = await self._catalog.changes_since(max(0, self._version))
        for name in changes.gone(self._routes):
            self._routes.pop(name, None)
        for topic in changes.changed:
            known = self._routes.get(topic.name)
            self._routes[topic.name] = route_of(topic, Memory() if known is None else known.memory)
        self._version = changes.version
        self._checked_at = _now_s()
        self._seen()
