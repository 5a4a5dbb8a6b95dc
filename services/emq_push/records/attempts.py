"""The attempts of deliveries, as hosts have written them."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from emq_push.records import tables

_t = tables.attempts
_COLUMNS = (
    *(_t.c.topic, _t.c.message, _t.c.started_us, _t.c.number, _t.c.took_us, _t.c.status),
    *(_t.c.outcome, _t.c.reason, _t.c.answer, _t.c.host),
)


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


class Place(NamedTuple):
    """The place of an attempt in lists of its endpoint."""

    started_us: int
    message: str


class Attempts:
    """Reads within the caller's transaction.

    Args:
        environment: "online" or "sandbox".
    """

    def __init__(self, environment: str) -> None:
        self._mine = _t.c.environment == str(environment)

    def of_delivery(
        self, connection: sa.Connection, topic: str, message: str, *, before_us: int | None = None, limit: int = 100
    ) -> list[Attempt]:
        """Return attempts of one delivery, the newest first; `before_us` is the start of the last one seen."""
        where = [self._mine, _t.c.topic == topic, _t.c.message == message]
        if before_us is not None:
            where.append(_t.c.started_us < before_us)
        query = sa.select(*_COLUMNS).where(*where).order_by(_t.c.started_us.desc()).limit(limit)
        return [Attempt(**row._mapping) for row in connection.execute(query)]

    def of_topic(
        self, connection: sa.Connection, topic: str, *, before: Place | None = None, limit: int = 100
    ) -> list[Attempt]:
        """Return attempts at one endpoint, the newest first; `before` is the place of the last one seen."""
        where = [self._mine, _t.c.topic == topic]
        if before is not None:
            where.append(sa.tuple_(_t.c.started_us, _t.c.message) < sa.tuple_(*map(sa.literal, before)))
        order = (_t.c.started_us.desc(), _t.c.message.desc())
        query = sa.select(*_COLUMNS).where(*where).order_by(*order).limit(limit)
        return [Attempt(**row._mapping) for row in connection.execute(query)]
