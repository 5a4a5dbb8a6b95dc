"""The attempts of deliveries, as hosts have written them."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from emq_push.records import cursors, rows, tables
from emq_push.records.cursors import Page

_t = tables.attempts


class Attempt(msgspec.Struct, frozen=True):
    """One attempt to deliver a message. Times are in microseconds.

    Attributes:
        number: from 1; a message that was replayed or sent again begins at 1 again.
        status: HTTP status of the answer; 0 without one.
        outcome: delivered, retry, parked or dead.
        reason: why it failed.
        answer: the beginning of the answer's body, with its secrets masked.
        host: the EMQ host that made the attempt.
    """

    topic: str
    message: str
    started_us: int
    number: int
    took_us: int
    status: int
    outcome: str
    reason: str
    answer: str
    host: str


_COLUMNS = [_t.c[name] for name in Attempt.__struct_fields__]


class Attempts(rows.Rows):
    """The attempts."""

    table = _t

    def of_delivery(
        self, connection: sa.Connection, topic: str, message: str, limit: int, cursor: str = ""
    ) -> Page[Attempt]:
        """Return the attempts of one delivery, the newest first. Raises `InvalidCursor`."""
        query = sa.select(*_COLUMNS).where(self._mine, _t.c.topic == topic, _t.c.message == message)
        return _page(connection, query, [_t.c.started_us], limit, cursor, f"attempts {topic} {message}")

    def of_topic(self, connection: sa.Connection, topic: str, limit: int, cursor: str = "") -> Page[Attempt]:
        """Return the attempts at one endpoint, the newest first. Raises `InvalidCursor`."""
        query = sa.select(*_COLUMNS).where(self._mine, _t.c.topic == topic)
        return _page(connection, query, [_t.c.started_us, _t.c.message], limit, cursor, f"attempts {topic}")


def _page(
    connection: sa.Connection, query: sa.Select[Any], key: list[sa.Column[Any]], limit: int, cursor: str, of: str
) -> Page[Attempt]:
    return cursors.read(
        connection, query, key, lambda row: Attempt(**row._mapping), limit, cursor, newest_first=True, of=of
    )
