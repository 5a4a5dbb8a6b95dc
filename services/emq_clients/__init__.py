"""Typed clients of EMQ's HTTP API, for code with an event loop and for code without one.

`PushClient` has the operations of the push service:

    from emq_clients import PushClient

    with PushClient("http://127.0.0.1:8080", key) as push:
        push.put_tenant("acme", qps=50)
        endpoint = push.create_endpoint("acme", url="https://acme.example/hooks", event_types=["order.*"])
        push.publish("acme", "order.created", {"order": 17})
        for delivery in push.all(push.deliveries, "acme", state="dead"):
            push.resend("acme", delivery.id)

`PoolClient` has those of resource scheduling:

    from emq_clients import PoolClient

    with PoolClient("http://127.0.0.1:8080", key) as pools:
        receipt = pools.submit("sms", "code", {"to": "+49301234567", "code": "483920"}, tenant="shop")
        print(pools.status("sms", receipt.id, task_type="code", tenant="shop").state)
        pools.set_limits("sms", "acme", [{"name": "messages", "amount": 20, "per": "second"}])

`operations` and `messages` of `emq_clients.push`, and `operations` of `emq_clients.pools`, have the operations, and
`cluster` of the former those for operators; `answers` has what they return.
"""

from emq_clients.failures import ApiError, ApiUnavailable
from emq_clients.pools.client import AsyncPoolClient, PoolClient
from emq_clients.push.client import AsyncPushClient, PushClient

__all__ = ["ApiError", "ApiUnavailable", "AsyncPoolClient", "AsyncPushClient", "PoolClient", "PushClient"]
