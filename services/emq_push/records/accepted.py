"""The rows of accepted messages: messages, idempotency keys, and batches that are not sent yet.

All statements take many rows at once, since a transaction gathers the messages of many requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import sqlalchemy as sa

from emq_push.attributes import EVENT_TYPE
from emq_push.records import rows, tables

_messages, _deliveries = tables.messages, tables.deliveries
_idempotency, _unsent = tables.idempotency, tables.unsent

MessageRow = tuple[str, str, str, str | None, int, int, bytes, str]
"""Tenant, message, event type, key, created_us, expires_us, payload, body."""


def headers_of(event_type: str, own: Mapping[str, str] | None) -> dict[str, str]:
    """Return the headers of a message as it is sent."""
    return {EVENT_TYPE: event_type, **own} if own else {EVENT_TYPE: event_type}


class Rest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a message's row.

    Attributes:
        priority: a name; None for the middle one of each endpoint.
        headers: travel with the payload.
        due_us: when its deliveries may start; 0 for at once.
        ttl_s: seconds after which an undelivered message is dead.
        channels: None for none.
    """

    content_type: str = ""
    key: str | None = None
    priority: str | None = None
    headers: dict[str, str] | None = None
    due_us: int = 0
    ttl_s: float | None = None
    channels: tuple[str, ...] | None = None


class Message(msgspec.Struct, frozen=True):
    """A message as it was accepted.

    Attributes:
        payload: None once it was erased.
        topics: of the endpoints that get it, if they were asked for.
    """

    tenant: str
    id: str
    event_type: str
    created_us: int
    expires_us: int
    payload: bytes | None
    rest: Rest
    topics: tuple[str, ...] = ()

    @property
    def headers(self) -> dict[str, str]:
        """The headers with which it is sent."""
        return headers_of(self.event_type, self.rest.headers)


class Repeat(msgspec.Struct, frozen=True):
    """The request behind a caller's Idempotency-Key.

    Attributes:
        digest: of the request.
        answer: as it was given; empty until there is one.
        created_us: when the request came.
    """

    digest: str
    answer: str
    created_us: int = 0


class Batch(msgspec.Struct, frozen=True):
    """Messages that were accepted together, and perhaps not sent.

    Attributes:
        claimed_us: when a process last began to send them; 0 if it has given up.
        messages: ids by tenant.
    """

    id: str
    claimed_us: int
    messages: dict[str, list[str]]


_rest = msgspec.json.Decoder(Rest).decode
_ids = msgspec.json.Decoder(dict[str, list[str]]).decode
_encode = msgspec.json.Encoder().encode


_ADD_MESSAGES = rows.insert(
    _messages, ("tenant", "message", "event_type", "key", "created_us", "expires_us", "payload", "body")
)


