"""Messages: read them."""

from __future__ import annotations

import sqlalchemy as sa

from emq_push.records.accepted import Accepted, Message
from emq_push.records.cursors import Page
from emq_push.records.messages import Head, Messages, Selection
from emq_push.service.parts import Parts
from emq_push.service.refusals import NotFound
from emq_push.service.tenancy import Tenancy


class MessageService:
    """Read messages."""

    def __init__(self, parts: Parts, tenants: Tenancy) -> None:
        self._parts = parts
        self._tenants = tenants
        self._rows = Messages(parts.environment)
        self._accepted = Accepted(parts.environment)

    async def get(self, tenant: str, message: str) -> Message:
        """Return a message with its payload. Raises `NotFound`."""
        found = await self._parts.read(lambda c: self._accepted.find(c, tenant, [message]))
        if message not in found:
            raise NotFound("unknown_message", f"the tenant has no message {message[:128]!r}")
        return found[message]

    async def page(self, tenant: str, selection: Selection, limit: int, cursor: str = "") -> Page[Head]:
        """Return messages, the latest first. Raises `InvalidCursor`, `NotFound`."""

        def read(connection: sa.Connection) -> Page[Head]:
            self._tenants.existing(connection, tenant)
            return self._rows.page(connection, tenant, selection, limit, cursor)

        return await self._parts.read(read)
