"""The rows of tenants."""

from __future__ import annotations

import logging
from typing import Annotated

import msgspec
import sqlalchemy as sa
from msgspec import Meta

from emq_push.records import cursors, rows
from emq_push.records.cursors import Page
from emq_push.records.tables import tenants as table

log = logging.getLogger(__name__)

DAY_S = 86_400


class TenantSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A caller's settings of a tenant.

    Attributes:
        qps: most deliveries started in a second, over all of the tenant's endpoints.
        name: for people.
        payload_retention_s: seconds for which payloads are kept.
        log_retention_s: seconds for which messages, deliveries and attempts are kept; at least as long as payloads.
        delete_on_success: delete a payload as soon as all deliveries of its message have succeeded.
    """

    qps: Annotated[float, Meta(gt=0, le=1e6)]
    name: Annotated[str, Meta(max_length=200)] = ""
    payload_retention_s: Annotated[int, Meta(ge=3600, le=400 * DAY_S)] = 30 * DAY_S
    log_retention_s: Annotated[int, Meta(ge=3600, le=400 * DAY_S)] = 90 * DAY_S
    delete_on_success: bool = False


class Tenant(msgspec.Struct, frozen=True):
    """Attributes:
    id: the caller's own.
    changed_us: grows with each change of the tenant or of one of its endpoints.
    is_going: the tenant is being deleted; it takes no messages.
    is_paused: nothing is delivered until somebody resumes the tenant; it takes messages.
    """

    id: str
    settings: TenantSettings
    created_us: int
    changed_us: int
    is_going: bool = False
    is_paused: bool = False


class _Body(msgspec.Struct, frozen=True, omit_defaults=True):
    settings: TenantSettings
    is_going: bool = False
    is_paused: bool = False


_decode = msgspec.json.Decoder(_Body, strict=False).decode


class Tenants(rows.Rows):
    """The tenants."""

    table = table

    def find(self, connection: sa.Connection, tenant: str) -> Tenant | None:
        row = connection.execute(sa.select(table).where(self._mine, table.c.tenant == tenant)).one_or_none()
        return None if row is None else _tenant(row)

    def save(self, connection: sa.Connection, tenant: Tenant) -> None:
        """Write a tenant, new or changed."""
        values = {
            "environment": self._environment,
            "tenant": tenant.id,
            "body": msgspec.json.encode(_Body(tenant.settings, tenant.is_going, tenant.is_paused)).decode(),
            "created_us": tenant.created_us,
            "changed_us": tenant.changed_us,
        }
        rows.upsert(connection, table, [values])

    def touch(self, connection: sa.Connection, tenant: str, now_us: int) -> None:
        """Note a change of the tenant or its endpoints, so that others read them again."""
        newer = sa.case((table.c.changed_us >= now_us, table.c.changed_us + 1), else_=now_us)
        connection.execute(sa.update(table).where(self._mine, table.c.tenant == tenant).values(changed_us=newer))

    def page(self, connection: sa.Connection, limit: int, cursor: str) -> Page[Tenant]:
        """Return tenants by id. Raises `InvalidCursor`."""
        return cursors.read(connection, sa.select(table).where(self._mine), [table.c.tenant], _tenant, limit, cursor)

    def changed_since(self, connection: sa.Connection, since_us: int) -> list[Tenant]:
        """Return the tenants that were changed at a time or later."""
        query = sa.select(table).where(self._mine, table.c.changed_us >= since_us)
        return [_tenant(row) for row in connection.execute(query)]

    def log_retentions_s(self, connection: sa.Connection) -> dict[str, float]:
        """Return the seconds for which each tenant keeps its log, without those whose rows cannot be read."""
        found: dict[str, float] = {}
        for tenant, body in connection.execute(sa.select(table.c.tenant, table.c.body).where(self._mine)):
            try:
                found[tenant] = _decode(body).settings.log_retention_s
            except msgspec.DecodeError:
                log.warning("tenant %s: its row cannot be read; its log is kept as if it belonged to none", tenant)
        return found

    def beginning(self, connection: sa.Connection, text: str, after: str, limit: int) -> list[Tenant]:
        """Return the first tenants by id whose ids begin with a text and come after another id."""
        query = sa.select(table).where(self._mine, table.c.tenant > after).order_by(table.c.tenant).limit(limit)
        if text:
            query = query.where(table.c.tenant.startswith(text, autoescape=True))
        return [_tenant(row) for row in connection.execute(query)]

    def delete(self, connection: sa.Connection, tenant: str) -> None:
        connection.execute(sa.delete(table).where(self._mine, table.c.tenant == tenant))


def _tenant(row: sa.Row[tuple[object, ...]]) -> Tenant:
    body = _decode(row.body)
    return Tenant(row.tenant, body.settings, row.created_us, row.changed_us, body.is_going, body.is_paused)
