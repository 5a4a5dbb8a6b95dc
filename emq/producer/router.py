"""The producer's view of the catalog: knows the topics to which this process publishes."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence

from emq.producer.first_publishes import FirstPublishes
from emq.producer.lines import Lines
from emq.producer.rounds import Rounds
from emq.producer.routes import Memory, Route, route_of
from emq.runtime import errors
from emq.runtime.clock import boot_s
from emq.topics.catalog_reading import CatalogReading
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

KNOWN = 100_000
"""Most topics that a process keeps, those of the last publishes; it reads others again when it publishes to them."""

AT_ONCE = 5_000
"""Most topics in one call to the database."""

NEVER = sys.maxsize
"""In place of a version: the catalog was not read yet, or was empty."""

_now_s = boot_s
"""A clock that goes on while the machine is suspended, since an earlier look is then old."""


class Router:
    """Knows the topics to which this process has published, and follows their changes.

    The first publish to a topic reads its row, or makes the topic (`FirstPublishes`). A look asks which topics have
    changed since the last one, and reads again those that are known. A publish to a known topic waits for a look when
    the last one is `CATALOG_POLL_S` old. Who waits stands in the topic's line, so no publish overtakes another one to
    its topic. Names of no topic are refused, and not kept.

    While the database is away, messages are routed by the catalog as last seen, for at most `STALE_S`, and only to
    topics to which this process has published before. This is safe: a topic changes only in the database, and groups
    retired by a host that still reaches the database refuse messages.
    """

    def __init__(self, catalog: CatalogReading, first: FirstPublishes) -> None:
        self._catalog = catalog
        self._first = first
        self._routes: OrderedDict[str, Route] = OrderedDict()
        self._lines = Lines()
        self._version = self._begun_at = NEVER
        self._checked_at = 0.0
        self._seen_at = 0.0
        self._away = False
        self._look: asyncio.Task[None] | None = None
        self._readings = Rounds(self._read, "reading of the catalog")
        self._is_comparing = False

    async def route(self, name: str) -> Route:
        """Return the topic's route. The caller that goes on at once is overtaken by no publish to the topic.

        Raises:
            UnknownTopic: there is no such topic.
            TopicClosed: the topic is draining.
            DatabaseUnavailable: this process does not know the topic, or has not seen the catalog for `STALE_S`.
        """
        try:
            route = self._routes.get(name)
        except TypeError:  # a list, for one, cannot be looked up
            validate_text(name)
            raise
        if route is None or name in self._lines.names or self._waits_for_look():
            found = (await self.routes([name]))[name]
        elif self._away or route.topic.state is State.DRAINING:
            found = self._usable(route)
        else:  # as `_usable`, without the call: this runs for each message
            self._routes.move_to_end(name)
            return route
        if isinstance(found, errors.EMQError):
            raise found.with_traceback(None)  # others may raise it, too
        return found

    async def routes(self, names: Collection[str]) -> dict[str, Route | errors.EMQError]:
        """Return the route of each topic, or the error that `route` raises. Unknown topics share a reading."""
        found: dict[str, Route | errors.EMQError] = {}
        for name in names:
            try:
                validate_text(name)
            except errors.InvalidTopic as exc:
                found[name] = exc
        if not (valid := [name for name in names if name not in found]):
            return found
        place = self._lines.join(valid)
        try:
            found |= await self._found(valid)
            await place.turn()
            return found
        finally:
            place.leave()

    async def _found(self, names: Collection[str]) -> dict[str, Route | errors.EMQError]:
        if self._waits_for_look() and self._look is not None and any(name in self._routes for name in names):
            await asyncio.shield(self._look)
        read: dict[str, Route | errors.EMQError] = {}
        asked = set[str]()
        while absent := [name for name in names if name not in self._routes and name not in asked]:
            asked.update(absent)
            read |= await self._begun(absent)  # meanwhile others may drop out of those known, and are asked for next
        found: dict[str, Route | errors.EMQError] = {}
        for name in names:
            route = self._routes.get(name) or read.get(name) or await self._unknown(name, len(names) == 1)
            found[name] = self._usable(route) if isinstance(route, Route) else route
        return found

    async def _begun(self, names: Collection[str]) -> Mapping[str, Route | errors.EMQError]:
        """Read topics, wake or make them, and keep them; return their routes, and errors for names that have none.

        A look may be under way, so the look after it asks for all changes since these topics were read.
        """
        try:
            made = await self._first.make(names)
        except errors.EMQError as exc:
            if isinstance(exc, errors.DatabaseUnavailable):
                self._missed(str(exc))
            return dict.fromkeys(names, exc)
        self._answered() if self._routes else self._seen()
        known = {name: self._routes[name] for name in made.found if name in self._routes}  # others have read them
        topics = {n: topic for n, topic in made.found.items() if isinstance(topic, Topic) and n not in known}
        if topics:  # so the catalog is not empty
            self._begun_at = min(self._begun_at, made.version)
        refused = {name: exc for name, exc in made.found.items() if isinstance(exc, errors.EMQError)}
        return known | self._kept([*topics], topics) | refused

    def _usable(self, route: Route) -> Route | errors.EMQError:
        """Return a known topic's route if a publish may use it now, else the reason why not."""
        name = route.topic.name
        if name in self._routes:
            self._routes.move_to_end(name)
        if self._away and (age_s := _now_s() - self._seen_at) > STALE_S:
            return errors.DatabaseUnavailable(
                f"the catalog was last seen {age_s:.0f} s ago and cannot be read; nothing was published; see that the "
                "database answers"
            )
        if route.topic.state is State.DRAINING:
            return errors.TopicClosed(f"topic {name!r} is draining and takes no new messages; resume it first")
        return route

    async def _unknown(self, name: str, compare: bool) -> Route | errors.EMQError:
        """Return the error for a name that a reading has not found; its route if the topic was created just now.

        Args:
            compare: name topics that are spelt alike. They are searched for one caller at a time, since that reads up
                to 2,000 names.
        """
        if not compare or self._is_comparing:
            return self._catalog.unknown(name)
        self._is_comparing = True
        try:
            await self._catalog.get(name)
            read = await self._begun([name])
        except errors.EMQError as exc:
            return exc
        finally:
            self._is_comparing = False
        return self._routes.get(name) or read.get(name) or self._catalog.unknown(name)

    async def topic_now(self, name: str) -> Topic:
        """Return the topic as the catalog has it now, read after the call began.

        Raises:
            UnknownTopic: the topic was deleted in the meantime.
            DatabaseUnavailable: the catalog cannot be read; ask again later.
        """
        reading = self._readings.join(())
        if not self._away:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await asyncio.shield(reading)
                    if (route := self._routes.get(name)) is not None:
                        return route.topic
                    topic = (await self._catalog.some([name])).get(name)  # others took its place here
            except TimeoutError:
                self._missed(f"the database has given no answer for {PATIENCE_S:g} s")
            else:
                if topic is None or topic.asleep_s:
                    raise self._catalog.unknown(name)
                return topic
        raise errors.DatabaseUnavailable("the catalog cannot be read while the database is away")

    async def refresh(self) -> None:
        """Read the changes of known topics now; callers that ask at the same time share a reading."""
        await asyncio.shield(self._readings.join(()))

    # ---------------------------------------------------------------------------------------------------------- looks

    def _waits_for_look(self) -> bool:
        """Return True if publishes wait for a look at the catalog; begin the look if it is due.

        They wait only while the database answers promptly.
        """
        if self._look is None and _now_s() - self._checked_at > CATALOG_POLL_S:
            self._checked_at = _now_s()
            self._look = asyncio.create_task(self._look_for_changes(), name="emq look at the catalog")
        return self._look is not None and not self._away

    async def _look_for_changes(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self.refresh()
        except TimeoutError:
            self._missed(f"the database has given no answer for {PATIENCE_S:g} s")
        except errors.DatabaseUnavailable:
            pass  # the reader has noted it
        finally:
            self._look = None

    def _missed(self, why: str) -> None:
        if not self._away and self._routes:
            log.warning("%s; publishing uses the last known catalog, for at most %g minutes", why, STALE_S / 60)
        self._away = True

    def _answered(self) -> None:
        if self._away:
            log.info("publishing uses the current catalog again")
        self._away = False

    def _seen(self) -> None:
        self._answered()
        self._seen_at = _now_s()

    # ------------------------------------------------------------------------------------------------------- readings

    async def _read(self, _: Collection[str]) -> None:
        """Read the changes of known topics."""
        try:
            await self._read_now()
        except errors.DatabaseUnavailable as exc:
            self._missed(str(exc))
            raise

    async def _read_now(self) -> None:
        self._checked_at = _now_s()
        self._version, self._begun_at = min(self._version, self._begun_at), NEVER
        # What was changed before a topic was read does not count.
        since = self._version if self._routes and self._version != NEVER else 0
        changes = await self._catalog.changed_names(since)
        known = [name for name in (self._routes if changes.all else changes.changed) if name in self._routes]
        # Not even the store may know where the queues of a topic ended that was deleted long ago.
        await self._learn(known, frozenset(known if changes.all else changes.deleted))
        self._version = changes.version or NEVER  # 0 while the catalog is empty
        self._seen()

    async def _learn(self, names: Sequence[str], deleted: Collection[str]) -> None:
        """Read known topics again.

        Args:
            deleted: names of topics that were deleted, and perhaps created again, since they were read.
        """
        for start in range(0, len(names), AT_ONCE):
            some = names[start : start + AT_ONCE]
            self._kept(some, await self._catalog.some(some), deleted)

    def _kept(
        self, names: Sequence[str], topics: Mapping[str, Topic], deleted: Collection[str] = ()
    ) -> dict[str, Route]:
        """Keep topics as they were read; return the routes of those that are awake."""
        found = {n: route for n in names if (route := self._keep(n, topics.get(n), n in deleted)) is not None}
        while len(self._routes) > KNOWN:
            self._routes.popitem(last=False)
        return found

    def _keep(self, name: str, topic: Topic | None, is_another: bool) -> Route | None:
        """Keep a topic as it was read; return its route."""
        before = None if is_another else self._routes.get(name)
        if topic is None or topic.asleep_s:
            self._routes.pop(name, None)
            return None
        if before is not None and before.topic == topic:
            return before
        route = route_of(topic, Memory() if before is None else before.memory)
        self._routes[name] = route
        return route
