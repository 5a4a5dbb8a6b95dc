"""The deliveries: one row for each message and endpoint.

Lists are read in pages along an index, so the cost of a page does not depend on the size of the table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa

from emq_push.records import rows, tables
from emq_push.records.endpoints import topic_of

PENDING: Final = "pending"
DELIVERED: Final = "delivered"
DEAD: Final = "dead"
CANCELLED: Final = "cancelled"

STATES: Final = (PENDING, DELIVERED, DEAD, CANCELLED)
"""The states of a row. The service shows a pending delivery in a finer state; see `emq_push.service.states`."""

MOST_COUNTED = 100_000
"""Most rows that one count looks at, so that no count holds up the database."""

DUE_LOOK = 500
"""Most pending deliveries of an endpoint to look at in the search for due ones."""

NewDelivery = tuple[str, str, str, int, int]
"""Topic, message, tenant, created_us, next_us."""

_t = tables.deliveries
_m = tables.messages
_ADD = rows.insert(
    _t,
    (
        *("topic", "message", "tenant", "created_us", "next_us"),
        *("state", "attempts", "status", "reason", "settled_us"),
    ),
)
_COLUMNS = [column for column in _t.columns if column.name != "environment"]


class Delivery(msgspec.Struct, frozen=True):
    """A message on its way to one endpoint. Times are microseconds since the epoch, 0 for none.

    Attributes:
        topic: the endpoint's topic.
        created_us: when the message was accepted.
        state: one of `STATES`.
        attempts: attempts made.
        status: HTTP status of the last answer; 0 without one.
        reason: why the last attempt failed.
        next_us: when it is due again.
        settled_us: when it was delivered, died, or was cancelled.
        event_type: of its message; empty once the message's row is gone.
    """

    topic: str
    message: str
    tenant: str
    created_us: int
    state: str
    attempts: int = 0
    status: int = 0
    reason: str = ""
    next_us: int = 0
    settled_us: int = 0
    event_type: str = ""

    @property
    def endpoint(self) -> str:
        """The endpoint's id."""
        return self.topic.removeprefix(topic_of(self.tenant, ""))

    @property
    def id(self) -> str:
        return f"{self.endpoint}:{self.message}"

    @property
    def place(self) -> Place:
        """Its place in lists."""
        return Place(self.created_us, self.topic, self.message)


class Place(NamedTuple):
    """The place of a delivery in lists, which are in the order of these values."""

    created_us: int
    topic: str
    message: str


class Selection(NamedTuple):
    """Conditions that an index serves; all given conditions hold.

    Attributes:
        endpoint: its id; empty for all endpoints of the tenant.
        states: states of rows; empty for all.
        since_us, until_us: `created_us` is in [since_us, until_us).
    """

    endpoint: str = ""
    states: tuple[str, ...] = ()
    since_us: int = 0
    until_us: int = 1 << 62


class Count(NamedTuple):
    """Attributes:
    exact: False if there are more than `n`.
    """

    n: int
    exact: bool


