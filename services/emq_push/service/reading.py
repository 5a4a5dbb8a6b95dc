"""Messages, deliveries and their attempts, as the service shows them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from emq_push.records import cursors, deliveries, endpoints, messages
from emq_push.records.accepted import Accepted, Message
from emq_push.records.attempts import Attempt, Attempts
from emq_push.records.cursors import Page
from emq_push.records.deliveries import Deliveries, Delivery, Place, Selection
from emq_push.records.messages import Head, Messages
from emq_push.service import states
from emq_push.service.host_facts import HostView
from emq_push.service.parts import Parts
from emq_push.service.refusals import NotFound
from emq_push.service.states import Hold, State
from emq_push.service.tenancy import Tenancy

LOOKED_AT = 2_000
"""Most rows that one page of a filtered list looks at; then the page ends, even if it is not full."""

CHUNK = 500
"""Most rows read at a time."""

MOST_IN_FLIGHT = 500
"""Most deliveries of one endpoint that a list shows as in flight."""


class DeliveryFilter(msgspec.Struct, frozen=True):
    """The deliveries to list; all given conditions hold.

    Attributes:
        state: as shown; None for all.
        endpoint: its id; empty for all endpoints.
        event_types: as for `emq_push.records.deliveries.fits`.
        since_us, until_us: accepted in [since_us, until_us), microseconds since the epoch.
        message: id of a message; empty for all.
        status: of the last answer; 0 for all.
        key: of the message; empty for all.
    """

    state: State | None = None
    endpoint: str = ""
    event_types: tuple[str, ...] = ()
    since_us: int = 0
    until_us: int = 1 << 62
    message: str = ""
    status: int = 0
    key: str = ""

    @property
    def selection(self) -> Selection:
        """The part of the filter that an index serves."""
        state = () if self.state is None else (self.state.of_row,)
        return Selection(self.endpoint, state, self.since_us, self.until_us)

    def fits(self, shown: ShownDelivery) -> bool:
        d = shown.delivery
        return (
            (self.state is None or shown.state is self.state)
            and deliveries.fits(d.event_type, self.event_types)
            and (not self.endpoint or d.endpoint == self.endpoint)
            and self.message in ("", d.message)
            and self.status in (0, d.status)
            and self.since_us <= d.created_us < self.until_us
        )


class ShownDelivery(NamedTuple):
    """A delivery, its state now, and what holds its endpoint."""

    delivery: Delivery
    state: State
    hold: Hold


class DeliveryId(NamedTuple):
    """The id of a delivery: `<endpoint>:<message>`."""

    endpoint: str
    message: str


def unknown_delivery(id_: str) -> NotFound:
    return NotFound("unknown_delivery", f"there is no delivery {id_[:200]!r}")


def delivery_id(text: str) -> DeliveryId:
    """Take the id of a delivery apart. Raises `NotFound` for any other text."""
    endpoint, colon, message = text.partition(":")
    if not (endpoint and colon and message) or "\0" in text or "." in endpoint:
        raise unknown_delivery(text)
    return DeliveryId(endpoint, message)


class ReadingService:
    """Lists messages, deliveries and attempts. All methods raise `DatabaseUnavailable`."""

    def __init__(self, parts: Parts, hosts: HostView) -> None:
        self._parts = parts
        self._hosts = hosts
        self._rows = Deliveries(parts.environment)
        self._attempts = Attempts(parts.environment)
        self._tenants = Tenancy(parts)
        self._messages = Messages(parts.environment)
        self._accepted = Accepted(parts.environment)

    async def message(self, tenant: str, id_: str) -> Message:
        """Return a message with its payload. Raises `NotFound`."""
        found = await self._parts.read(lambda c: self._accepted.find(c, tenant, [id_]))
        if id_ not in found:
            raise NotFound("unknown_message", f"the tenant has no message {id_[:128]!r}")
        return found[id_]

    async def messages(self, tenant: str, selection: messages.Selection, limit: int, cursor: str = "") -> Page[Head]:
        """Return messages, the latest first. Raises `InvalidCursor`, `NotFound`."""

        def read(connection: sa.Connection) -> Page[Head]:
            self._tenants.existing(connection, tenant)
            return self._messages.page(connection, tenant, selection, limit, cursor)

        return await self._parts.read(read)

    async def deliveries(
        self, tenant: str, wanted: DeliveryFilter, limit: int, cursor: str = ""
    ) -> Page[ShownDelivery]:
        """Return deliveries, the newest first; those of one message by endpoint.

        A page may hold fewer than `limit`, although more follow.

        Raises:
            InvalidCursor: the cursor is not one of this list with this filter.
        """
        of = f"deliveries {tenant} {msgspec.json.encode(wanted).decode()}"
        place = _place(of, cursor)
        if wanted.message and not wanted.key:
            return await self._of_message(tenant, wanted, of, place, limit)
        found: list[ShownDelivery] = []
        looked = 0
        while len(found) < limit and looked < LOOKED_AT:
            chunk = min(CHUNK, limit + 1 if looked == 0 else CHUNK, LOOKED_AT - looked)
            read = functools.partial(self._rows.of_key, key=wanted.key) if wanted.key else self._rows.read
            which = functools.partial(read, tenant=tenant, selection=wanted.selection, after=place, limit=chunk)
            rows = await self._parts.read(which)
            for shown in await self.shown(tenant, rows):
                if len(found) == limit:
                    return Page(found, _cursor(of, place))
                looked, place = looked + 1, shown.delivery.place
                if wanted.fits(shown):
                    found.append(shown)
            if len(rows) < chunk:
                return Page(found, "")
        return Page(found, _cursor(of, place))

    async def _of_message(
        self, tenant: str, wanted: DeliveryFilter, of: str, place: Place | None, limit: int
    ) -> Page[ShownDelivery]:
        after = "" if place is None else place.topic
        rows = await self._parts.read(
            lambda c: self._rows.of_message(c, tenant, wanted.message, after=after, limit=limit + 1)
        )
        following = _cursor(of, rows[limit - 1].place) if len(rows) > limit else ""
        return Page([s for s in await self.shown(tenant, rows[:limit]) if wanted.fits(s)], following)

    async def delivery(self, tenant: str, id_: str) -> ShownDelivery:
        """Return one delivery. Raises `NotFound`."""
        endpoint, message = delivery_id(id_)
        row = await self._parts.read(lambda c: self._rows.get(c, tenant, endpoint, message))
        if row is None:
            raise unknown_delivery(id_)
        [shown] = await self.shown(tenant, [row])
        return shown

    async def attempts(self, tenant: str, id_: str, limit: int, cursor: str = "") -> Page[Attempt]:
        """Return the attempts of one delivery, the newest first. Raises `NotFound`, `InvalidCursor`."""
        row = (await self.delivery(tenant, id_)).delivery
        return await self._parts.read(lambda c: self._attempts.of_delivery(c, row.topic, row.message, limit, cursor))

    async def attempts_at(self, tenant: str, endpoint: str, limit: int, cursor: str = "") -> Page[Attempt]:
        """Return the attempts at one endpoint, the newest first. Raises `NotFound`, `InvalidCursor`."""
        await self._parts.check_endpoint(tenant, endpoint)
        topic = endpoints.topic_of(tenant, endpoint)
        return await self._parts.read(lambda c: self._attempts.of_topic(c, topic, limit, cursor))

    async def shown(self, tenant: str, rows: Sequence[Delivery]) -> list[ShownDelivery]:
        """Return the rows with their states."""
        pending = {row.topic for row in rows if row.state == deliveries.PENDING}
        if not pending:
            return [ShownDelivery(row, State(row.state), Hold("none")) for row in rows]
        facts, now_us = await self._hosts.now(), self._parts.now_us()
        topics = await self._parts.topics({tenant, *pending})
        holds = {name: states.hold_of(topics.get(name), topics.get(tenant), facts) for name in pending}
        flying = {name: min(n, MOST_IN_FLIGHT) for name in pending if (n := facts.in_flight(name))}
        last = await self._parts.read(lambda c: self._rows.last_due(c, flying, now_us)) if flying else {}

        def shown(row: Delivery) -> ShownDelivery:
            hold = holds.get(row.topic, Hold("none"))
            place = last.get(row.topic)
            # Hosts only count the messages in flight. They start the oldest first.
            in_flight = place is not None and row.next_us <= now_us and row.place <= place
            return ShownDelivery(row, states.state_of(row, hold, now_us, in_flight=in_flight), hold)

        return [shown(row) for row in rows]


def _place(of: str, cursor: str) -> Place | None:
    if not cursor:
        return None
    created_us, topic, message = cursors.decode_marked(of, cursor, int, str, str)
    return Place(int(created_us), str(topic), str(message))


def _cursor(of: str, place: Place | None) -> str:
    return "" if place is None else cursors.encode((cursors.mark(of), *place))
