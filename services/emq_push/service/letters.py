"""The dead letters of a tenant's endpoints, as the store has them: list, count, put back, throw away.

The store decides, not the rows: dead letters stay until somebody puts them back or throws them away, longer than rows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from emq.observe import dead_letters
from emq.observe.dead_letters import Letter, Selection
from emq.offsets import lag
from emq.storage import message
from emq.storage.answers import served
from emq.storage.lane_store import DeadEntry, LaneSettle, LaneVerdict
from emq.topics.model import Topic
from emq_clients.push.answers import EndpointDead, Purged
from emq_push.records import cursors, deliveries
from emq_push.records.cursors import Page
from emq_push.records.deliveries import Deliveries
from emq_push.records.endpoints import topic_of
from emq_push.service.parts import Parts
from emq_push.service.reading import delivery_id
from emq_push.service.refusals import Invalid

LOOKED_AT = 2_000
"""Most letters that one page looks at; then the page ends, even if it is not full."""

CHUNK = 500
"""Most letters read, put back or thrown away at a time."""

MOST_IDS = 500
"""Most letters that one call names."""

MOST_ENDPOINTS = 1_000
"""Most endpoints of a tenant whose letters are counted."""

MOST_PURGED = 10_000
"""Most letters that one call throws away."""


ALL = 1 << 30
LAST = "\U0010ffff"
"""Sorts behind all ids."""


class LetterFilter(NamedTuple):
    """Conditions for dead letters; all given conditions hold.

    Attributes:
        endpoint: its id; empty for all endpoints.
        reason: part of the reason, in upper or lower case.
        since_ms, until_ms: the time of death is in [since_ms, until_ms), milliseconds since the epoch.
    """

    endpoint: str = ""
    reason: str = ""
    since_ms: int = 0
    until_ms: int = (1 << 62) // 1000

    def fits(self, dead: DeadEntry) -> bool:
        return self.since_ms <= dead.dead_ms < self.until_ms and self.reason.lower() in dead.reason.lower()


class DeadDelivery(NamedTuple):
    """A dead letter and its endpoint's id."""

    endpoint: str
    letter: Letter

    @property
    def id(self) -> str:
        """The id of the delivery."""
        return f"{self.endpoint}:{self.letter.id}"


class _Place(NamedTuple):
    """A place in the list: endpoint, group, time of death, and message of the last letter looked at."""

    endpoint: str
    group: int
    dead_ms: int
    message: str


