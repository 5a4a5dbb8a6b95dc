"""Bearer keys: make them, tell whose a key is, take them back."""

from __future__ import annotations

import secrets

import msgspec
import sqlalchemy as sa

from emq.push.records.cursors import Page
from emq.push.records.keys import WITHOUT_TENANT, Key, Keys, Role, digest_of
from emq.push.service.parts import Parts
from emq.push.service.refusals import Invalid, NotFound
from emq.push.service.tenancy import Tenancy

PREFIX = "emqk_"
TRUST_US = 1_000_000
"""Microseconds for which a process trusts what it read of a key: a deleted key works no longer than this."""
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
        self, role: Role, actor: str, *, tenant: str = "", name: str = "", lifetime_s: float = 0, until_us: int = 0
    ) -> tuple[Key, str]:
        """Make a key; return its record and the key itself, which nothing shows again.

        Args:
            lifetime_s: seconds; 0 for ever.
            until_us: when the key that asks for this one ends, and this one with it at the latest; 0 for never.

        Raises:
            Invalid: a tenant with a role that takes none, or none with another role.
            NotFound: there is no such tenant.
        """
        if (role in WITHOUT_TENANT) == bool(tenant):
            text = f"role {role} takes no tenant; leave it out"
            if not tenant:
                text = f"role {role} needs a tenant; name the one that the key is for (--tenant on the command line)"
            raise Invalid("invalid_request", text, "/tenant")
        text, now_us = PREFIX + secrets.token_urlsafe(32), self._parts.now_us()
        expires_us = now_us + round(lifetime_s * 1e6) if lifetime_s else 0
        expires_us = min(filter(None, (expires_us, until_us)), default=0)
        key = Key(digest_of(text), self._parts.new_id("key"), role, tenant, name, now_us, expires_us)

        def add(connection: sa.Connection) -> None:
            if tenant:
                self._tenants.existing(connection, tenant)
            self._rows.delete_expired(connection, now_us)
            self._rows.add(connection, key)
            changes = {k: v for k, v in msgspec.to_builtins(key).items() if k in ("role", "name", "expires_us")}
            self._parts.audit(connection, actor, "key.created", key.id, tenant=tenant, changes=changes)

        await self._parts.write(add)
        return key, text

    async def owner(self, text: str) -> Key | None:
        """Return the record of a key that works now; None for any other text."""
        if not text.startswith(PREFIX) or not text.isascii() or len(text) > 100:
            return None
        digest, now_us = digest_of(text), self._parts.now_us()
        known = self._known.get(digest)
        if known is None or not 0 <= now_us - known[0] < TRUST_US:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            found = await self._parts.read(lambda c: self._rows.find(c, digest))
            known = self._known[digest] = (now_us, found)
        key = known[1]
        return None if key is None or 0 < key.expires_us <= now_us else key

    def is_known(self, text: str) -> bool:
        """Return whether this process has seen somebody with this key, which may have ended since."""
        known = self._known.get(digest_of(text))
        return known is not None and known[1] is not None

    async def is_valid(self, id_: str) -> bool:
        """Return whether there is a key of this id that works now."""
        now_us = self._parts.now_us()
        found = await self._parts.read(lambda c: self._rows.by_id(c, id_))
        return found is not None and not 0 < found.expires_us <= now_us

    async def page(self, limit: int, cursor: str = "", tenant: str | None = None) -> Page[Key]:
        """Return keys in the order of their making; of one tenant if it is given. Raises `InvalidCursor`."""
        return await self._parts.read(lambda c: self._rows.page(c, limit, cursor, tenant))

    async def delete(self, id_: str, actor: str) -> None:
        """Delete a key. Other processes take it for a second more. Raises `NotFound`."""

        def delete(connection: sa.Connection) -> Key:
            key = self._rows.delete(connection, id_)
            if key is None:
                raise NotFound("unknown_key", f"there is no key {id_[:80]!r}")
            self._parts.audit(connection, actor, "key.deleted", id_, tenant=key.tenant)
            return key

        self._known.pop((await self._parts.write(delete)).digest, None)
