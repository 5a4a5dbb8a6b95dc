"""The messages as their rows keep them, to be sent once more."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from emq_push.records import tables
from emq_push.records.accepted import Rest, headers_of

_m = tables.messages


class StoredMessage(msgspec.Struct, frozen=True):
    """A message as it was accepted.

    Attributes:
        payload: None once it was erased.
        rest: key, priority, headers, and time to live.
    """

    id: str
    event_type: str
    payload: bytes | None
    rest: Rest

    @property
    def headers(self) -> dict[str, str]:
        """The headers with which it was sent."""
        return headers_of(self.event_type, self.rest.headers)


_decode = msgspec.json.Decoder(Rest).decode


def read(connection: sa.Connection, environment: str, tenant: str, ids: Sequence[str]) -> dict[str, StoredMessage]:
    """Return those of the tenant's messages that still have a row, by id; at most 500 ids."""
    where = (_m.c.environment == environment, _m.c.tenant == tenant, _m.c.message.in_(ids))
    query = sa.select(_m.c.message, _m.c.event_type, _m.c.payload, _m.c.body).where(*where)
    return {
        id_: StoredMessage(id_, event_type, None if payload is None else bytes(payload), _decode(body))
        for id_, event_type, payload, body in connection.execute(query)
    }


def with_payload(connection: sa.Connection, environment: str, tenant: str, ids: Sequence[str]) -> set[str]:
    """Return those of the tenant's messages whose payload is still there; at most 500 ids."""
    where = (_m.c.environment == environment, _m.c.tenant == tenant, _m.c.message.in_(ids))
    query = sa.select(_m.c.message).where(*where, _m.c.payload.is_not(None))
    return {str(id_) for id_ in connection.execute(query).scalars()}
