"""The outbox: a table beside the user's own, and messages that are inserted into it within the user's transaction."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import json
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import sqlalchemy as sa
from sqlalchemy import orm

from emq.app import App
from emq.calls import content_types, encoding
from emq.calls.encoding import Payload
from emq.producer.checks import checked_ids, ttl_us
from emq.runtime import errors, inputs
from emq.topics.model import MAX_DELAY_S
from emq_outbox.relay import PAGE, POLL_S, Relay

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession  # needs greenlet

Session: TypeAlias = Union[orm.Session, "orm.scoped_session[Any]", "AsyncSession", sa.Connection]
"""The user's transaction."""


class Outbox:
    """Messages that are published if, and only if, the user's transaction commits.

    Args:
        metadata: the user's own, such as `Base.metadata`; the table joins it, so that `create_all` and Alembic see it.
        name: name of the table.

    Attributes:
        table: columns are id (the order), message_id, topic, payload, options (JSON), error (why it was refused).
    """

    def __init__(self, metadata: sa.MetaData, name: str = "emq_outbox") -> None:
        self.table = _table(metadata, name)
        self._row: type[Any] = type("OutboxRow", (), {})
        orm.registry(metadata=metadata).map_imperatively(self._row, self.table)
        self._wakers: set[Callable[[], None]] = set()
        self._turn = threading.Lock()

    def publish(
        self,
        session: Session,
        topic: str,
        payload: Payload,
        *,
        key: str | None = None,
        priority: str | float | None = None,
        headers: Mapping[str, str] | None = None,
        delay_ms: float | None = None,
        at: datetime.datetime | float | None = None,
        ttl_s: float | None = None,
        time_range_ms: int | None = None,
        merge_key: bytes | str | None = None,
        message_id: str | None = None,
        content_type: str | None = None,
    ) -> str:
        """Insert a message into the outbox, in the transaction of `session`; return its id. A relay publishes it.

        Nothing to await, also with an `AsyncSession`: the row goes to the database with the session's other changes. On
        an `AsyncConnection` write `await connection.run_sync(outbox.publish, topic, payload)`.

        Args:
            session: a `Session`, an `AsyncSession`, or a `Connection` of SQLAlchemy.
            payload: bytes, text, or an object, as for `App.publish`.
            delay_ms: from now, by the clock of this machine.
            ttl_s: begins when the relay publishes.
            message_id: as for `App.publish`; the relay publishes every row under its id, so that a topic with
                `dedupe_s` stores the message once.
            content_type: as for `App.publish`; None encodes objects as JSON.

            The others are as for `App.publish`.

        Raises:
            InvalidMessage: a value is of a wrong type, or no topic could take it. The relay finds other mistakes, such
                as an unknown topic, and marks the row.
        """
        payload, headers = encoding.encoded(payload, headers, content_type, content_types.JSON)
        [id_] = checked_ids([uuid.uuid4().hex if message_id is None else message_id])
        options: dict[str, Any] = {
            "key": None if key is None else inputs.text("key", key),
            "priority": _priority(priority),
            "headers": inputs.headers(headers),
            "at": _start_s(delay_ms, at),
            "ttl_s": None if ttl_s is None else ttl_us(ttl_s) / 1e6,
            "time_range_ms": None if time_range_ms is None else inputs.number("time_range_ms", time_range_ms),
        }
        if isinstance(merge_key, bytes):
            options["merge_key_base64"] = base64.b64encode(merge_key).decode()
        elif merge_key is not None:
            options["merge_key"] = inputs.text("merge_key", merge_key)
        values = {
            "message_id": _storable("message id", id_),
            "topic": _storable("topic", inputs.text("topic", topic)),
            "payload": inputs.text("payload", payload).encode() if isinstance(payload, str) else bytes(payload),
            "options": json.dumps({name: value for name, value in options.items() if value is not None}),
        }
        self._insert(session, values)
        return id_

    def _insert(self, session: Any, values: dict[str, Any]) -> None:
        if isinstance(session, sa.Connection):
            session.execute(self.table.insert(), values)
            return
        if callable(getattr(session, "registry", None)):  # a scoped_session or an async_scoped_session
            session = session.registry()
        session = getattr(session, "sync_session", session)  # of an AsyncSession
        if not isinstance(session, orm.Session):
            raise errors.InvalidSettings(
                f"the outbox cannot insert through {type(session).__name__}; give a Session, an AsyncSession or a "
                "Connection of SQLAlchemy (for an AsyncConnection: `await connection.run_sync(outbox.publish, ...)`)"
            )
        session.add(self._row(**values))
        if self._wakers and not sa.event.contains(session, "after_commit", self._committed):
            sa.event.listen(session, "after_commit", self._committed)

    def _committed(self, _session: orm.Session) -> None:
        for wake in tuple(self._wakers):
            wake()

    @contextlib.asynccontextmanager
    async def relay(
        self, app: App, engine: sa.Engine | AsyncEngine, *, poll_s: float = POLL_S, page: int = PAGE
    ) -> AsyncIterator[Relay]:
        """Publish the rows of committed transactions for the length of a block, in the order of their insertion.

        Any number of processes may run a relay; one of them at a time publishes. A row is deleted after it was
        published, so a relay that dies in between publishes it again, under the same id.

        Args:
            app: an open app; the messages go where it publishes.
            engine: of the database with the outbox; SQLite or PostgreSQL.
            poll_s: seconds between looks at the table. A commit of a `Session` in this process is seen at once.
            page: most rows in one step, 1 to 10,000.

        Raises:
            InvalidSettings: the database is neither SQLite nor PostgreSQL, or is in the memory of each thread; or an
                argument is out of range.
        """
        relay = Relay(self.table, self._turn, app, engine, poll_s, page)
        self._wakers.add(relay.wake)
        task = asyncio.create_task(relay.run(), name="emq outbox relay")
        try:
            yield relay
        finally:
            self._wakers.discard(relay.wake)
            await relay.stop(task)


