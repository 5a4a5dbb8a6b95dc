"""Sends one delivery again, and takes back one that waits."""

from __future__ import annotations

import logging

import sqlalchemy as sa

from emq.runtime import errors
from emq.topics.model import State, Topic
from emq_push.records import deliveries
from emq_push.records.accepted import Accepted
from emq_push.records.deliveries import Deliveries, Delivery
from emq_push.service import again
from emq_push.service.again import Item
from emq_push.service.parts import Parts
from emq_push.service.reading import ReadingService, ShownDelivery
from emq_push.service.refusals import Conflict, Invalid, TryAgain

log = logging.getLogger(__name__)


class ResendingService:
    """Resend and cancel single deliveries."""

    def __init__(self, parts: Parts, reading: ReadingService) -> None:
        self._parts = parts
        self._reading = reading
        self._rows = Deliveries(parts.environment)
        self._messages = Accepted(parts.environment)

    async def resend(self, tenant: str, id_: str, actor: str, priority: str | None = None) -> ShownDelivery:
        """Let a delivery that is over wait again, as a first attempt; a dead letter leaves the dead letters.

        Args:
            priority: name of the priority at which it waits; None for its own.

        Raises:
            NotFound: the tenant has no such delivery.
            Conflict: it is not over yet, its endpoint was deleted, or its payload was erased.
            Invalid: the endpoint has no such priority.
            TryAgain: the store did not take it; it is as before, or is shown as waiting until the next look of
                `emq_push.service.reconciling`.
        """
        row = (await self._reading.delivery(tenant, id_)).delivery
        if row.state == deliveries.PENDING:
            raise Conflict("not_settled", "the delivery is still under way; only one that is over can be sent again")
        topic = await self._topic(row)
        if priority is not None and priority not in topic.priorities:
            text = f"priority {priority[:80]!r} is not one of the endpoint's: {', '.join(topic.priorities)}"
            raise Invalid("invalid_priority", text, "/priority")
        item = await self._item(row, priority)

        def begin(connection: sa.Connection) -> bool:
            if not self._rows.wait_again(connection, [row]):
                return False
            self._parts.audit(connection, actor, "delivery.resent", row.id, tenant=tenant)
            return True

        if not await self._parts.write(begin):
            raise Conflict("changed", "the delivery has changed meanwhile; read it again")
        try:
            await again.put(self._parts, topic, [item])
        except errors.EMQError as exc:
            await self._undo(row)
            log.warning("a delivery of %s cannot be sent again: %s", row.topic, exc)
            raise TryAgain("unavailable", "the store did not take the message; try again") from exc
        return await self._reading.delivery(tenant, id_)

    async def cancel(self, tenant: str, id_: str, actor: str) -> ShownDelivery:
        """Take back a delivery that waits for its next attempt or for its time; it is never sent then.

        A delivery is either taken back or sent, never both. One that waits for its first attempt in a queue, or that a
        host has taken to send it, cannot be taken back.

        Raises:
            NotFound: the tenant has no such delivery.
            Conflict: it is over, or cannot be taken back now.
        """
        row = (await self._reading.delivery(tenant, id_)).delivery
        if row.state != deliveries.PENDING:
            raise Conflict("settled", f"the delivery is over: it was {row.state}")
        try:
            taken = await self._parts.app.admin.recall(row.topic, [row.message])
        except errors.UnknownTopic:
            taken = {row.message}  # its endpoint was deleted, and its messages with it
        if row.message not in taken:
            text = "a host has taken the delivery, or it waits for its first attempt; it cannot be taken back now"
            raise Conflict("not_recallable", text)

        def end(connection: sa.Connection) -> None:
            reason, now_us = f"cancelled by {actor}"[:200], self._parts.now_us()
            self._rows.end(connection, row.topic, deliveries.CANCELLED, reason, now_us, [row.message])
            self._parts.audit(connection, actor, "delivery.cancelled", row.id, tenant=tenant)

        await self._parts.write(end)
        return await self._reading.delivery(tenant, id_)

    async def _topic(self, row: Delivery) -> Topic:
        found = await self._parts.app.catalog.some([row.topic])
        topic = found.get(row.topic)
        if topic is None or topic.state is State.DRAINING:
            raise Conflict("endpoint_gone", f"endpoint {row.endpoint!r} was deleted, and takes no messages")
        return topic

    async def _item(self, row: Delivery, priority: str | None) -> Item:
        found = await self._parts.read(lambda c: self._messages.find_alone(c, row.tenant, [row.message]))
        message = found.get(row.message)
        if message is None or message.payload is None:
            raise Conflict("payload_erased", "the payload was erased after its retention, so it cannot be sent again")
        return Item(message, message.payload, priority)

    async def _undo(self, row: Delivery) -> None:
        """Set the row back, as far as the database lets us; nothing was sent."""

        def undo(connection: sa.Connection) -> None:
            now = self._rows.get(connection, row.tenant, row.endpoint, row.message)
            if now is not None and now.state == deliveries.PENDING and not now.attempts:
                self._rows.restore(connection, row)

        try:
            await self._parts.write(undo)
        except errors.DatabaseUnavailable:
            return