class Accepted(rows.Rows):
    """Accepted messages, and the requests that they came with."""

    table = _messages

    # ------------------------------------------------------------------------------------------------------- messages

    def add_messages(self, connection: sa.Connection, new: Sequence[MessageRow]) -> None:
        """Write new messages. Raises `IntegrityError` if one exists."""
        if new:
            own = [(self._environment, *row) for row in new]
            connection.exec_driver_sql(_ADD_MESSAGES[connection.dialect.name], own)

    def find(self, connection: sa.Connection, tenant: str, ids: Sequence[str]) -> dict[str, Message]:
        """Return those of a tenant's messages that exist, with the topics of all their deliveries."""
        return self._messages(connection, tenant, ids, ())

    def find_untried(self, connection: sa.Connection, tenant: str, ids: Sequence[str]) -> dict[str, Message]:
        """As `find`, with the topics of the pending deliveries that no host has tried yet."""
        untried = (_deliveries.c.state == "pending", _deliveries.c.attempts == 0)
        return self._messages(connection, tenant, ids, untried)

    def _messages(
        self, connection: sa.Connection, tenant: str, ids: Sequence[str], conditions: Sequence[sa.ColumnElement[bool]]
    ) -> dict[str, Message]:
        found: dict[str, Message] = {}
        for some in rows.chunks(ids):
            topics: dict[str, list[str]] = {}
            where = (self._of(_deliveries, tenant), _deliveries.c.message.in_(some), *conditions)
            pairs = sa.select(_deliveries.c.message, _deliveries.c.topic).where(*where)
            for id_, topic in connection.execute(pairs.order_by(_deliveries.c.topic)):
                topics.setdefault(id_, []).append(topic)
            for id_, message in self.find_alone(connection, tenant, some).items():
                found[id_] = msgspec.structs.replace(message, topics=tuple(topics.get(id_, ())))
        return found

    def find_alone(self, connection: sa.Connection, tenant: str, ids: Sequence[str]) -> dict[str, Message]:
        """As `find`, without topics; at most `IDS_AT_ONCE`."""
        query = sa.select(_messages).where(self._of(_messages, tenant), _messages.c.message.in_(ids))
        return {row.message: _message(row) for row in connection.execute(query)}

    def with_payload(self, connection: sa.Connection, tenant: str, ids: Sequence[str]) -> set[str]:
        """Return those of a tenant's messages whose payload is still there; at most `IDS_AT_ONCE`."""
        where = (self._of(_messages, tenant), _messages.c.message.in_(ids), _messages.c.payload.is_not(None))
        return set(connection.execute(sa.select(_messages.c.message).where(*where)).scalars())

    # ---------------------------------------------------------------------------------------------------- idempotency

    def repeats(self, connection: sa.Connection, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Repeat]:
        """Return the requests behind Idempotency-Keys, each a pair of tenant and key."""
        found: dict[tuple[str, str], Repeat] = {}
        for some in rows.chunks(keys):
            pairs = sa.tuple_(_idempotency.c.tenant, _idempotency.c.key).in_(some)
            query = sa.select(_idempotency).where(_idempotency.c.environment == self._environment, pairs)
            for row in connection.execute(query):
                found[row.tenant, row.key] = Repeat(row.digest, row.answer, row.created_us)
        return found

    def add_repeats(
        self, connection: sa.Connection, repeats: Mapping[tuple[str, str], Repeat], created_us: int
    ) -> None:
        """Write the requests behind Idempotency-Keys. Raises `IntegrityError` if one exists."""
        if repeats:
            new = [
                {"environment": self._environment, "tenant": tenant, "key": key, "created_us": created_us}
                | {"digest": repeat.digest, "answer": repeat.answer}
                for (tenant, key), repeat in repeats.items()
            ]
            connection.execute(sa.insert(_idempotency), new)

    def answer_repeat(self, connection: sa.Connection, tenant: str, key: str, answer: str) -> None:
        """Write down the answer of the request behind an Idempotency-Key."""
        where = (self._of(_idempotency, tenant), _idempotency.c.key == key)
        connection.execute(sa.update(_idempotency).where(*where).values(answer=answer))

    def drop_repeat(self, connection: sa.Connection, tenant: str, key: str) -> None:
        """Forget an Idempotency-Key: the next request with it is the first one."""
        where = (self._of(_idempotency, tenant), _idempotency.c.key == key)
        connection.execute(sa.delete(_idempotency).where(*where))

    def forget_repeats(self, connection: sa.Connection, before_us: int) -> int:
        """Delete older Idempotency-Keys; return their number."""
        where = (_idempotency.c.environment == self._environment, _idempotency.c.created_us < before_us)
        return connection.execute(sa.delete(_idempotency).where(*where)).rowcount

    # --------------------------------------------------------------------------------------------------------- unsent

    def add_batch(self, connection: sa.Connection, batch: Batch) -> None:
        """Note that messages are accepted and not sent yet."""
        values = {"id": batch.id, "claimed_us": batch.claimed_us, "body": _encode(batch.messages).decode()}
        connection.execute(sa.insert(_unsent).values(environment=self._environment, **values))

    def batches(self, connection: sa.Connection, claimed_before_us: int | None = None) -> Sequence[Batch]:
        """Return batches that may not be sent; only those claimed before a time, if it is given."""
        query = sa.select(_unsent).where(_unsent.c.environment == self._environment).order_by(_unsent.c.id)
        if claimed_before_us is not None:
            query = query.where(_unsent.c.claimed_us < claimed_before_us)
        return [Batch(row.id, row.claimed_us, _ids(row.body)) for row in connection.execute(query)]

    def claim(self, connection: sa.Connection, batch: Batch, now_us: int) -> bool:
        """Take over the sending of a batch; return False if somebody else was quicker."""
        where = (_unsent.c.environment == self._environment, _unsent.c.id == batch.id)
        change = sa.update(_unsent).where(*where, _unsent.c.claimed_us == batch.claimed_us).values(claimed_us=now_us)
        return connection.execute(change).rowcount == 1

    def give_up(self, connection: sa.Connection, batch: Batch) -> None:
        """Leave these messages of a batch to the next claim."""
        where = (_unsent.c.environment == self._environment, _unsent.c.id == batch.id)
        values = {"claimed_us": 0, "body": _encode(batch.messages).decode()}
        connection.execute(sa.update(_unsent).where(*where).values(**values))

    def forget_batches(self, connection: sa.Connection, ids: Sequence[str]) -> None:
        """Delete batches that were sent."""
        if ids:
            mine = _unsent.c.environment == self._environment
            connection.execute(sa.delete(_unsent).where(mine, _unsent.c.id.in_(ids)))


def _message(row: sa.Row[tuple[object, ...]]) -> Message:
    payload = None if row.payload is None else bytes(row.payload)
    return Message(row.tenant, row.message, row.event_type, row.created_us, row.expires_us, payload, _rest(row.body))