def _table(metadata: sa.MetaData, name: str) -> sa.Table:
    table = sa.Table(
        name,
        metadata,
        # SQLite numbers rows by itself in an INTEGER column only.
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("message_id", sa.Text, nullable=False),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
        sa.Column("options", sa.Text, nullable=False, comment="JSON: key, priority, headers, at, ..."),
        sa.Column("error", sa.Text, comment="why the message was refused; NULL while it waits"),
        sqlite_autoincrement=True,  # else SQLite gives the number of a deleted row again
    )
    waiting = table.c.error.is_(None)
    sa.Index(f"{name}_waiting", table.c.id, postgresql_where=waiting, sqlite_where=waiting)
    return table


def _start_s(delay_ms: float | None, at: datetime.datetime | float | None) -> float | None:
    """Return the time before which the message must not start, in seconds since the epoch."""
    if delay_ms is not None and at is not None:
        raise errors.InvalidMessage("give delay_ms or at, not both")
    if delay_ms is not None:
        if not 0 <= inputs.number("delay_ms", delay_ms) <= MAX_DELAY_S * 1000:
            raise errors.InvalidMessage(f"delay_ms {delay_ms:g} must be from 0 to ten years in milliseconds")
        return time.time() + delay_ms / 1000
    if isinstance(at, datetime.datetime):
        if at.tzinfo is None:
            raise errors.InvalidMessage(f"at {at} has no time zone; give one, such as tzinfo=datetime.UTC")
        return at.timestamp()
    return None if at is None else inputs.number("at", at)


def _priority(priority: object) -> str | float | None:
    if priority is None or isinstance(priority, str):
        return None if priority is None else inputs.text("priority", priority)
    return inputs.number("priority", priority)


def _storable(name: str, text: str) -> str:
    """Refuse a text for which PostgreSQL would refuse the user's whole transaction."""
    if "\0" in text:
        raise errors.InvalidMessage(f"{name} {inputs.shown(text)} holds a NUL, which no column of PostgreSQL can hold")
    return text
