"""A signed example of an event type, which shows that a new endpoint works.

An example is a delivery like others: it waits in the endpoint's queue, starts under the caps of endpoint and tenant,
and has a record. So examples neither make the API wait for a slow endpoint nor pass a limit.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from emq.storage.message import Message
from emq_clients.push.answers import Receipt
from emq_push.attributes import EVENT_TYPE
from emq_push.records.endpoints import topic_of
from emq_push.service.incoming import Incoming
from emq_push.service.refusals import Invalid
from emq_push.template import parsed

if TYPE_CHECKING:
    from emq_push.service.service import PushService

HEADER = "emq-example"
"""The header of the message that tells an example from an event."""


async def payload_of(service: PushService, event_type: str) -> bytes:
    """Return the example of the catalogue, or else one that the service makes up."""
    if (known := await service.event_types.find(event_type)) and known.example is not None:
        return msgspec.json.encode(known.example)
    data = {"example": True, "message": "an example, sent to see that the endpoint works"}
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(service.parts.now_us() / 1e6))
    return msgspec.json.encode({"type": event_type, "timestamp": moment, "data": data})


async def preview(
    service: PushService,
    tenant: str,
    template: Mapping[str, Any] | None,
    event_type: str,
    payload: bytes | None = None,
) -> bytes:
    """Return what an endpoint with this template would get for an example, which is sent to nobody.

    Args:
        payload: JSON; None for the example of the event type.

    Raises:
        Invalid: the template is wrong, or cannot rewrite the payload.
    """
    payload = payload or await payload_of(service, event_type)
    try:
        found = None if template is None else parsed(msgspec.json.encode(template).decode())
    except ValueError as exc:
        raise Invalid("invalid_request", f"template {exc}", "/template") from None
    example = Message("msg_example", payload, headers={EVENT_TYPE: event_type}, topic=topic_of(tenant, "ep_example"))
    try:
        return payload if found is None else found.rewritten(example).payload
    except ValueError as exc:
        raise Invalid("invalid_request", f"template: {exc}", "/payload") from None


async def send(
    service: PushService, tenant: str, endpoint: str, event_type: str, payload: bytes | None = None
) -> tuple[Receipt, bytes]:
    """Send one example to an endpoint, whatever its event types and filters; return its delivery and its payload.

    It waits at the endpoint's highest priority.

    Args:
        payload: JSON; None for that of the catalogue, or else one that the service makes up.

    Raises:
        NotFound: there is no such endpoint.
        TryAgain, DatabaseUnavailable: as `Publishing.publish`.
    """
    found = await service.endpoints.get(tenant, endpoint)
    payload = payload or await payload_of(service, event_type)
    priority = found.settings.priorities[0]
    example = Incoming(event_type, msgspec.Raw(payload), priority=priority, headers={HEADER: "true"})
    to = topic_of(tenant, endpoint)
    [receipt] = await service.publishing.publish(tenant, [example], is_single=True, only=to)
    return receipt, payload