class LetterService:
    """Works on dead letters. All methods raise `DatabaseUnavailable` and `StoreUnavailable`."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._rows = Deliveries(parts.environment)

    async def page(self, tenant: str, wanted: LetterFilter, limit: int, cursor: str = "") -> Page[DeadDelivery]:
        """Return dead letters by endpoint, the oldest first in each group of an endpoint.

        A page may hold fewer than `limit`, although more follow.

        Raises:
            NotFound: the tenant has no such endpoint.
            InvalidCursor: the cursor is not one of this list with this filter.
        """
        of = f"letters {tenant} {tuple(wanted)}"
        place = _place(of, cursor)
        found: list[DeadDelivery] = []
        looked = 0
        async for topic, group, dead in self._letters(tenant, wanted, place):
            if len(found) == limit or looked == LOOKED_AT:
                assert place is not None, "a letter was looked at"
                return Page(found, cursors.encode((cursors.mark(of), *place)))
            endpoint = topic.name.removeprefix(topic_of(tenant, ""))
            place, looked = _Place(endpoint, group, dead.dead_ms, dead.id), looked + 1
            if wanted.fits(dead):
                found.append(DeadDelivery(endpoint, dead_letters.letter_of(topic, group, dead)))
        return Page(found, "")

    async def count(self, tenant: str, endpoint: str = "") -> list[EndpointDead]:
        """Return the number of dead letters of each endpoint that has any, of the first `MOST_ENDPOINTS`.

        Raises:
            NotFound: the tenant has no such endpoint.
        """
        topics = [topic async for some in self._topics(tenant, endpoint, "", MOST_ENDPOINTS) for topic in some]
        counts = await lag.of_slots(self._parts.app.store, topics, self._parts.now_us() // 1000)
        return [EndpointDead(c.topic.removeprefix(topic_of(tenant, "")), c.dead) for c in counts if c.dead]

    async def replay(self, tenant: str, ids: Collection[str], actor: str) -> list[str]:
        """Put named dead letters back, each in one step; return the ids of those that were there.

        The search goes through all dead letters of the endpoints named; for many letters, create a replay.

        Args:
            ids: of deliveries, at most `MOST_IDS`.

        Raises:
            NotFound: an id is not one of a delivery, or names an endpoint that the tenant does not have.
            Invalid: there are too many ids, or none.
        """
        _check_number(ids)
        by_endpoint: dict[str, set[str]] = {}
        for text in ids:
            named = delivery_id(text)
            by_endpoint.setdefault(named.endpoint, set()).add(named.message)
        done: list[str] = []
        for endpoint, messages in by_endpoint.items():
            async for topics in self._topics(tenant, endpoint, "", 1):
                for topic in topics:
                    done += [f"{endpoint}:{id_}" for id_ in await self._replay(tenant, topic, messages, actor)]
        return done

    async def purge(self, tenant: str, wanted: LetterFilter, ids: Collection[str], actor: str) -> Purged:
        """Throw dead letters away for good, at most `MOST_PURGED`. Their deliveries stay dead.

        Args:
            wanted: conditions; `ids`, an endpoint, a reason or a time is needed, so that nobody purges all letters by
                mistake.
            ids: of deliveries, at most `MOST_IDS`; empty for all that fit.

        Raises:
            Invalid: nothing selects; NotFound: the tenant has no such endpoint.
        """
        if not ids and wanted == LetterFilter():
            raise Invalid("invalid_request", "say which letters: ids, an endpoint, a reason or a time", "")
        if ids:
            _check_number(ids)
        named = {delivery_id(text) for text in ids}
        n, looked = 0, 0
        batch: list[LaneSettle] = []
        async for topic, _, dead in self._letters(tenant, wanted, None):
            looked += 1
            endpoint = topic.name.removeprefix(topic_of(tenant, ""))
            if wanted.fits(dead) and (not named or (endpoint, message.label(dead.id)) in named):
                batch.append(LaneSettle(dead.lane, dead.id, LaneVerdict.PURGE, for_good=True))
            if len(batch) == CHUNK:
                n += await self._purged(batch)
                batch = []
            if n + len(batch) >= MOST_PURGED:
                break
        n += await self._purged(batch)
        await self._parts.write(
            lambda c: self._parts.audit(
                *(c, actor, "dead_letters.purged", wanted.endpoint), tenant=tenant, changes={"number": n}
            )
        )
        return Purged(n, n >= MOST_PURGED)

    # ------------------------------------------------------------------------------------------------------- details

    async def _purged(self, batch: list[LaneSettle]) -> int:
        if not batch:
            return 0
        return sum(done is True for done in served(await self._parts.app.store.lanes.settle(batch)))

    async def _replay(self, tenant: str, topic: Topic, ids: Collection[str], actor: str) -> list[str]:
        """Put letters of one endpoint back; return the ids of those that were there."""
        app, wanted = self._parts.app, Selection(ids=frozenset(ids))
        found = [letter.id async for letter in dead_letters.find(app.store, topic, wanted)]
        if found:
            await dead_letters.replay(
                app.store, topic, Selection(ids=frozenset(found)), trail=app.trail, clock=app.clock
            )
            await self._revive(tenant, topic, found, actor)
        return found

    async def _revive(self, tenant: str, topic: Topic, ids: list[str], actor: str) -> None:
        """Show the deliveries of letters that were put back as pending."""

        def write(c: sa.Connection) -> None:
            rows = self._rows.some(c, topic.name, ids)
            self._rows.wait_again(c, [row for row in rows if row.state == deliveries.DEAD])
            changes = {"number": len(ids)}
            self._parts.audit(c, actor, "dead_letters.replayed", topic.name, tenant=tenant, changes=changes)

        await self._parts.write(write)

    async def _topics(self, tenant: str, endpoint: str, first: str, most: int) -> AsyncIterator[list[Topic]]:
        """Yield the topics of the tenant's endpoints by id, some at a time; or that of one endpoint.

        Args:
            first: id of the endpoint to begin with; empty for the first one.
            most: about how many endpoints to look at.
        """
        if endpoint:
            await self._parts.check_endpoint(tenant, endpoint)
            yield list((await self._parts.topics({topic_of(tenant, endpoint)})).values())
            return
        after, seen = first[:-1], 0
        while seen < most and (ids := await self._parts.endpoints(tenant, after)):
            topics = await self._parts.topics({topic_of(tenant, id_) for id_ in ids})
            found = [topics.get(topic_of(tenant, id_)) for id_ in ids if id_ >= first]
            yield [topic for topic in found if topic is not None]
            after, seen = ids[-1], seen + len(ids)

    async def _letters(
        self, tenant: str, wanted: LetterFilter, place: _Place | None
    ) -> AsyncIterator[tuple[Topic, int, DeadEntry]]:
        """Yield the letters behind a place, whether they fit or not, up to the end of the time."""
        first = _Place("", 0, 0, "") if place is None else place
        begin = (max(0, wanted.since_ms - 1), LAST) if wanted.since_ms else (0, "")
        async for topics in self._topics(tenant, wanted.endpoint, first.endpoint, ALL):
            for topic, group in await self._with_letters(topics):
                here = topic.name == topic_of(tenant, first.endpoint)
                if here and group < first.group:
                    continue
                after = (first.dead_ms, first.message) if here and group == first.group else begin
                async for dead in self._of_group(topic.group(group), after, wanted.until_ms):
                    yield topic, group, dead

    async def _with_letters(self, topics: Sequence[Topic]) -> list[tuple[Topic, int]]:
        """Return the groups that have dead letters; one call to the store for all."""
        places = [(topic, group) for topic in topics for group in range(topic.groups)]
        if not places:
            return []
        lanes = served(await self._parts.app.store.lanes.inspect([topic.group(group) for topic, group in places]))
        return [place for place, lane in zip(places, lanes, strict=True) if lane.dead]

    async def _of_group(self, lane: str, after: tuple[int, str], until_ms: int) -> AsyncIterator[DeadEntry]:
        while page := await self._parts.app.store.lanes.dead(lane, after, CHUNK):
            after = (page[-1].dead_ms, page[-1].id)
            for dead in page:
                if dead.dead_ms >= until_ms:
                    return
                yield dead


def _place(of: str, cursor: str) -> _Place | None:
    if not cursor:
        return None
    endpoint, group, dead_ms, id_ = cursors.decode_marked(of, cursor, str, int, int, str)
    return _Place(str(endpoint), int(group), int(dead_ms), str(id_))


def _check_number(ids: Collection[str]) -> None:
    if not 1 <= len(ids) <= MOST_IDS:
        raise Invalid("invalid_request", f"{len(ids)} ids; give 1 to {MOST_IDS}", "/ids")
