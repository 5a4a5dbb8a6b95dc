"""The facts about a tenant that publishing needs, kept in memory while they are true."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import sqlalchemy as sa

from emq_push.records.endpoints import Endpoints
from emq_push.records.tables import tenants as table
from emq_push.records.tenants import Tenant, Tenants
from emq_push.service.matching import Matcher

MOST = 10_000
"""Most tenants in memory."""


class Plan(NamedTuple):
    """A tenant with its endpoints."""

    tenant: Tenant
    matcher: Matcher


class Plans:
    """Tenants and their endpoints.

    A change of a tenant or of one of its endpoints gives the tenant's row a new `changed_us`. Each transaction compares
    it, by one look-up for all its tenants. So the next message sees a change on another process.

    Args:
        environment: "online" or "sandbox".
    """

    def __init__(self, environment: str) -> None:
        self._mine = table.c.environment == environment
        self._tenants = Tenants(environment)
        self._endpoints = Endpoints(environment)
        self._known: dict[str, Plan] = {}

    def of(self, connection: sa.Connection, names: Collection[str]) -> dict[str, Plan]:
        """Return the plans of those tenants that exist."""
        query = sa.select(table.c.tenant, table.c.changed_us).where(self._mine, table.c.tenant.in_(names))
        found: dict[str, Plan] = {}
        for name, changed_us in connection.execute(query):
            plan = self._known.get(name)
            if plan is None or plan.tenant.changed_us != changed_us:
                plan = self._read(connection, name)
            if plan is not None and not plan.tenant.is_going:
                found[name] = plan
        return found

    def _read(self, connection: sa.Connection, name: str) -> Plan | None:
        # The endpoints after the tenant: a change in between is then read again, never missed.
        tenant = self._tenants.find(connection, name)
        if tenant is None:
            return None
        plan = Plan(tenant, Matcher(self._endpoints.of(connection, name)))
        if len(self._known) >= MOST:
            self._known.clear()
        self._known[name] = plan
        return plan
