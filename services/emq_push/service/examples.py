"""A signed example of an event type, which shows that a new endpoint works.

An example is a delivery like others: it waits in the endpoint's queue, starts under the caps of endpoint and tenant,
and has a record. So examples neither make the API wait for a slow endpoint nor pass a limit.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from emq_clients.push.answers import Receipt
from emq_push.records.endpoints import topic_of
from emq_push.service.incoming import Incoming

if TYPE_CHECKING:
    from emq_push.service.service import PushService

HEADER = "emq-example"
"""The header of the message that tells an example from an event."""


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
    if payload is None and (known := await service.event_types.find(event_type)) and known.example is not None:
        payload = msgspec.json.encode(known.example)
    if payload is None:
        data = {"example": True, "message": "an example, sent to see that the endpoint works"}
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(service.parts.now_us() / 1e6))
        payload = msgspec.json.encode({"type": event_type, "timestamp": moment, "data": data})
    priority = found.settings.priorities[0]
    example = Incoming(event_type, msgspec.Raw(payload), priority=priority, headers={HEADER: "true"})
    to = topic_of(tenant, endpoint)
    [receipt] = await service.publishing.publish(tenant, [example], is_single=True, only=to)
    return receipt, payload
