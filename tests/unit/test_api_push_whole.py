"""The push service as a whole: encrypted secrets, records of attempts, an endpoint that is gone and comes back."""

from __future__ import annotations

import base64
from typing import Any

from standardwebhooks.webhooks import Webhook

from emq_push.cli import pushing
from support import push_api
from support.http_receiver import HttpReceiver
from support.waiting import until

KEY = base64.b64encode(b"k" * 32).decode()
ENDPOINTS = "/v1/tenants/acme/endpoints"


async def test_an_endpoint_is_disabled_by_410_and_gets_its_messages_once_it_is_enabled() -> None:
    statuses = {"now": 410}
    receiver = HttpReceiver(lambda request: statuses["now"])
    async with receiver.running(), push_api.opened(push_allow="127.0.0.1", secret_key=KEY) as api:
        await api("PUT", "/v1/tenants/acme", {"qps": 100})
        auth = {"type": "basic", "username": "shop", "password": "hunter22"}
        made = await api("POST", ENDPOINTS, {"url": receiver.url(), "auth": auth}, status=201)
        attributes = (await api.app.catalog.get(f"acme.{made['id']}")).options.attributes
        assert attributes["push.secret"].startswith("enc:v1:")
        assert attributes["push.headers.Authorization"].startswith("enc:v1:")

        async with pushing.with_push(api.app), api.app.running():
            body = {"event_type": "order.paid", "payload": {"n": 1}, "key": "k"}
            receipts = [await api("POST", "/v1/tenants/acme/messages", body, status=202) for _ in range(5)]

            async def disabled() -> Any:
                return (await api("GET", f"{ENDPOINTS}/{made['id']}"))["disabled"]

            assert "HTTP 410" in await until(disabled, step_s=0.05)
            before = len(receiver.requests)
            first = f"/v1/tenants/acme/deliveries/{receipts[0]['deliveries'][0]}"

            async def attempts() -> Any:
                return (await api("GET", f"{first}/attempts"))["data"]

            [attempt] = await until(attempts, step_s=0.05)
            assert (attempt["status"], attempt["outcome"]) == (410, "parked")
            assert (await api("GET", first))["state"] == "parked"

            statuses["now"] = 204
            await api("POST", f"{ENDPOINTS}/{made['id']}:enable")

            async def delivered() -> Any:
                return (await api("GET", first))["state"] == "delivered" and len(receiver.requests) >= before + 5

            await until(delivered, step_s=0.05)
    taken = receiver.requests[before:]
    assert [request.headers["webhook-id"] for request in taken] == [receipt["id"] for receipt in receipts]
    for request in taken:
        Webhook(made["secret"]).verify(request.body, request.headers)
        assert base64.b64decode(request.headers["authorization"].removeprefix("Basic ")) == b"shop:hunter22"
        assert request.headers["emq-attempt"] == "1"
