"""The logs of polling endpoints: messages that wait until the endpoint's consumer has fetched and acknowledged them.

A host places a message in the log at the end of the way that others go to an HTTP endpoint. Numbers are given under the
lock of the endpoint's row, so no number appears below one that a consumer has seen.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from emq_push.records import rows, tables
from emq_push.records.deliveries import DELIVERED, PENDING

MOST_BYTES = 4 << 20
"""Most bytes of payloads in one answer; a single payload may have more."""

_log, _ends, _messages, _deliveries = tables.log, tables.endpoints, tables.messages, tables.deliveries


class Entry(NamedTuple):
    """A message in the log of an endpoint."""

    number: int
    message: str


class Entries(NamedTuple):
    """Attributes:
    rows: in the order of their numbers.
    end: the last number of the log; later entries have higher ones.
    """

    rows: Sequence[Entry]
    end: int


class State(NamedTuple):
    """The state of a log.

    Attributes:
        waiting: entries, at most.
        oldest_us: when the oldest one was placed; 0 if there is none.
    """

    waiting: int
    oldest_us: int


class PollLog(rows.Rows):
    """The entries of all logs. An entry goes when it is acknowledged."""

    table = _log

    def state(self, connection: sa.Connection, topic: str) -> State | None:
        """Return the state of a log; None if the topic is not that of an endpoint of the service."""
        end = connection.execute(sa.select(_ends.c.log_end).where(*self._endpoint(topic))).scalar()
        if end is None:
            return None
        oldest = sa.select(_log.c.number, _log.c.placed_us).where(*self._of_topic(topic)).order_by(_log.c.number)
        first = connection.execute(oldest.limit(1)).one_or_none()
        return State(0, 0) if first is None else State(end - first.number + 1, first.placed_us)

    def place(self, connection: sa.Connection, topic: str, messages: Sequence[str], now_us: int) -> None:
        """Add messages at the end of a log; one that waits there already keeps its place.

        One that was acknowledged is left out: a host that failed after it had placed a message places it again.
        """
        moved = sa.update(_ends).where(*self._endpoint(topic)).values(log_end=_ends.c.log_end + len(messages))
        end = connection.execute(moved.returning(_ends.c.log_end)).scalar()
        if end is None:
            return  # the endpoint was deleted meanwhile
        d = _deliveries.c
        done = (d.environment == self._environment, d.topic == topic, d.message.in_(messages), d.state == DELIVERED)
        taken = set(connection.execute(sa.select(d.message).where(*done)).scalars())
        mine = {"environment": self._environment, "topic": topic, "placed_us": now_us}
        first = end - len(messages) + 1
        new = [
            {**mine, "number": number, "message": message}
            for number, message in enumerate(messages, first)
            if message not in taken
        ]
        if new:
            rows.add_missing(connection, _log, new)

    def read(self, connection: sa.Connection, tenant: str, topic: str, after: int, limit: int) -> Entries:
        """Return the next entries behind a number, as many as one answer takes.

        Messages that were forgotten meanwhile are left out.
        """
        end = connection.execute(sa.select(_ends.c.log_end).where(*self._endpoint(topic))).scalar() or 0
        same = sa.and_(self._of(_messages, tenant), _messages.c.message == _log.c.message)
        columns = (_log.c.number, _log.c.message, sa.func.length(_messages.c.payload).label("size"))
        query = sa.select(*columns).select_from(_log.join(_messages, same)).where(*self._of_topic(topic))
        query = query.where(_log.c.number > after, _messages.c.payload.is_not(None))
        found: list[Entry] = []
        size = 0
        for row in connection.execute(query.order_by(_log.c.number).limit(limit)):
            size += row.size
            if found and size > MOST_BYTES:
                break
            found.append(Entry(row.number, row.message))
        return Entries(found, end)

    def ends(self, connection: sa.Connection, topics: Sequence[str]) -> dict[str, int]:
        """Return the last number of each log; at most `IDS_AT_ONCE`."""
        mine = (_ends.c.environment == self._environment, _ends.c.topic.in_(topics))
        return {
            row.topic: row.log_end for row in connection.execute(sa.select(_ends.c.topic, _ends.c.log_end).where(*mine))
        }

    def waiting(self, connection: sa.Connection, topic: str, messages: Sequence[str]) -> set[str]:
        """Return those of the messages that are in a log; at most `IDS_AT_ONCE`."""
        query = sa.select(_log.c.message).where(*self._of_topic(topic), _log.c.message.in_(messages))
        return set(connection.execute(query).scalars())

    def acknowledge(self, connection: sa.Connection, topic: str, number: int, now_us: int) -> int:
        """Settle the first entries up to a number; return how many, at most `IDS_AT_ONCE`."""
        # As `place` does: what another call settles is seen, and neither counted nor placed again.
        connection.execute(sa.select(_ends.c.log_end).where(*self._endpoint(topic)).with_for_update())
        query = sa.select(_log.c.number, _log.c.message).where(*self._of_topic(topic), _log.c.number <= number)
        found = connection.execute(query.order_by(_log.c.number).limit(rows.IDS_AT_ONCE)).all()
        if found:
            self._settle(connection, topic, [row.message for row in found], now_us)
            connection.execute(sa.delete(_log).where(*self._of_topic(topic), _log.c.number <= found[-1].number))
        return len(found)

    def drop(self, connection: sa.Connection, topic: str, messages: Collection[str]) -> set[str]:
        """Take messages out of a log; return those that were there."""
        where = (*self._of_topic(topic), _log.c.message.in_(messages))
        return set(connection.execute(sa.delete(_log).where(*where).returning(_log.c.message)).scalars())

    def delete(self, connection: sa.Connection, topic: str) -> None:
        """Delete the log of an endpoint."""
        connection.execute(sa.delete(_log).where(*self._of_topic(topic)))

    def _settle(self, connection: sa.Connection, topic: str, messages: Sequence[str], now_us: int) -> None:
        d = _deliveries.c
        mine = (d.environment == self._environment, d.topic == topic, d.message.in_(messages), d.state == PENDING)
        # The host's record of the attempt may come later, and counts then no more.
        attempts = sa.case((d.attempts > 0, d.attempts), else_=1)
        values = {"state": DELIVERED, "reason": "", "next_us": 0, "settled_us": now_us, "attempts": attempts}
        connection.execute(sa.update(_deliveries).where(*mine).values(**values))

    def _of_topic(self, topic: str) -> tuple[sa.ColumnElement[bool], ...]:
        return self._mine, _log.c.topic == topic

    def _endpoint(self, topic: str) -> tuple[sa.ColumnElement[bool], ...]:
        return _ends.c.environment == self._environment, _ends.c.topic == topic
