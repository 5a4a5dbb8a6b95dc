"""Tenants: create, change, delete. A tenant is a topic of its id, whose qps its endpoints share."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from emq import errors
from emq.push.records.cursors import Page
from emq.push.records.endpoints import Endpoints
from emq.push.records.keys import Keys
from emq.push.records.messages import Messages
from emq.push.records.tables import idempotency, replays
from emq.push.records.tenants import Tenant, TenantSettings
from emq.push.service import endpoint_topics
from emq.push.service.endpoints import EndpointService
from emq.push.service.parts import Parts
from emq.push.service.refusals import Conflict, Invalid, NotFound
from emq.push.service.tenancy import Tenancy, check_id, unknown

log = logging.getLogger(__name__)

ATTRIBUTE = "tenant"
"""The attribute that marks the topics of a tenant."""
SOME = 500
"""Most messages deleted in one transaction."""


class TenantService(Tenancy):
    """Create, change, read and delete tenants."""

    def __init__(self, parts: Parts, endpoints: EndpointService) -> None:
        super().__init__(parts)
        self._endpoints = endpoints
        self._endpoint_rows = Endpoints(parts.environment)
        self._messages = Messages(parts.environment)
        self._keys = Keys(parts.environment)

    async def page(self, limit: int, cursor: str = "") -> Page[Tenant]:
        """Return tenants by id. Raises `InvalidCursor`."""
        return await self._parts.read(lambda c: self._rows.page(c, limit, cursor))

    async def find(self, text: str, limit: int, after: str = "") -> list[Tenant]:
        """Return the first tenants by id whose ids begin with a text and come after another id."""
        return await self._parts.read(lambda c: self._rows.beginning(c, text, after, limit))

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

        made, is_new = await self._parts.write(save)
        await self._follow(tenant)
        return made, is_new

    async def set_paused(self, tenant: str, paused: bool, actor: str) -> Tenant:
        """Pause a tenant as a whole, or resume it. Safe to repeat.

        All its endpoints are paused in one transaction, and so are those that are made meanwhile. The tenant goes on
        taking messages. An endpoint that was paused or disabled by itself stays so when the tenant is resumed.

        Raises:
            NotFound: there is no such tenant.
        """

        made: Tenant

        def save(connection: sa.Connection) -> list[str]:
            nonlocal made
            before = self.existing(connection, tenant)
            changed_us = max(self._parts.now_us(), before.changed_us + 1)
            made = msgspec.structs.replace(before, is_paused=paused, changed_us=changed_us)
            self._rows.save(connection, made)
            action = "tenant.paused" if paused else "tenant.resumed"
            self._parts.audit(connection, actor, action, tenant, tenant=tenant)
            return [endpoint.topic for endpoint in self._endpoint_rows.of(connection, tenant)]

        pause = endpoint_topics.pause_of(is_paused=paused)
        await self._parts.app.catalog.set_attributes_of(save, pause)
        return made

    async def complete(self, tenants: Sequence[Tenant]) -> int:
        """Complete changes that a crash left half done: topics follow the rows of their tenants.

        Args:
            tenants: which to look at.

        Returns:
            How many of them had topics that did not follow. Some of these were just being changed by others.
        """
        there = [tenant for tenant in tenants if not tenant.is_going]
        topics = await self._parts.topics([tenant.id for tenant in there])
        behind = {t.id for t in there if (topic := topics.get(t.id)) is not None and topic.qps != t.settings.qps}
        behind |= await self._endpoints.unlike(there)
        for tenant in sorted(behind):
            try:
                await self._follow(tenant)
            except errors.InvalidTopic as exc:  # a newer version of EMQ has written one of its topics
                log.warning("tenant %s: a topic does not follow its settings: %s", tenant, exc)
        return len(behind)

    async def _follow(self, tenant: str) -> None:
        """Give the tenant's topic and its endpoints the cap that its row says.

        Looks again after each write: of several who change a tenant at once, the last writer sees the last row.
        """
        with contextlib.suppress(NotFound, errors.UnknownTopic):  # the tenant is being deleted
            while True:
                now = await self.get(tenant)
                if (await self._parts.app.catalog.get(tenant)).qps == now.settings.qps:
                    break
                await self._parts.app.update_topic(tenant, qps=now.settings.qps)
            await self._endpoints.follow(now)

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
                await app.create_topic(tenant, settings.qps, exist_ok=True, attributes={ATTRIBUTE: tenant})
            elif found.qps != settings.qps:
                await app.update_topic(tenant, qps=settings.qps)
        except errors.InvalidTopic as exc:
            raise Invalid("invalid_request", str(exc), "/qps") from exc

    async def delete(self, tenant: str, actor: str) -> None:
        """Delete a tenant with its endpoints, messages, deliveries, replays and keys. Safe to repeat.

        Raises:
            NotFound: there is no such tenant.
        """

        def mark(connection: sa.Connection) -> list[str]:
            found = self._rows.find(connection, tenant)
            if found is None:
                raise unknown(tenant)
            changed_us = max(self._parts.now_us(), found.changed_us + 1)
            self._rows.save(connection, msgspec.structs.replace(found, is_going=True, changed_us=changed_us))
            return [endpoint.id for endpoint in self._endpoint_rows.of(connection, tenant)]

        def finish(connection: sa.Connection) -> None:
            self._rows.delete(connection, tenant)
            self._keys.delete_of(connection, tenant)
            for table in (idempotency, replays):
                mine = (table.c.environment == self._parts.environment, table.c.tenant == tenant)
                connection.execute(sa.delete(table).where(*mine))
            self._parts.audit(connection, actor, "tenant.deleted", tenant, tenant=tenant)

        for endpoint in await self._parts.write(mark):
            with contextlib.suppress(NotFound):  # somebody else deletes it, too
                await self._endpoints.delete(tenant, endpoint, actor)
        while await self._parts.write(lambda c: self._messages.delete_some_of(c, tenant, SOME)) == SOME:
            pass
        await self._delete_topics(tenant)
        await self._parts.write(finish)

    async def _delete_topics(self, tenant: str) -> None:
        """Delete the tenant's topic, and topics of endpoints whose creation was under way, or broke off."""
        app = self._parts.app
        for topic in await app.catalog.list(f"{tenant}.*"):
            if topic.options.attributes.get(ATTRIBUTE) == tenant:
                with contextlib.suppress(errors.UnknownTopic):  # somebody else deletes it, too
                    await app.admin.delete(topic.name, force=True)
        try:
            await app.admin.delete(tenant, force=True)
        except errors.UnknownTopic:  # an earlier call has come that far
            pass
        except errors.StillNamed:
            text = f"an endpoint of tenant {tenant!r} is created at this moment; repeat the DELETE"
            raise Conflict("tenant_busy", text) from None
