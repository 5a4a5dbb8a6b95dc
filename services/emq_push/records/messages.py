"""The rows of messages, read in pages, and erased.

A message that is being erased has `ERASING_US` as its end, until its row is deleted.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from emq_push.records import cursors, rows
from emq_push.records.accepted import Rest
from emq_push.records.cursors import Page
from emq_push.records.deliveries import PENDING
from emq_push.records.tables import attempts, deliveries
from emq_push.records.tables import messages as table

POSTPONED_US = 86_400_000_000
"""Microseconds (a day) until the next look at a message that still waits although its time is over."""

ERASING_US = 1
"""The end of messages that are being erased: before any other time, so that an index finds them."""

Place = tuple[str, str]
"""A message in the order of tenants and ids; a pair of empty texts comes before all."""

_rest = msgspec.json.Decoder(Rest).decode
_HEAD = (table.c.message, table.c.event_type, table.c.key, table.c.created_us, table.c.expires_us, table.c.body)


class Head(msgspec.Struct, frozen=True):
    """A message without its payload.

    Attributes:
        is_erased: the payload is gone.
    """

    id: str
    event_type: str
    created_us: int
    expires_us: int
    rest: Rest
    is_erased: bool


class Selection(msgspec.Struct, frozen=True):
    """Which messages a list has.

    Attributes:
        since_us, until_us: made at or after the one, and before the other.
        event_type: empty for all.
        key: None for all.
    """

    since_us: int = 0
    until_us: int = 1 << 62
    event_type: str = ""
    key: str | None = None


class Messages(rows.Rows):
    """The messages."""

    table = table

    def page(self, connection: sa.Connection, tenant: str, selection: Selection, limit: int, cursor: str) -> Page[Head]:
        """Return a tenant's messages, the latest first. Raises `InvalidCursor`."""
        where = [self._mine, table.c.tenant == tenant, table.c.created_us >= selection.since_us]
        where.append(table.c.created_us < selection.until_us)
        if selection.event_type:
            where.append(table.c.event_type == selection.event_type)
        if selection.key is not None:
            where.append(table.c.key == selection.key)
        query = sa.select(*_HEAD, table.c.payload.is_(None).label("erased")).where(*where)
        columns = [table.c.created_us, table.c.message]
        return cursors.read(connection, query, columns, _head, limit, cursor, newest_first=True)

    def of_key(self, connection: sa.Connection, tenant: str, key: str, after: str, limit: int) -> Sequence[str]:
        """Return ids of messages with a key, in order, beginning behind `after`."""
        where = (self._mine, table.c.tenant == tenant, table.c.key == key, table.c.message > after)
        query = sa.select(table.c.message).where(*where).order_by(table.c.message).limit(limit)
        return [str(id_) for id_ in connection.execute(query).scalars()]

    def erase(self, connection: sa.Connection, tenant: str, ids: Sequence[str]) -> int:
        """Delete the payloads of messages; return how many there were."""
        count = 0
        for some in rows.chunks(ids):
            where = (self._of(table, tenant), table.c.message.in_(some), table.c.payload.is_not(None))
            count += connection.execute(sa.update(table).where(*where).values(payload=None)).rowcount
        return count

    def has_older(self, connection: sa.Connection, tenant: str, before_us: int) -> bool:
        """Return True if `older` would return anything."""
        return bool(self.older(connection, tenant, before_us, 1))

    def older(self, connection: sa.Connection, tenant: str, before_us: int, limit: int) -> Sequence[str]:
        """Return some messages, made before a time, that have a payload and no delivery that waits."""
        of_it = (deliveries.c.message == table.c.message, deliveries.c.state == PENDING)
        waits = sa.exists(sa.select(deliveries.c.topic).where(self._of(deliveries, tenant), *of_it))
        where = (self._mine, table.c.tenant == tenant, table.c.created_us < before_us, table.c.payload.is_not(None))
        query = sa.select(table.c.message).where(*where, ~waits).order_by(table.c.created_us).limit(limit)
        return [str(id_) for id_ in connection.execute(query).scalars()]

    def mark_erasing(self, connection: sa.Connection, tenant: str, ids: Sequence[str]) -> None:
        """Note that messages are to be deleted once none of their deliveries waits; at most `IDS_AT_ONCE`."""
        where = (self._mine, table.c.tenant == tenant, table.c.message.in_(ids))
        connection.execute(sa.update(table).where(*where).values(expires_us=ERASING_US))

    def erasing(self, connection: sa.Connection, after: Place, limit: int) -> Sequence[Place]:
        """Return the next messages that are being erased, in order."""
        columns = [table.c.tenant, table.c.message]
        where = (self._mine, table.c.expires_us == ERASING_US, cursors.after(columns, after))
        query = sa.select(*columns).where(*where).order_by(*columns).limit(limit)
        return [(str(tenant), str(id_)) for tenant, id_ in connection.execute(query)]

    def by_topic(
        self, connection: sa.Connection, tenant: str, ids: Sequence[str], state: str = ""
    ) -> dict[str, list[str]]:
        """Return the messages of the deliveries of some messages by topic.

        Args:
            ids: at most `IDS_AT_ONCE`.
            state: of these deliveries; empty for any.
        """
        where = [self._of(deliveries, tenant), deliveries.c.message.in_(ids)]
        where += [deliveries.c.state == state] * bool(state)
        found: dict[str, list[str]] = {}
        for topic, message in connection.execute(sa.select(deliveries.c.topic, deliveries.c.message).where(*where)):
            found.setdefault(str(topic), []).append(str(message))
        return found

    def erase_delivered(self, connection: sa.Connection, tenant: str, since_us: int, limit: int) -> int:
        """Delete the payloads of some messages made since a time that were delivered to all their endpoints."""
        of_it = (self._of(deliveries, tenant), deliveries.c.message == table.c.message)
        its = sa.select(deliveries.c.topic).where(*of_it)
        left = (self._of(table, tenant), table.c.created_us >= since_us, table.c.payload.is_not(None))
        done = (sa.exists(its), ~sa.exists(its.where(deliveries.c.state != "delivered")))
        query = sa.select(table.c.message).where(*left, *done).order_by(table.c.created_us).limit(limit)
        return self.erase(connection, tenant, list(connection.execute(query).scalars()))

    def oldest_us(self, connection: sa.Connection, tenant: str, since_us: int) -> int | None:
        """Return when the oldest message since a time was made that still has its payload; None if there is none."""
        where = (self._of(table, tenant), table.c.created_us >= since_us, table.c.payload.is_not(None))
        query = sa.select(table.c.created_us).where(*where).order_by(table.c.created_us).limit(1)
        return connection.execute(query).scalar()

    def delete_expired(self, connection: sa.Connection, now_us: int, limit: int) -> int:
        """Delete some messages whose time is over, with their deliveries and attempts.

        A message that still waits for one of its endpoints, delayed or parked, stays for `POSTPONED_US` more.

        Returns:
            The number of messages that were deleted or stay.
        """
        query = sa.select(table.c.tenant, table.c.message).where(self._mine, table.c.expires_us < now_us)
        query = query.where(table.c.expires_us > ERASING_US)
        gone: dict[str, list[str]] = {}
        for tenant, message in connection.execute(query.order_by(table.c.expires_us).limit(limit)):
            gone.setdefault(tenant, []).append(message)
        for tenant, ids in gone.items():
            if stay := self.delete_settled(connection, tenant, ids):
                these = (self._mine, table.c.tenant == tenant, table.c.message.in_(stay))
                connection.execute(sa.update(table).where(*these).values(expires_us=now_us + POSTPONED_US))
        return sum(map(len, gone.values()))

    def waiting(self, connection: sa.Connection, tenant: str, ids: Sequence[str]) -> set[str]:
        """Return those of some messages of which a delivery waits; at most `IDS_AT_ONCE`."""
        where = (self._of(deliveries, tenant), deliveries.c.message.in_(ids), deliveries.c.state == PENDING)
        return set(connection.execute(sa.select(deliveries.c.message).where(*where)).scalars())

    def erase_settled(self, connection: sa.Connection, tenant: str, ids: Sequence[str]) -> int:
        """Delete the payloads of those of some messages of which no delivery waits; at most `IDS_AT_ONCE`."""
        stay = self.waiting(connection, tenant, ids)
        return self.erase(connection, tenant, [id_ for id_ in ids if id_ not in stay])

    def delete_settled(self, connection: sa.Connection, tenant: str, ids: Sequence[str]) -> set[str]:
        """Delete those of some messages of which no delivery waits, with deliveries and attempts; return the others.

        Args:
            ids: at most `IDS_AT_ONCE`.
        """
        stay = self.waiting(connection, tenant, ids)
        self.delete(connection, tenant, [id_ for id_ in ids if id_ not in stay])
        return stay

    def delete_some_of(self, connection: sa.Connection, tenant: str, limit: int) -> int:
        """Delete some messages of a tenant, with their deliveries and attempts; return how many."""
        query = sa.select(table.c.message).where(self._mine, table.c.tenant == tenant).limit(limit)
        ids = list(connection.execute(query).scalars())
        self.delete(connection, tenant, ids)
        return len(ids)

    def delete(self, connection: sa.Connection, tenant: str, ids: Sequence[str]) -> None:
        """Delete messages with their deliveries and attempts; at most `IDS_AT_ONCE`."""
        here = (self._of(deliveries, tenant), deliveries.c.message.in_(ids))
        for topic in connection.execute(sa.select(deliveries.c.topic).where(*here).distinct()).scalars().all():
            of_topic = (attempts.c.environment == self._environment, attempts.c.topic == topic)
            connection.execute(sa.delete(attempts).where(*of_topic, attempts.c.message.in_(ids)))
        connection.execute(sa.delete(deliveries).where(*here))
        connection.execute(sa.delete(table).where(self._mine, table.c.tenant == tenant, table.c.message.in_(ids)))


def _head(row: sa.Row[tuple[object, ...]]) -> Head:
    return Head(row.message, row.event_type, row.created_us, row.expires_us, _rest(row.body), bool(row.erased))
