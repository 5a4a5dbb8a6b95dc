"""One signed example of an event type, sent to an endpoint at once: whoever sets an endpoint up sees that it works."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import msgspec

from emq import errors
from emq.message import Message
from emq.push.addresses import AddressFilter
from emq.push.endpoint import Endpoint
from emq.push.pusher import Pusher
from emq.push.records.accepted import EVENT_TYPE
from emq.push.service.endpoints import EndpointService
from emq.push.service.parts import Parts
from emq.push.service.refusals import Invalid

HEADER = "emq-example"
"""The header of the message that tells an example from an event."""


class Example(msgspec.Struct, frozen=True):
    """What became of an example.

    Attributes:
        outcome: "delivered" or "failed".
        reason: why it failed.
        took_ms: from the connection to the end of the answer.
    """

    id: str
    outcome: str
    reason: str
    took_ms: int
    payload: Any


class ExampleService:
    """Sends examples."""

    def __init__(self, parts: Parts, endpoints: EndpointService) -> None:
        self._parts = parts
        self._endpoints = endpoints

    async def send(self, tenant: str, endpoint: str, event_type: str, payload: bytes | None = None) -> Example:
        """Send one example to an endpoint, past its queue and its limit; it leaves no delivery.

        Args:
            payload: JSON; None for one that the service makes up.

        Raises:
            NotFound: there is no such endpoint.
            Invalid: the topic of the endpoint is damaged.
        """
        found = await self._endpoints.get(tenant, endpoint)
        topic = await self._parts.app.catalog.get(found.topic)
        now_us, id_ = self._parts.now_us(), self._parts.new_id("msg")
        if payload is None:
            data = {"example": True, "message": "an example, sent to see that the endpoint works"}
            moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_us / 1e6))
            payload = msgspec.json.encode({"type": event_type, "timestamp": moment, "data": data})
        try:
            target = Endpoint.from_topic(topic, self._parts.secrets)
        except errors.InvalidTopic as exc:
            raise Invalid("invalid_endpoint", str(exc)) from exc
        assert target is not None, "the topic of an endpoint has a URL"
        # By itself, and also while the endpoint is disabled: the example may be to see whether it works again.
        target = dataclasses.replace(target, batching=None, disabled="")
        message = Message(
            id_, payload, None, now_us, {EVENT_TYPE: event_type, HEADER: "true"}, 0, topic=topic.name, started_us=now_us
        )
        began = time.monotonic()
        addresses = AddressFilter.of_settings(self._parts.app.settings)
        reason = ""
        async with Pusher(lambda _: target, clock=self._parts.app.clock, addresses=addresses, connections=1) as pusher:
            try:
                await pusher(message)
            except (errors.Retry, errors.Reject, errors.GiveBack) as exc:
                reason = str(exc)
        took_ms = round((time.monotonic() - began) * 1000)
        return Example(id_, "failed" if reason else "delivered", reason, took_ms, msgspec.json.decode(payload))