class Deliveries(rows.Rows):
    """The deliveries."""

    table = _t

    def get(self, connection: sa.Connection, tenant: str, endpoint: str, message: str) -> Delivery | None:
        """Return one delivery of the tenant; None if the tenant has none of that id."""
        where = (_t.c.topic == topic_of(tenant, endpoint), _t.c.message == message, _t.c.tenant == tenant)
        found = self._select(connection, sa.select(*_COLUMNS).where(self._mine, *where))
        return found[0] if found else None

    def some(self, connection: sa.Connection, topic: str, messages: Sequence[str]) -> list[Delivery]:
        """Return those of the messages' deliveries to one endpoint that exist; at most `IDS_AT_ONCE` messages."""
        query = sa.select(*_COLUMNS).where(self._mine, _t.c.topic == topic, _t.c.message.in_(messages))
        return self._select(connection, query)

    def of_message(
        self, connection: sa.Connection, tenant: str, message: str, *, after: str = "", limit: int = 100
    ) -> list[Delivery]:
        """Return the deliveries of one message by topic, beginning behind `after`."""
        where = (self._mine, _t.c.tenant == tenant, _t.c.message == message, _t.c.topic > after)
        query = sa.select(*_COLUMNS).where(*where).order_by(_t.c.topic).limit(limit)
        return self._select(connection, query)

    def of_key(
        self,
        connection: sa.Connection,
        tenant: str,
        key: str,
        selection: Selection,
        *,
        after: Place | None = None,
        limit: int = 100,
    ) -> list[Delivery]:
        """Return the next deliveries of the messages of a key, the latest message first, along the index of keys.

        Args:
            selection: of which the times alone count.
            after: the place of the last delivery that the caller has; None to begin.
        """
        place = (_m.c.created_us, _m.c.message, _t.c.topic)
        its = (self._of(_t, tenant), _t.c.message == _m.c.message)
        where = [self._of(_m, tenant), _m.c.key == key]
        where += [_m.c.created_us >= selection.since_us, _m.c.created_us < selection.until_us]
        if after is not None:
            there = [sa.literal(value) for value in (after.created_us, after.message, after.topic)]
            where.append(sa.tuple_(*place[:2]) <= sa.tuple_(*there[:2]))  # where the index begins
            where.append(sa.tuple_(*place) < sa.tuple_(*there))
        query = sa.select(*_COLUMNS).select_from(sa.join(_m, _t, sa.and_(*its))).where(*where)
        return self._select(connection, query.order_by(*(column.desc() for column in place)).limit(limit))

    def read(
        self,
        connection: sa.Connection,
        tenant: str,
        selection: Selection,
        *,
        after: Place | None = None,
        limit: int = 100,
        newest_first: bool = True,
    ) -> list[Delivery]:
        """Return the next selected deliveries, in the order of their creation.

        Args:
            after: the place of the last delivery that the caller has; None to begin.
            limit: most deliveries.
        """
        key: tuple[sa.Column[Any], ...] = _KEY
        place: tuple[int | str, ...] | None = after
        if selection.endpoint:  # the index of endpoints has the topic before all else
            key, place = (_t.c.created_us, _t.c.message), None if after is None else (after[0], after[2])
        branches = []
        for conditions in self._branches(tenant, selection):
            branch = sa.select(*_COLUMNS).where(*conditions)
            if place is not None:
                there = sa.tuple_(*map(sa.literal, place))
                branch = branch.where(sa.tuple_(*key) < there if newest_first else sa.tuple_(*key) > there)
            branches.append(branch.order_by(*(c.desc() if newest_first else c.asc() for c in key)).limit(limit))
        if len(branches) == 1:
            return self._select(connection, branches[0])
        both = sa.union_all(*(sa.select(branch.subquery()) for branch in branches)).subquery()
        order = [both.c[column.name].desc() if newest_first else both.c[column.name].asc() for column in key]
        return self._select(connection, sa.select(both).order_by(*order).limit(limit))

    def count(
        self,
        connection: sa.Connection,
        tenant: str,
        selection: Selection,
        event_types: Sequence[str] = (),
        most: int = MOST_COUNTED,
    ) -> Count:
        """Count selected deliveries; looks at no more than `most` rows, and one more for each state.

        Args:
            event_types: as for `fits`.
        """
        parts = [
            sa.select(sa.select(_t.c.message).where(*conditions).limit(most + 1).subquery())
            for conditions in self._branches(tenant, selection)
        ]
        some = (sa.union_all(*parts) if len(parts) > 1 else parts[0]).subquery()
        seen = int(connection.execute(sa.select(sa.func.count()).select_from(some)).scalar_one())
        if not event_types:
            return Count(min(seen, most), seen <= most)
        wanted = sa.or_(*(_like(_m.c.event_type, pattern) for pattern in event_types))
        here = (self._of(_m, tenant), _m.c.message == some.c.message)
        query = sa.select(sa.func.count()).select_from(some.join(_m, sa.and_(*here, wanted)))
        return Count(min(int(connection.execute(query).scalar_one()), most), seen <= most)

    def oldest_pending(self, connection: sa.Connection, topics: Sequence[str]) -> dict[str, int]:
        """Return for each topic with pending deliveries when its oldest one was created; one look-up for each."""
        first = (
            sa.select(_t.c.created_us)
            .where(self._mine, _t.c.topic == sa.bindparam("of"), _t.c.state == PENDING)
            .order_by(_t.c.created_us)
            .limit(1)
        )
        found = ((topic, connection.execute(first, {"of": topic}).scalar()) for topic in topics)
        return {topic: created_us for topic, created_us in found if created_us is not None}

    def pending_of(
        self, connection: sa.Connection, topic: str, before_us: int, *, after: Place | None = None, limit: int = 100
    ) -> list[Delivery]:
        """Return pending deliveries of a topic that were created before a time, the oldest first."""
        where = [self._mine, _t.c.topic == topic, _t.c.state == PENDING, _t.c.created_us < before_us]
        if after is not None:
            place = sa.tuple_(sa.literal(after.created_us), sa.literal(after.message))
            where.append(sa.tuple_(_t.c.created_us, _t.c.message) > place)
        query = sa.select(*_COLUMNS).where(*where).order_by(_t.c.created_us, _t.c.message).limit(limit)
        return self._select(connection, query)

    def last_due(self, connection: sa.Connection, numbers: Mapping[str, int], now_us: int) -> dict[str, Place]:
        """Return the place of each topic's n-th pending delivery that is due, or of the last one if there are fewer.

        Args:
            numbers: n for each topic; each costs n rows, and up to `DUE_LOOK` that are not due.
        """
        found = {}
        for topic, n in numbers.items():
            conditions = (self._mine, _t.c.topic == topic, _t.c.state == PENDING)
            query = sa.select(_t.c.created_us, _t.c.message, _t.c.next_us).where(*conditions)
            first = query.order_by(_t.c.created_us, _t.c.message).limit(n + DUE_LOOK)
            due = [row for row in connection.execute(first) if row.next_us <= now_us][:n]
            if due:
                found[topic] = Place(due[-1].created_us, topic, due[-1].message)
        return found

    def oldest_due_us(self, connection: sa.Connection, topics: Sequence[str], now_us: int) -> dict[str, int]:
        """Return for each topic when the oldest pending delivery that is due was created.

        Looks at the oldest `DUE_LOOK` pending ones of each topic; leaves out a topic if none of these is due.
        """
        places = self.last_due(connection, dict.fromkeys(topics, 1), now_us)
        return {topic: place.created_us for topic, place in places.items()}

    def topics_after(self, connection: sa.Connection, topic: str, limit: int) -> list[str]:
        """Return the next topics that have deliveries, by name; one look-up for each, however many they have."""
        return rows.topics_after(connection, _t, self._environment, topic, limit)

    # ------------------------------------------------------------------------------------------------------- changes
    # Hosts change rows, too, by what became of each attempt: `deliveries_follow.sql`.

    def add(self, connection: sa.Connection, new: Sequence[NewDelivery]) -> None:
        """Write new deliveries, which are pending."""
        if new:
            own = [(self._environment, *row, PENDING, 0, 0, "", 0) for row in new]
            connection.exec_driver_sql(_ADD[connection.dialect.name], own)

    def end(
        self,
        connection: sa.Connection,
        topic: str,
        state: str,
        reason: str,
        now_us: int,
        messages: Sequence[str] | None = None,
    ) -> None:
        """End the deliveries to an endpoint that are still pending, whatever has happened to them.

        Args:
            messages: of these messages alone; None for all.
        """
        here = (self._mine, _t.c.topic == topic, _t.c.state == PENDING)
        change = sa.update(_t).where(*here).values(state=state, reason=reason, next_us=0, settled_us=now_us)
        if messages is None:
            connection.execute(change)
            return
        for some in rows.chunks(messages):
            connection.execute(change.where(_t.c.message.in_(some)))

    def end_as_seen(self, connection: sa.Connection, row: Delivery, state: str, reason: str, now_us: int) -> bool:
        """End a delivery; return False if it has changed since it was read, and is left as it is."""
        seen = (_t.c.state == row.state, _t.c.attempts == row.attempts, _t.c.settled_us == row.settled_us)
        here = (self._mine, _t.c.topic == row.topic, _t.c.message == row.message, _t.c.next_us == row.next_us)
        change = sa.update(_t).where(*here, *seen).values(state=state, reason=reason, next_us=0, settled_us=now_us)
        return bool(connection.execute(change).rowcount)

    def wait_again(self, connection: sa.Connection, over: Sequence[Delivery]) -> list[Delivery]:
        """Let deliveries wait again, without attempts, an answer, and a time; return those that were still over.

        One statement for those of an endpoint in one state, at most `IDS_AT_ONCE`. A delivery that has another end now
        than when it was read, or none, stays as it is.
        """
        groups: dict[tuple[str, str], list[tuple[str, int]]] = {}
        for row in over:
            groups.setdefault((row.topic, row.state), []).append((row.message, row.settled_us))
        values = {"state": PENDING, "reason": "", "attempts": 0, "status": 0, "next_us": 0, "settled_us": 0}
        moved: set[tuple[str, str]] = set()
        for (topic, state), ends in groups.items():
            for some in rows.chunks(ends):
                here = (self._mine, _t.c.topic == topic, _t.c.message.in_([message for message, _ in some]))
                seen = (_t.c.state == state, sa.tuple_(_t.c.message, _t.c.settled_us).in_(some))
                query = sa.update(_t).where(*here, *seen).values(**values).returning(_t.c.message)
                moved.update((topic, str(id_)) for id_ in connection.execute(query).scalars())
        return [row for row in over if (row.topic, row.message) in moved]

    def restore(self, connection: sa.Connection, row: Delivery) -> None:
        """Set a delivery back to what it was."""
        names = ("state", "attempts", "status", "reason", "next_us", "settled_us")
        values = {name: getattr(row, name) for name in names}
        here = (self._mine, _t.c.topic == row.topic, _t.c.message == row.message)
        connection.execute(sa.update(_t).where(*here).values(**values))

    # ------------------------------------------------------------------------------------------------------- details

    def _branches(self, tenant: str, selection: Selection) -> list[list[sa.ColumnElement[bool]]]:
        """Return the conditions of the index scans that together give the selected rows.

        The index of endpoints leads with the state, so that an endpoint's list is a scan for each state.
        """
        scope = [self._mine, _t.c.created_us >= selection.since_us, _t.c.created_us < selection.until_us]
        if selection.endpoint:
            scope.append(_t.c.topic == topic_of(tenant, selection.endpoint))
        else:
            scope.append(_t.c.tenant == tenant)
        states = selection.states or (STATES if selection.endpoint else ())
        return [[*scope, _t.c.state == state] for state in states] or [scope]

    def _select(self, connection: sa.Connection, query: sa.Select[Any]) -> list[Delivery]:
        found = connection.execute(query).all()
        types = self._event_types(connection, {(row.tenant, row.message) for row in found})
        return [Delivery(**row._mapping, event_type=types.get((row.tenant, row.message), "")) for row in found]

    def _event_types(
        self, connection: sa.Connection, messages: Collection[tuple[str, str]]
    ) -> dict[tuple[str, str], str]:
        found = {}
        for tenant in {tenant for tenant, _ in messages}:
            ids = [message for of, message in messages if of == tenant]
            for some in rows.chunks(ids):
                query = sa.select(_m.c.message, _m.c.event_type).where(self._of(_m, tenant), _m.c.message.in_(some))
                found.update({(tenant, str(message)): str(type_) for message, type_ in connection.execute(query)})
        return found


def fits(event_type: str, patterns: Sequence[str]) -> bool:
    """Return True if one of the patterns stands for the event type, or if there are none.

    A trailing `*` stands for any ending, also for none.
    """
    return not patterns or any(event_type.startswith(p[:-1]) if p.endswith("*") else event_type == p for p in patterns)


def _like(column: sa.ColumnElement[str], pattern: str) -> sa.ColumnElement[bool]:
    if not pattern.endswith("*"):
        return column == pattern
    # Not LIKE, which takes no notice of case on SQLite.
    return sa.func.substr(column, 1, len(pattern) - 1) == pattern[:-1]


_KEY = (_t.c.created_us, _t.c.topic, _t.c.message)
