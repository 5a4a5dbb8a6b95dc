"""The push service over an open app: one attribute for each of its parts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from emq.app import App
from emq.loops.guard import Guard
from emq.push.addresses import AddressFilter
from emq.push.records import schema
from emq.push.records.audit_log import AuditLog, Entry
from emq.push.records.cursors import Page
from emq.push.service.endpoints import EndpointService
from emq.push.service.examples import ExampleService
from emq.push.service.keys import KeyService
from emq.push.service.messages import MessageService
from emq.push.service.parts import Parts
from emq.push.service.publishing import Publishing
from emq.push.service.reach import Reach
from emq.push.service.tenants import TenantService
from emq.push.service.upkeep import Upkeep


class PushService:
    """What the API, the dashboard and the command line call.

    Args:
        app: open, and open for as long as the service is used.

    Attributes:
        parts: the app, its database, ids and the audit log.
        tenants, endpoints, messages, publishing, examples, keys: see their modules.
    """

    def __init__(self, app: App) -> None:
        self.parts = Parts(app)
        self._reach = Reach(AddressFilter.of_setting(app.settings.push_allow))
        self.endpoints = EndpointService(self.parts, self._reach)
        self.tenants = TenantService(self.parts, self.endpoints)
        self.messages = MessageService(self.parts, self.tenants)
        self.publishing = Publishing(self.parts)
        self.examples = ExampleService(self.parts, self.endpoints)
        self.keys = KeyService(self.parts, self.tenants)

    @classmethod
    async def open(cls, app: App) -> PushService:
        """Create the service's tables if they are missing.

        Raises:
            DatabaseUnavailable: there is no connection; try again.
        """
        await schema.ensure(app.database)
        return cls(app)

    async def audit_log(self, limit: int, cursor: str = "", tenant: str | None = None) -> Page[Entry]:
        """Return who changed what, the latest first. Raises `InvalidCursor`."""
        rows = AuditLog(self.parts.environment)
        return await self.parts.read(lambda c: rows.page(c, limit, cursor, tenant))

    @contextlib.asynccontextmanager
    async def keeping(self) -> AsyncIterator[None]:
        """Do the upkeep for the length of a block; then write down what was sent."""
        upkeep = Upkeep(self)
        tasks = Guard().start({"push leftovers": upkeep.send_left, "push upkeep": upkeep.tidy})
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.close()

    async def close(self) -> None:
        """Write down what was sent, and end the threads of name look-ups. Safe to repeat."""
        await self.publishing.close()
        await self._reach.close()
