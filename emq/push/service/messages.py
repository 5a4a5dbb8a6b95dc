"""Messages: read them, and erase payloads."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence

import sqlalchemy as sa

from emq import errors
from emq.inspect.dead_letters import Selection as LetterSelection
from emq.push.records.accepted import IDS_AT_ONCE, Accepted, Message
from emq.push.records.cursors import Page
from emq.push.records.messages import Head, Messages, Selection
from emq.push.service.parts import Parts
from emq.push.service.refusals import NotFound
from emq.push.service.tenancy import Tenancy

ERASED = "the payload was erased"
"""The reason of deliveries that are cancelled because their payload was erased."""


class MessageService:
    """Read messages, and erase payloads."""

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

    async def erase_key(self, tenant: str, key: str, actor: str) -> int:
        """Delete the payloads of all messages with a key; return how many there were. Safe to repeat.

        Delayed deliveries and retries are taken back and cancelled, and dead letters deleted. A message that waits in a
        queue for its first attempt cannot be taken out: it is delivered, and then gone.

        Raises:
            NotFound: there is no such tenant.
        """
        await self._tenants.get(tenant)
        count, last = 0, ""
        while ids := await self._parts.read(functools.partial(self._of_key, tenant, key, last)):
            count += await self._erase(tenant, ids)
            last = ids[-1]
        changes = {"payloads": count}
        await self._parts.write(
            lambda c: self._parts.audit(c, actor, "messages.erased", "key", tenant=tenant, changes=changes)
        )
        return count

    def _of_key(self, tenant: str, key: str, after: str, connection: sa.Connection) -> Sequence[str]:
        return self._rows.of_key(connection, tenant, key, after, IDS_AT_ONCE)

    async def _erase(self, tenant: str, ids: Sequence[str]) -> int:
        found = await self._parts.read(lambda c: self._accepted.find(c, tenant, ids))
        by_topic: dict[str, list[str]] = {}
        for message in found.values():
            for topic in message.topics:
                by_topic.setdefault(topic, []).append(message.id)
        recalled: dict[str, list[str]] = {}
        for topic, messages in by_topic.items():
            with contextlib.suppress(errors.UnknownTopic):
                recalled[topic] = sorted(await self._parts.app.admin.recall(topic, messages))
                await self._parts.app.purge_dead_letters(topic, LetterSelection(ids=frozenset(messages)))

        def erase(connection: sa.Connection) -> int:
            for topic, messages in recalled.items():
                self._accepted.cancel(connection, topic, ERASED, self._parts.now_us(), messages)
            return self._rows.erase(connection, tenant, ids)

        return await self._parts.write(erase)
