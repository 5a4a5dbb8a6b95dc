"""A typed client of the push service's HTTP API, for code with an event loop and for code without one.

    from emq.push.client import AsyncPushClient, PushClient

    with PushClient("http://127.0.0.1:8080", key) as push:
        push.put_tenant("acme", qps=50)
        endpoint = push.create_endpoint("acme", url="https://acme.example/hooks", event_types=["order.*"])
        push.publish("acme", "order.created", {"order": 17})
        for delivery in push.all(push.deliveries, "acme", state="dead"):
            push.resend("acme", delivery.id)

`emq.push.client.operations` has all operations, `emq.push.client.answers` what they return.
"""

from emq.push.client.client import AsyncPushClient, PushClient
from emq.push.client.failures import ApiUnavailable, PushError

__all__ = ["ApiUnavailable", "AsyncPushClient", "PushClient", "PushError"]
