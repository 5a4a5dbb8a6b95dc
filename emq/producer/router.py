"""The producer's view of the catalog: knows the topics to which this process publishes."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import OrderedDict
from collections.abc import Collection, Iterable
from functools import partial

from emq import errors
from emq.clock import boot_s
from emq.producer.lines import Line
from emq.producer.routes import Memory, Route, route_of
from emq.topics.catalog_reading import CatalogReading
from emq.topics.catalog_rows import ChangedNames
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

_now_s = boot_s
"""A clock that goes on while the machine is suspended, since an earlier look is then old."""


Place = asyncio.Future[Route | Exception | None]
"""A place in the line for a topic. The answer is None if there is no such topic, or the error of the reading."""


class Router:
    """Knows the topics to which this process has published, and follows their changes.

    The first publish to a topic reads its row. One task reads, for all who wait: names that are wanted at the same time
    share a reading, which first looks at the catalog's version. If the version has moved, the reading asks which topics
    have changed since, and reads again those that are known. A publish to a known topic waits for a look when the last
    one is `CATALOG_POLL_S` old. No publish overtakes another one to its topic that waits. Names of no topic are
    refused, and not kept.

    While the database is away, messages are routed by the catalog as last seen, for at most `STALE_S`, and only to
    topics to which this process has published before. This is safe: a topic changes only in the database, and groups
    retired by a host that still reaches the database refuse messages.
    """

    def __init__(self, catalog: CatalogReading) -> None:
        self._catalog = catalog
        self._routes: OrderedDict[str, Route] = OrderedDict()
        self._version = 0
        self._checked_at = 0.0
        self._seen_at = 0.0
        self._away = False
        self._reader: asyncio.Task[None] | None = None
        self._is_asked = False
        self._readings = 0
        self._looking: asyncio.TimerHandle | None = None
        self._lines: dict[str, Line[Route | Exception | None]] = {}
        self._looks: Line[Exception | None] = Line(self._looks_passed)
        self._ends: Line[Exception | None] = Line(lambda: None)

    async def route(self, name: str, joined: Place | None = None) -> Route:
        """Return the topic's route.

        Args:
            joined: the caller's place in the topic's line, if it stands there already.

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
        if route is None:
            validate_text(name)
            route = await self._awaited(name, joined)
        else:
            self._routes.move_to_end(name)
            if _now_s() - self._checked_at > CATALOG_POLL_S:
                self._begin_look()
            if joined is not None or name in self._lines:
                route = await self._awaited(name, joined)
            elif (self._looking or self._looks.busy) and not self._away:
                if (failure := await self._looks.join()) is not None:
                    raise failure
                route = self._routes.get(name) or await self._awaited(name)
        if self._away:
            self._refuse_stale()
        if route.topic.state is State.DRAINING:
            raise errors.TopicClosed(f"topic {name!r} is draining and takes no new messages; resume it first")
        return route

    async def routes(self, names: Collection[str]) -> dict[str, Route | errors.EMQError]:
        """Return the route of each topic, or the error that `route` raises. Unknown topics share a reading."""
        joined = {name: self._join(name) for name in names if name not in self._routes or name in self._lines}
        found: dict[str, Route | errors.EMQError] = {}
        for name in names:
            try:
                found[name] = await self.route(name, joined.get(name))
            except errors.EMQError as exc:
                found[name] = exc
        return found

    async def _awaited(self, name: str, joined: Place | None = None) -> Route:
        """Return the route of a topic from a reading, behind those who wait for it already."""
        while True:
            answer = await (joined or self._join(name))
            if isinstance(answer, Route):
                return answer
            if answer is not None:
                raise answer
            await self._catalog.get(name)  # raises UnknownTopic with a hint, unless the topic was created just now
            joined = None

    def _join(self, name: str) -> Place:
        """Stand in the topic's line, for a reading that begins after this call."""
        if name not in self._routes:
            self._ask()
        if (line := self._lines.get(name)) is None:
            line = self._lines[name] = Line(partial(self._line_passed, name))
        return line.join(self._readings + 1)

    def _line_passed(self, name: str) -> None:
        line = self._lines[name]
        if not line.waiting:
            del self._lines[name]
        elif (route := self._routes.get(name)) is not None:
            line.release(route)  # they came after the reading, while others had not gone on yet
        else:
            self._ask()

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
        self._ask()
        if not self._away:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._next_reading()
                    return (self._routes.get(name) or await self._awaited(name)).topic
            except TimeoutError:
                self._missed(f"the database has given no answer for {PATIENCE_S:g} s")
        raise errors.DatabaseUnavailable("the catalog cannot be read while the database is away")

    async def refresh(self) -> None:
        """Read the changes of known topics now; callers that ask at the same time share a reading."""
        await self._next_reading()

    async def _next_reading(self) -> None:
        """Wait for the end of a reading that begins after this call; raise its error."""
        self._ask()
        if (failure := await self._ends.join(self._readings + 1)) is not None:
            raise failure

    # ---------------------------------------------------------------------------------------------------------- looks

    def _begin_look(self) -> None:
        """Look for changes of the catalog; publishes wait for the look only while the database answers promptly."""
        self._checked_at = _now_s()
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(PATIENCE_S, self._lose_patience)
            if self._reader is None or self._reader.done():
                self._ask()

    def _lose_patience(self) -> None:
        self._missed(f"the database has given no answer for {PATIENCE_S:g} s")
        self._looks.release(None)

    def _looks_passed(self) -> None:
        if self._looks.waiting and self._looking is None:
            self._looks.release(None)  # they came after the look, while others had not gone on yet

    def _end_look(self, failure: Exception | None) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        if self._looks.waiting:
            self._looks.release(None if isinstance(failure, errors.DatabaseUnavailable) else failure)

    def _missed(self, why: str) -> None:
        if not self._away and self._routes:
            log.warning("%s; publishing uses the last known catalog, for at most %g minutes", why, STALE_S / 60)
        self._away = True

    def _seen(self) -> None:
        if self._away:
            log.info("publishing uses the current catalog again")
        self._away, self._seen_at = False, _now_s()

    # ------------------------------------------------------------------------------------------------------- readings

    def _ask(self) -> None:
        """Have a reading begin after this call."""
        self._is_asked = True
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read_on(), name="emq read the catalog")

    async def _read_on(self) -> None:
        """Read the catalog for as long as somebody asks."""
        while self._is_asked:
            self._is_asked = False
            self._readings += 1
            failure: Exception | None = errors.DatabaseUnavailable("the reading of the catalog was cancelled")
            try:
                await self._read(self._readings)
                failure = None
            except errors.DatabaseUnavailable as exc:
                failure = exc
                self._missed(str(exc))
            except Exception as exc:  # goes to those who wait
                failure = exc
            finally:
                self._end(self._readings, failure)

    def _end(self, reading: int, failure: Exception | None) -> None:
        self._end_look(failure)
        if self._ends.waiting:
            self._ends.release(failure, reading)
        if failure is not None:
            for line in [line for line in self._lines.values() if line.waiting]:
                line.release(failure, reading)

    async def _read(self, reading: int) -> None:
        """Read the changes of known topics, and the topics for which somebody stands in line."""
        wanted = [name for name in self._lines if name not in self._routes]
        self._checked_at = _now_s()
        changes = await self._changes()
        known = [name for name in (self._routes if changes.all else changes.changed) if name in self._routes]
        await self._learn(known, reading, frozenset(changes.deleted))
        self._version = changes.version
        self._seen()
        await self._learn(wanted[:AT_ONCE], reading)
        if wanted[AT_ONCE:]:
            self._is_asked = True

    async def _changes(self) -> ChangedNames:
        """Return what has changed since the last reading; what was changed before a topic was read does not count."""
        version = await self._catalog.version()
        if version == self._version or not self._routes:
            return ChangedNames(version, (), ())
        return await self._catalog.changes_of(self._version)

    async def _learn(self, names: Iterable[str], reading: int, deleted: Collection[str] = ()) -> None:
        """Read topics, and answer those who stand in their lines.

        Args:
            deleted: names of topics that were deleted, and perhaps created again, since they were read.
        """
        rest = iter(names)
        while some := [*itertools.islice(rest, AT_ONCE)]:
            topics = await self._catalog.some(some)
            for name in some:
                route = self._keep(name, topics.get(name), name in deleted)
                if (line := self._lines.get(name)) is not None:
                    line.release(route, None if route else reading)
            while len(self._routes) > KNOWN:
                self._routes.popitem(last=False)

    def _keep(self, name: str, topic: Topic | None, is_another: bool) -> Route | None:
        """Keep a topic as it was read; return its route."""
        before = None if is_another else self._routes.get(name)
        if topic is None:
            self._routes.pop(name, None)
            return None
        if before is not None and before.topic == topic:
            return before
        route = route_of(topic, Memory() if before is None else before.memory)
        self._routes[name] = route
        return route
