"""Finding tenants: what all parts of the service share."""

from __future__ import annotations

import re

import sqlalchemy as sa

from emq_push.records.tenants import Tenant, Tenants
from emq_push.service.parts import Parts
from emq_push.service.refusals import Invalid, NotFound

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def unknown(tenant: str) -> NotFound:
    return NotFound("unknown_tenant", f"there is no tenant {tenant[:80]!r}")


def check_id(tenant: str) -> None:
    """Raise `Invalid` unless the text can be a tenant's id. It has no dot, so that no endpoint's topic is one."""
    if not _ID.fullmatch(tenant):
        text = f"tenant id {tenant[:80]!r} must be 1 to 64 letters, digits, hyphens and underscores"
        raise Invalid("invalid_tenant_id", text)


class Tenancy:
    """Finds tenants."""

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
