"""Tenants: create, change, delete. A tenant is a topic of its id, whose qps its endpoints share."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from emq.runtime import errors
from emq.topics.model import Topic
from emq_push.records.cursors import Page
from emq_push.records.endpoints import Endpoint, Endpoints
from emq_push.records.keys import Keys
from emq_push.records.messages import Messages
from emq_push.records.poll_log import PollLog
from emq_push.records.tables import idempotency, replays
from emq_push.records.tenants import Tenant, TenantSettings
from emq_push.service import endpoint_topics
from emq_push.service.endpoints import EndpointService
from emq_push.service.parts import Parts
from emq_push.service.refusals import Conflict, Invalid, NotFound, check_version, converted
from emq_push.service.tenancy import Tenancy, check_id, unknown

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
        self._log = PollLog(parts.environment)
        self._keys = Keys(parts.environment)

    async def page(self, limit: int, cursor: str = "") -> Page[Tenant]:
        """Return tenants by id. Raises `InvalidCursor`."""
        return await self._parts.read(lambda c: self._rows.page(c, limit, cursor))

    async def find(self, text: str, limit: int, after: str = "") -> list[Tenant]:
        """Return the first tenants by id whose ids begin with a text and come after another id."""
        return await self._parts.read(lambda c: self._rows.beginning(c, text, after, limit))

    async def change(
        self,
        tenant: str,
        changes: Mapping[str, Any],
        actor: str,
        *,
        creates: bool = False,
        expected: int | None = None,
    ) -> tuple[Tenant, bool]:
        """Change settings of a tenant; the others keep their values. Return it, and whether it is new. Safe to repeat.

        Args:
            changes: fields of `TenantSettings`.
            creates: create the tenant if it is missing; settings that are left out get their defaults.
            expected: `changed_us` of the version that is changed; 0 if the tenant must be new, None for any.

        Raises:
            NotFound: there is no such tenant.
            Invalid: the id or a setting is wrong.
            Conflict: a topic that is not a tenant has this name, or the tenant is being deleted.
            OtherVersion: the tenant has another version; nothing was changed.
        """
        is_new = False

        def save(connection: sa.Connection) -> Tenant:
            nonlocal is_new
            before = self._checked(connection, tenant, creates=creates, expected=expected)
            made = _changed(tenant, before, changes, self._parts.now_us())
            is_new = before is None
            self._rows.save(connection, made)
            action = "tenant.created" if is_new else "tenant.changed"
            self._parts.audit(connection, actor, action, tenant, tenant=tenant, changes=dict(changes))
            return made

        wanted = await self._wanted(tenant, changes, creates=creates, expected=expected)
        await self._ensure_topic(tenant, wanted.qps)
        return await self._with_topics(tenant, save), is_new

    async def check_new(self, tenant: str, settings: Mapping[str, Any]) -> None:
        """Raise as `change` would that creates a tenant; make nothing."""
        await self._wanted(tenant, settings, creates=True, expected=None)
        await self._topic(tenant)

    async def _wanted(
        self, tenant: str, changes: Mapping[str, Any], *, creates: bool, expected: int | None
    ) -> TenantSettings:
        check_id(tenant)
        before = await self._parts.read(lambda c: self._checked(c, tenant, creates=creates, expected=expected))
        return _changed(tenant, before, changes, 0).settings

    def _checked(self, connection: sa.Connection, tenant: str, *, creates: bool, expected: int | None) -> Tenant | None:
        """Return the tenant that is changed; None for one to create."""
        found = self._rows.find(connection, tenant)
        if found is not None and found.is_going:
            raise Conflict("tenant_going", f"tenant {tenant!r} is being deleted; repeat the DELETE, then create it")
        check_version(f"tenant {tenant!r}", expected, 0 if found is None else found.changed_us)
        if found is None and not creates:
            raise unknown(tenant)
        return found

    async def set_paused(self, tenant: str, paused: bool, actor: str, expected: int | None = None) -> Tenant:
        """Pause a tenant as a whole, or resume it. Safe to repeat.

        All its endpoints are paused in one transaction, and so are those that are made meanwhile. The tenant goes on
        taking messages. An endpoint that was paused or disabled by itself stays so when the tenant is resumed.

        Raises:
            NotFound: there is no such tenant.
        """

        def save(connection: sa.Connection) -> Tenant:
            before = self.existing(connection, tenant)
            check_version(f"tenant {tenant!r}", expected, before.changed_us)
            changed_us = max(self._parts.now_us(), before.changed_us + 1)
            made = msgspec.structs.replace(before, is_paused=paused, changed_us=changed_us)
            self._rows.save(connection, made)
            action = "tenant.paused" if paused else "tenant.resumed"
            self._parts.audit(connection, actor, action, tenant, tenant=tenant)
            return made

        return await self._with_topics(tenant, save)

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
                with contextlib.suppress(NotFound):  # it is being deleted
                    await self._with_topics(tenant, functools.partial(self.existing, tenant=tenant))
            except Invalid as exc:  # a newer version of EMQ has written one of its topics
                log.warning("tenant %s: a topic does not follow its settings: %s", tenant, exc)
            except errors.DatabaseUnavailable:
                raise
            except Exception:  # such as a damaged row; the other tenants must follow
                log.exception("tenant %s: its topics do not follow its settings", tenant)
        return len(behind)

    async def _with_topics(self, tenant: str, save: Callable[[sa.Connection], Tenant]) -> Tenant:
        """Write a tenant's row, and give its topic and those of its endpoints what the row says, in one transaction.

        Args:
            save: writes the row, if anything is to be written, and returns it.

        Raises:
            Invalid: a topic cannot have this; nothing was changed.
        """
        made: Tenant
        endpoints: dict[str, Endpoint] = {}

        def choose(connection: sa.Connection) -> list[str]:
            nonlocal made, endpoints
            made = save(connection)
            endpoints = {endpoint.topic: endpoint for endpoint in self._endpoint_rows.of(connection, tenant)}
            return [tenant, *endpoints]

        def changes(topic: Topic) -> Mapping[str, Any]:
            if topic.name != tenant:
                return endpoint_topics.following(topic, endpoints[topic.name], made)
            return {} if topic.qps == made.settings.qps else {"qps": made.settings.qps}

        known = await self._parts.read(lambda c: [each.topic for each in self._endpoint_rows.of(c, tenant)])
        try:
            await self._parts.app.admin.update_many([tenant, *known], choose, changes)
        except errors.InvalidTopic as exc:
            raise Invalid("invalid_request", str(exc), "/qps") from exc
        return made

    async def _ensure_topic(self, tenant: str, qps: float) -> None:
        """Create the tenant's topic if it is missing."""
        try:
            if await self._topic(tenant) is None:
                await self._parts.app.create_topic(tenant, qps, exist_ok=True, attributes={ATTRIBUTE: tenant})
        except errors.InvalidTopic as exc:
            raise Invalid("invalid_request", str(exc), "/qps") from exc

    async def _topic(self, tenant: str) -> Topic | None:
        """Return the tenant's topic; None if it is missing. Raises `Conflict`: it is another one."""
        try:
            found = await self._parts.app.catalog.get(tenant)
        except errors.UnknownTopic:
            return None
        if found.options.attributes.get(ATTRIBUTE) != tenant:
            text = f"topic {tenant!r} exists and belongs to no tenant; choose another id, or delete the topic"
            raise Conflict("topic_exists", text)
        return found

    async def delete(self, tenant: str, actor: str, expected: int | None = None) -> None:
        """Delete a tenant with its endpoints, messages, deliveries, replays and keys. Safe to repeat.

        Raises:
            NotFound: there is no such tenant.
        """

        def mark(connection: sa.Connection) -> None:
            found = self._rows.find(connection, tenant)
            if found is None:
                raise unknown(tenant)
            check_version(f"tenant {tenant!r}", expected, found.changed_us)
            changed_us = max(self._parts.now_us(), found.changed_us + 1)
            self._rows.save(connection, msgspec.structs.replace(found, is_going=True, changed_us=changed_us))

        def finish(connection: sa.Connection) -> None:
            found = self._endpoint_rows.of(connection, tenant)
            endpoints = [endpoint.id for endpoint in found]
            for endpoint in found:
                self._log.delete(connection, endpoint.topic)
            self._endpoint_rows.delete_of(connection, tenant)
            self._rows.delete(connection, tenant)
            self._keys.delete_of(connection, tenant)
            for table in (idempotency, replays):
                mine = (table.c.environment == self._parts.environment, table.c.tenant == tenant)
                connection.execute(sa.delete(table).where(*mine))
            changes = {"endpoints": endpoints}
            self._parts.audit(connection, actor, "tenant.deleted", tenant, tenant=tenant, changes=changes)

        await self._parts.write(mark)
        await self._delete_topics_of_endpoints(tenant)
        while await self._parts.write(lambda c: self._messages.delete_some_of(c, tenant, SOME)) == SOME:
            pass
        await self._delete_topic(tenant)
        await self._parts.write(finish)

    async def _delete_topics_of_endpoints(self, tenant: str) -> None:
        """Delete the topics of all endpoints, also of those whose creation was under way, or broke off."""
        app, last = self._parts.app, ""
        while names := await app.catalog.beginning(f"{tenant}.", SOME, last):
            topics = (await app.catalog.some(names)).values()
            mine = [topic for topic in topics if topic.options.attributes.get(ATTRIBUTE) == tenant]
            try:
                if mine:
                    await app.admin.delete_all(mine)
            except errors.UnknownTopic:  # somebody else deletes one of them, too: look again
                continue
            last = names[-1]

    async def _delete_topic(self, tenant: str) -> None:
        """Delete the tenant's topic."""
        await self._delete_topics_of_endpoints(tenant)
        try:
            await self._parts.app.admin.delete(tenant, force=True)
        except errors.UnknownTopic:  # an earlier call has come that far
            pass
        except errors.StillNamed:
            text = f"an endpoint of tenant {tenant!r} is created at this moment; repeat the DELETE"
            raise Conflict("tenant_busy", text) from None


def _changed(tenant: str, before: Tenant | None, changes: Mapping[str, Any], now_us: int) -> Tenant:
    """Return a tenant with its changes. Raises `Invalid` if the settings do not go together."""
    there = {} if before is None else msgspec.structs.asdict(before.settings)
    settings = converted({**there, **changes}, TenantSettings)
    if settings.log_retention_s < settings.payload_retention_s:
        text = f"log_retention_s {settings.log_retention_s} must be at least payload_retention_s"
        raise Invalid("invalid_request", f"{text} {settings.payload_retention_s}", "/log_retention_s")
    if before is None:
        return Tenant(tenant, settings, now_us, now_us)
    changed_us = max(now_us, before.changed_us + 1)
    return msgspec.structs.replace(before, settings=settings, changed_us=changed_us)
