"""The messages as their rows keep them, to be sent once more."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from emq.push.records import tables

_m = tables.messages


class _Body(msgspec.Struct, frozen=True):
    content_type: str = ""
    key: str | None = None
    priority: str | None = None
    headers: dict[str, str] = {}


class StoredMessage(msgspec.Struct, frozen=True):
    """A message as it was accepted.

    Attributes:
        payload: None once it was erased.
        priority: name of its priority; None for the default one.
    """

    id: str
    event_type: str
    created_us: int
    payload: bytes | None
    key: str | None
    priority: str | None
    headers: dict[str, str]


_decode = msgspec.json.Decoder(_Body).decode


def read(connection: sa.Connection, environment: str, tenant: str, ids: Sequence[str]) -> dict[str, StoredMessage]:
    """Return those of the tenant's messages that still have a row, by id; at most 500 ids."""
    where = (_m.c.environment == environment, _m.c.tenant == tenant, _m.c.message.in_(ids))
    return {row.message: _stored(row) for row in connection.execute(sa.select(_m).where(*where))}


def with_payload(connection: sa.Connection, environment: str, tenant: str, ids: Sequence[str]) -> set[str]:
    """Return those of the tenant's messages whose payload is still there; at most 500 ids."""
    where = (_m.c.environment == environment, _m.c.tenant == tenant, _m.c.message.in_(ids))
    query = sa.select(_m.c.message).where(*where, _m.c.payload.is_not(None))
    return {str(id_) for id_ in connection.execute(query).scalars()}


def _stored(row: sa.Row[tuple[object, ...]]) -> StoredMessage:
    body = _decode(row.body)
    headers = body.headers | ({"content-type": body.content_type} if body.content_type else {})
    payload = None if row.payload is None else bytes(row.payload)
    return StoredMessage(row.message, row.event_type, row.created_us, payload, body.key, body.priority, headers)
