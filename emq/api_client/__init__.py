"""Typed clients of EMQ's HTTP API, for code with an event loop and for code without one.

`PushClient` has the operations of the push service:

    from emq.api_client import PushClient

    with PushClient("http://127.0.0.1:8080", key) as push:
        push.put_tenant("acme", qps=50)
        endpoint = push.create_endpoint("acme", url="https://acme.example/hooks", event_types=["order.*"])
        push.publish("acme", "order.created", {"order": 17})
        for delivery in push.all(push.deliveries, "acme", state="dead"):
            push.resend("acme", delivery.id)

`emq.api_client.push.operations` has its operations, `emq.api_client.push.answers` what they return.
"""

from emq.api_client.failures import ApiError, ApiUnavailable
from emq.api_client.push.client import AsyncPushClient, PushClient

__all__ = ["ApiError", "ApiUnavailable", "AsyncPushClient", "PushClient"]
