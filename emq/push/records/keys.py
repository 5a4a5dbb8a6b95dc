"""The rows of bearer keys. A row has the digest of its key, never the key."""

from __future__ import annotations

import hashlib
from typing import Final, Literal

import msgspec
import sqlalchemy as sa

from emq.push.records import cursors
from emq.push.records.cursors import Page
from emq.push.records.tables import keys as table

Role = Literal["admin", "submit", "read", "send", "manage"]

WITHOUT_TENANT: Final = frozenset(("admin", "submit"))
"""Roles of keys that belong to no tenant."""


class Key(msgspec.Struct, frozen=True):
    """Attributes:
    digest: SHA-256 of the key, in hex.
    role: "admin" for everything; "submit" for the tasks of all pools of resources; of one tenant, "read" reads, "send"
        publishes, "manage" does all.
    tenant: empty for a role without one.
    name: for people.
    expires_us: 0 for never.
    """

    digest: str
    id: str
    role: Role
    tenant: str
    name: str
    created_us: int
    expires_us: int


def digest_of(key: str) -> str:
    """Return the digest by which a key is found. The keys are random, so a slow hash would protect nothing more."""
    return hashlib.sha256(key.encode()).hexdigest()


class Keys:
    """Reads and writes within the caller's transaction.

    Args:
        environment: "online" or "sandbox".
    """

    def __init__(self, environment: str) -> None:
        self._environment = str(environment)
        self._mine = table.c.environment == self._environment

    def find(self, connection: sa.Connection, digest: str) -> Key | None:
        row = connection.execute(sa.select(table).where(self._mine, table.c.digest == digest)).one_or_none()
        return None if row is None else _key(row)

    def by_id(self, connection: sa.Connection, id_: str) -> Key | None:
        row = connection.execute(sa.select(table).where(self._mine, table.c.id == id_)).one_or_none()
        return None if row is None else _key(row)

    def add(self, connection: sa.Connection, key: Key) -> None:
        connection.execute(sa.insert(table).values(environment=self._environment, **msgspec.structs.asdict(key)))

    def page(self, connection: sa.Connection, limit: int, cursor: str, tenant: str | None = None) -> Page[Key]:
        """Return keys by id, so in the order of their making. Raises `InvalidCursor`."""
        query = sa.select(table).where(self._mine).order_by(table.c.id).limit(limit + 1)
        if tenant is not None:
            query = query.where(table.c.tenant == tenant)
        if cursor:
            query = query.where(cursors.after([table.c.id], cursors.decode(cursor, str)))
        return cursors.page([_key(row) for row in connection.execute(query)], limit, lambda key: (key.id,))

    def delete(self, connection: sa.Connection, id_: str) -> Key | None:
        """Delete a key; return what it was, None if there is none."""
        found = self.by_id(connection, id_)
        if found is not None:
            connection.execute(sa.delete(table).where(self._mine, table.c.id == id_))
        return found

    def delete_of(self, connection: sa.Connection, tenant: str) -> None:
        """Delete all keys of a tenant."""
        connection.execute(sa.delete(table).where(self._mine, table.c.tenant == tenant))

    def delete_expired(self, connection: sa.Connection, now_us: int) -> None:
        gone = (table.c.expires_us > 0) & (table.c.expires_us < now_us)
        connection.execute(sa.delete(table).where(self._mine, gone))


def _key(row: sa.Row[tuple[object, ...]]) -> Key:
    return Key(row.digest, row.id, row.role, row.tenant, row.name, row.created_us, row.expires_us)
