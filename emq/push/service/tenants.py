"""Tenants: create, change, delete. A tenant is a topic of its id, whose qps its endpoints share."""

from __future__ import annotations

import contextlib
import re

import msgspec
import sqlalchemy as sa

from emq import errors
from emq.push.records.cursors import Page
from emq.push.records.tenants import Tenant, Tenants, TenantSettings
from emq.push.service.parts import Parts
from emq.push.service.refusals import Conflict, Invalid, NotFound

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
ATTRIBUTE = "tenant"
"""The attribute that marks the topics of a tenant."""


def unknown(tenant: str) -> NotFound:
    return NotFound("unknown_tenant", f"there is no tenant {tenant[:80]!r}")


def check_id(tenant: str) -> None:
    """Raise `Invalid` unless the text can be a tenant's id."""
    if not _ID.fullmatch(tenant):
        text = f"tenant id {tenant[:80]!r} must be 1 to 64 letters, digits, hyphens and underscores"
        raise Invalid("invalid_tenant_id", text)


class TenantService:
    """Create, change, read and delete tenants."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._rows = Tenants(parts.environment)

    async def get(self, tenant: str) -> Tenant:
        """Return a tenant. Raises `NotFound`."""
        return await self._parts.read(lambda c: self.existing(c, tenant))

    def existing(self, connection: sa.Connection, tenant: str) -> Tenant:
        """As `get`, within a transaction."""
        found = self._rows.find(connection, tenant)
        if found is None or found.is_going:
            raise unknown(tenant)
        return found

    async def page(self, limit: int, cursor: str = "") -> Page[Tenant]:
        """Return tenants by id. Raises `InvalidCursor`."""
        return await self._parts.read(lambda c: self._rows.page(c, limit, cursor))

    async def put(self, tenant: str, settings: TenantSettings, actor: str) -> tuple[Tenant, bool]:
        """Create or change a tenant; return it, and whether it is new. Safe to repeat.

        Raises:
            Invalid: the id or a setting is wrong.
            Conflict: a topic that is not a tenant has this name, or the tenant is being deleted.
        """
        check_id(tenant)
        if settings.log_retention_s < settings.payload_retention_s:
            text = f"log_retention_s {settings.log_retention_s} must be at least payload_retention_s"
            raise Invalid("invalid_request", f"{text} {settings.payload_retention_s}", "/log_retention_s")
        await self._topic(tenant, settings)

        def save(connection: sa.Connection) -> tuple[Tenant, bool]:
            now_us, before = self._parts.now_us(), self._rows.find(connection, tenant)
            if before is not None and before.is_going:
                raise Conflict("tenant_going", f"tenant {tenant!r} is being deleted; repeat the DELETE, then create it")
            if before is None:
                made = Tenant(tenant, settings, now_us, now_us)
            else:
                changed_us = max(now_us, before.changed_us + 1)
                made = msgspec.structs.replace(before, settings=settings, changed_us=changed_us)
            self._rows.save(connection, made)
            action = "tenant.created" if before is None else "tenant.changed"
            changes = msgspec.to_builtins(settings)
            self._parts.audit(connection, actor, action, tenant, tenant=tenant, changes=changes)
            return made, before is None

        return await self._parts.write(save)

    async def _topic(self, tenant: str, settings: TenantSettings) -> None:
        app = self._parts.app
        try:
            found = await app.catalog.get(tenant)
        except errors.UnknownTopic:
            found = None
        if found is not None and found.options.attributes.get(ATTRIBUTE) != tenant:
            text = f"topic {tenant!r} exists and belongs to no tenant; choose another id, or delete the topic"
            raise Conflict("topic_exists", text)
        try:
            if found is None:
                await app.create_topic(tenant, settings.qps, attributes={ATTRIBUTE: tenant})
            elif found.qps != settings.qps:
                await app.update_topic(tenant, qps=settings.qps)
        except errors.InvalidTopic as exc:
            raise Invalid("invalid_request", str(exc), "/qps") from exc

    async def delete(self, tenant: str, actor: str) -> None:
        """Delete a tenant with its keys. Safe to repeat.

        Raises:
            NotFound: there is no such tenant.
        """

        def mark(connection: sa.Connection) -> None:
            found = self._rows.find(connection, tenant)
            if found is None:
                raise unknown(tenant)
            going = msgspec.structs.replace(found, is_going=True, changed_us=found.changed_us + 1)
            self._rows.save(connection, going)

        def finish(connection: sa.Connection) -> None:
            self._rows.delete(connection, tenant)
            self._parts.audit(connection, actor, "tenant.deleted", tenant, tenant=tenant)

        await self._parts.write(mark)
        with contextlib.suppress(errors.UnknownTopic):  # an earlier call has come that far
            await self._parts.app.admin.delete(tenant, force=True)
        await self._parts.write(finish)
