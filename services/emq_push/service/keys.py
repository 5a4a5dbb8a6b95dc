"""Bearer keys and the sessions of browsers: makes, checks and deletes them.

Each key knows its maker, and ends with it: it expires no later, and deleting a key deletes all that it made, and that
these made. A key makes sessions in the same way, but a session is not a key: the API does not take it, and it makes no
keys. A link is a session that nobody has opened yet: for minutes, and once, it becomes the session of who opens it.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Collection, Iterable

import msgspec
import sqlalchemy as sa

from emq.runtime import errors
from emq_push.records.cursors import Page
from emq_push.records.keys import WITHOUT_TENANT, Key, Keys, Kind, Role, digest_of
from emq_push.service.parts import Parts
from emq_push.service.refusals import Invalid, NotFound
from emq_push.service.tenancy import Tenancy

PREFIX = "emqk_"
SESSION_PREFIX = "emqs_"
LINK_PREFIX = "emql_"
SESSION_S = 8 * 3600.0
"""Most seconds of a session."""
MOST_SESSIONS = 50
"""Most sessions that one key has for one tenant at the same time; one more ends the oldest."""
TRUST_US = 1_000_000
"""Microseconds for which a process trusts what it has read of a key; a deleted key works for this time at most."""
NOTED_US = 60_000_000
"""Microseconds between two notes of the last use of a key."""
MOST_KNOWN = 10_000
"""Most keys, right and wrong ones, that a process keeps in memory."""


class KeyService:
    """Make, check, list and delete bearer keys."""

    def __init__(self, parts: Parts, tenants: Tenancy) -> None:
        self._parts = parts
        self._tenants = tenants
        self._rows = Keys(parts.environment)
        self._known: dict[str, tuple[int, Key | None]] = {}

    async def create(
        self,
        role: Role,
        actor: str,
        *,
        tenant: str = "",
        name: str = "",
        lifetime_s: float = 0,
        maker: Key | None = None,
    ) -> tuple[Key, str]:
        """Make a key; return its record and the key itself, which is never shown again.

        Args:
            lifetime_s: seconds; 0 for ever.
            maker: the key that asks for this one; None for the command line.

        Raises:
            Invalid: a tenant with a role that takes none, or none with another role.
            NotFound: there is no such tenant, or the maker was deleted.
        """
        if (role in WITHOUT_TENANT) == bool(tenant):
            text = f"role {role} takes no tenant; leave it out"
            if not tenant:
                text = f"role {role} needs a tenant; name the one that the key is for (--tenant on the command line)"
            raise Invalid("invalid_request", text, "/tenant")
        key, text = self._made(PREFIX, role, tenant, name, lifetime_s, maker)

        def add(connection: sa.Connection) -> None:
            if tenant:
                self._tenants.existing(connection, tenant)
            self._add(connection, key)
            changes = {k: v for k, v in msgspec.to_builtins(key).items() if k in ("role", "name", "expires_us")}
            self._parts.audit(connection, actor, "key.created", key.id, tenant=tenant, changes=changes)

        await self._parts.write(add)
        return key, text

    async def begin_session(self, maker: Key) -> str:
        """Return a new session for the pages, of the maker's role and tenant.

        Raises:
            NotFound: the maker was deleted.
        """
        session, text = self._made(SESSION_PREFIX, maker.role, maker.tenant, maker.name, SESSION_S, maker, "session")

        def add(connection: sa.Connection) -> list[Key]:
            self._add(connection, session)
            return self._began(connection, session)

        self._forget(await self._parts.write(add))
        return text

    async def create_link(
        self, role: Role, actor: str, *, tenant: str, name: str, lifetime_s: float, maker: Key
    ) -> tuple[Key, str]:
        """Make a link to the pages of a tenant, which works once; return its record and its text.

        Args:
            lifetime_s: seconds until which it must be opened.

        Raises:
            NotFound: there is no such tenant, or the maker was deleted.
        """
        link, text = self._made(LINK_PREFIX, role, tenant, name, lifetime_s, maker, "link")

        def add(connection: sa.Connection) -> None:
            self._tenants.existing(connection, tenant)
            self._add(connection, link)
            self._parts.audit(connection, actor, "link.created", link.id, tenant=tenant, changes={"role": role})

        await self._parts.write(add)
        return link, text

    async def open_link(self, text: str) -> str | None:
        """Return the session of who opens this link; None if it has expired, was opened already, or never was."""
        session, now_us = SESSION_PREFIX + secrets.token_urlsafe(32), self._parts.now_us()

        def open_(connection: sa.Connection) -> list[Key] | None:
            life_us = round(SESSION_S * 1e6)
            opened = self._rows.opened(connection, digest_of(text), digest_of(session), now_us, life_us)
            return None if opened is None else self._began(connection, opened)

        ended = await self._parts.write(open_)
        self._forget(ended or [])
        return None if ended is None else session

    def _began(self, connection: sa.Connection, session: Key) -> list[Key]:
        """Note a session that begins; return the oldest ones of its key and tenant, which end if there are too many."""
        mine = self._rows.sessions(connection, session.parent, session.tenant)
        ended = mine[: max(0, len(mine) - MOST_SESSIONS)]
        for each in ended:
            self._rows.delete(connection, each.id)
        actor = f"{session.parent} {session.name}".rstrip()
        self._parts.audit(connection, actor, "session.began", session.id, tenant=session.tenant)
        return ended

    def _made(
        self,
        prefix: str,
        role: Role,
        tenant: str,
        name: str,
        lifetime_s: float,
        maker: Key | None,
        kind: Kind = "key",
    ) -> tuple[Key, str]:
        text, now_us = prefix + secrets.token_urlsafe(32), self._parts.now_us()
        ends = (now_us + round(lifetime_s * 1e6) if lifetime_s else 0, 0 if maker is None else maker.expires_us)
        expires_us, parent = min(filter(None, ends), default=0), "" if maker is None else maker.id
        id_ = self._parts.new_id("key")
        return Key(digest_of(text), id_, role, tenant, name, now_us, expires_us, parent, kind), text

    def _add(self, connection: sa.Connection, key: Key) -> None:
        if key.parent and not self._rows.hold(connection, key.parent):
            raise NotFound("unknown_key", "the key that asks for another one was deleted meanwhile")
        self._rows.delete_expired(connection, key.created_us)
        self._rows.add(connection, key)

    async def owner(self, text: str) -> Key | None:
        """Return the record of a key that works now; None for any other text, also for a session."""
        return await self._find(text, PREFIX, "key")

    async def session(self, text: str) -> Key | None:
        """Return the record of a session that works now; None for any other text, also for a key."""
        return await self._find(text, SESSION_PREFIX, "session")

    async def _find(self, text: str, prefix: str, kind: Kind) -> Key | None:
        if not text.startswith(prefix) or not text.isascii() or len(text) > 100:
            return None
        digest, now_us = digest_of(text), self._parts.now_us()
        known = self._known.get(digest)
        if known is None or not 0 <= now_us - known[0] < TRUST_US:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            found = await self._parts.read(lambda c: self._rows.find(c, digest))
            known = self._known[digest] = (now_us, found)
            if (used := _working(found, kind, now_us)) and now_us - used.used_us >= NOTED_US:
                with contextlib.suppress(errors.DatabaseUnavailable):
                    await self._parts.write(lambda c: self._rows.use(c, digest, now_us))
        return _working(known[1], kind, now_us)

    def fresh(self, text: str) -> Key | None:
        """As `owner`, but None also for a key that this process has to look up."""
        known, now_us = self._known.get(digest_of(text)), self._parts.now_us()
        if known is None or not 0 <= now_us - known[0] < TRUST_US:
            return None
        return _working(known[1], "key", now_us)

    def is_known(self, text: str) -> bool:
        """Return whether this process has seen this key, which may have ended since."""
        known = self._known.get(digest_of(text))
        return known is not None and known[1] is not None

    async def page(self, limit: int, cursor: str = "", tenant: str | None = None) -> Page[Key]:
        """Return keys in the order of their making; of one tenant if it is given. Raises `InvalidCursor`."""
        return await self._parts.read(lambda c: self._rows.page(c, limit, cursor, tenant))

    async def get(self, id_: str) -> Key:
        """Return a key or a session. Raises `NotFound`."""
        found = (await self.some([id_])).get(id_)
        if found is None:
            raise _unknown(id_)
        return found

    async def some(self, ids: Collection[str]) -> dict[str, Key]:
        """Return those of the keys that exist, by id; at most 500."""
        wanted = [id_ for id_ in ids if "\0" not in id_]
        return {key.id: key for key in await self._parts.read(lambda c: self._rows.some(c, wanted))}

    async def made_by(self, id_: str, limit: int) -> list[Key]:
        """Return keys and sessions that a key made itself, the oldest first."""
        return await self._parts.read(lambda c: self._rows.made_by(c, id_, limit))

    async def delete(self, id_: str, actor: str, *, keep_made: bool = False) -> list[Key]:
        """Delete a key or a session, with all keys and sessions that it made; return them, itself first.

        Other processes take them for a second more.

        Args:
            keep_made: the keys that it made stay, as if its own maker had made them; its sessions end.

        Raises:
            NotFound: there is none.
        """

        def delete(connection: sa.Connection) -> list[Key]:
            gone = self._rows.delete(connection, id_, keep_made=keep_made)
            if not gone:
                raise _unknown(id_)
            action = "key.deleted" if gone[0].kind == "key" else "session.ended"
            made = [key.id for key in gone[1:] if key.kind == "key"]
            changes = {"with": made[:100], "keep_made": keep_made} if made or keep_made else {}
            self._parts.audit(connection, actor, action, id_, tenant=gone[0].tenant, changes=changes)
            return gone

        gone = await self._parts.write(delete)
        self._forget(gone)
        return gone

    def _forget(self, gone: Iterable[Key]) -> None:
        for key in gone:
            self._known.pop(key.digest, None)


def _unknown(id_: str) -> NotFound:
    return NotFound("unknown_key", f"there is no key {id_[:80]!r}")


def _working(key: Key | None, kind: Kind, now_us: int) -> Key | None:
    return None if key is None or key.kind != kind or 0 < key.expires_us <= now_us else key
