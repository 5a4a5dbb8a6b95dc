"""The rows of bearer keys. A row has the digest of its key, never the key."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Final, Literal

import msgspec
import sqlalchemy as sa

from emq_push.records import cursors, rows
from emq_push.records.cursors import Page
from emq_push.records.rows import IDS_AT_ONCE
from emq_push.records.tables import keys as table

Role = Literal["admin", "submit", "read", "send", "poll", "manage"]
Kind = Literal["key", "session", "link"]

WITHOUT_TENANT: Final = frozenset(("admin", "submit"))
"""Roles of keys that belong to no tenant."""


class Key(msgspec.Struct, frozen=True):
    """Attributes:
    digest: SHA-256 of the key, in hex.
    role: "admin" for everything; "submit" for the tasks of all pools of resources; of one tenant, "read" reads, "send"
        publishes, "poll" fetches from polling endpoints, "manage" does all.
    tenant: empty for a role without one.
    name: for people.
    expires_us: 0 for never. Never later than that of its parent.
    parent: id of the key that made this one, and with which this one ends; empty for none.
    kind: "key" for requests to the API; "session" for a browser on the pages, and for nothing else; "link" for what
        somebody opens once, by which it becomes a session.
    used_us: when it was last used, or at most `emq_push.service.keys.NOTED_US` before that; 0 for never.
    """

    digest: str
    id: str
    role: Role
    tenant: str
    name: str
    created_us: int
    expires_us: int
    parent: str = ""
    kind: Kind = "key"
    used_us: int = 0

    @property
    def account(self) -> str:
        """Whose share of what all callers have together its requests take: the tenant's, else the key's own."""
        return self.tenant or (self.parent if self.kind == "session" else self.id)


def digest_of(key: str) -> str:
    """Return the digest by which a key is found. The keys are random, so a slow hash would protect nothing more."""
    return hashlib.sha256(key.encode()).hexdigest()


class Keys(rows.Rows):
    """The keys."""

    table = table

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
        query = sa.select(table).where(self._mine)
        if tenant is not None:
            query = query.where(table.c.tenant == tenant)
        return cursors.read(connection, query, [table.c.id], _key, limit, cursor)

    def use(self, connection: sa.Connection, digest: str, now_us: int) -> None:
        """Note that a key is in use."""
        connection.execute(sa.update(table).where(self._mine, table.c.digest == digest).values(used_us=now_us))

    def hold(self, connection: sa.Connection, id_: str) -> bool:
        """Return whether there is a key of this id; nobody deletes it before the end of the transaction."""
        query = sa.select(table.c.id).where(self._mine, table.c.id == id_).with_for_update(read=True)
        return connection.execute(query).first() is not None

    def delete(self, connection: sa.Connection, id_: str, *, keep_made: bool = False) -> list[Key]:
        """Delete a key with all that it made, and these made, and so on; return them, itself first.

        Each generation is deleted before the next one is read. So a key that is made meanwhile (`hold`) is either
        found, or its maker is found to be gone.

        Args:
            keep_made: what the key made belongs to its own maker from now on.
        """
        found = self.by_id(connection, id_)
        if found is None:
            return []
        connection.execute(sa.delete(table).where(self._mine, table.c.id == id_))
        if keep_made:
            theirs = sa.update(table).where(self._mine, table.c.parent == id_, table.c.kind == "key")
            connection.execute(theirs.values(parent=found.parent))
        gone, generation = [found], [id_]
        while generation:
            made_by = table.c.parent.in_(generation[:IDS_AT_ONCE])
            query = sa.select(table).where(self._mine, made_by).limit(IDS_AT_ONCE)
            if made := [_key(row) for row in connection.execute(query)]:
                connection.execute(sa.delete(table).where(self._mine, table.c.digest.in_([key.digest for key in made])))
                generation += [key.id for key in made]
                gone += made
            else:
                generation = generation[IDS_AT_ONCE:]
        return gone

    def some(self, connection: sa.Connection, ids: Collection[str]) -> list[Key]:
        """Return those of the keys that exist; at most `IDS_AT_ONCE`."""
        return [_key(row) for row in connection.execute(sa.select(table).where(self._mine, table.c.id.in_(ids)))]

    def made_by(self, connection: sa.Connection, id_: str, limit: int) -> list[Key]:
        """Return keys and sessions that a key made itself."""
        query = sa.select(table).where(self._mine, table.c.parent == id_).order_by(table.c.id).limit(limit)
        return [_key(row) for row in connection.execute(query)]

    def opened(self, connection: sa.Connection, digest: str, session: str, now_us: int, life_us: int) -> Key | None:
        """Make a link that works now into a session; return the session, or None if there is no such link.

        Args:
            session: digest of the session.
            life_us: how long the session may live; no longer than the key that made the link.
        """
        mine = (self._mine, table.c.digest == digest, table.c.kind == "link", table.c.expires_us > now_us)
        row = connection.execute(sa.select(table).where(*mine)).one_or_none()
        if row is None or not self.hold(connection, row.parent) or not (maker := self.by_id(connection, row.parent)):
            return None
        ends_us = min(filter(None, (now_us + life_us, maker.expires_us)))
        changes = {"digest": session, "kind": "session", "created_us": now_us, "expires_us": ends_us}
        if not connection.execute(sa.update(table).where(*mine).values(changes)).rowcount:
            return None  # somebody else opened it meanwhile
        return msgspec.structs.replace(_key(row), **changes)

    def sessions(self, connection: sa.Connection, parent: str, tenant: str) -> list[Key]:
        """Return the sessions for a tenant that a key made, the oldest first."""
        mine = (self._mine, table.c.parent == parent, table.c.tenant == tenant, table.c.kind == "session")
        return [_key(row) for row in connection.execute(sa.select(table).where(*mine).order_by(table.c.id))]

    def delete_of(self, connection: sa.Connection, tenant: str) -> None:
        """Delete all keys of a tenant."""
        connection.execute(sa.delete(table).where(self._mine, table.c.tenant == tenant))

    def delete_expired(self, connection: sa.Connection, now_us: int) -> None:
        gone = (table.c.expires_us > 0) & (table.c.expires_us < now_us)
        connection.execute(sa.delete(table).where(self._mine, gone))


def _key(row: sa.Row[tuple[object, ...]]) -> Key:
    return Key(**{name: getattr(row, name) for name in Key.__struct_fields__})
