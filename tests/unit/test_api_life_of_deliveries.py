"""The life of deliveries through the API, with a host that sends them: delivered, dead, replayed, expired, parked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support import push_api
from support.http_receiver import HttpReceiver
from support.push_api import Api
from support.push_api_calls import hosting
from support.waiting import until

T = "/v1/tenants/t1"


api = push_api.fixture("t1", push_allow="127.0.0.1")


async def endpoint(api: Api, receiver: HttpReceiver, **settings: Any) -> str:
    body = {"url": receiver.url("/hook"), "retry_schedule_s": [0.05], **settings}
    return str((await api("POST", f"{T}/endpoints", body))["id"])


async def comes_to(api: Api, delivery: str, state: str) -> dict[str, Any]:
    """Wait until a delivery is in the state."""

    async def found() -> Any:
        delivery_now = await api("GET", f"{T}/deliveries/{delivery}")
        return delivery_now if delivery_now["state"] == state else None

    return dict(await until(found, step_s=0.05))


async def test_a_dead_delivery_is_replayed_and_delivered_under_its_own_id(api: Api, receiver: HttpReceiver) -> None:
    id_ = await endpoint(api, receiver)
    receiver.answers = lambda _: 500
    sent = await api("POST", f"{T}/messages", {"event_type": "order.paid", "payload": {"n": 1}})
    [delivery] = sent["deliveries"]
    async with hosting(api), api.service.keeping():
        dead = await comes_to(api, delivery, "dead")
        assert (dead["attempts"], dead["status"], dead["endpoint"]) == (2, 500, id_)
        assert [a["outcome"] for a in dead["latest_attempts"]] == ["dead", "retry"]
        assert (await api("GET", f"{T}/dead-letters/count"))["dead"] == 1
        [letter] = (await api("GET", f"{T}/dead-letters"))["data"]
        assert {failed["reason"] for failed in letter["history"]} == {"HTTP 500"}
        receiver.answers = lambda _: 204
        made = await api("POST", f"{T}/replays", {"filter": {"endpoint": id_}, "rate_per_s": 100}, status=202)
        done = await comes_to(api, delivery, "delivered")
        assert done["status"] == 204
        async with asyncio.timeout(10):
            while (now := await api("GET", f"{T}/replays/{made['id']}"))["state"] != "done":
                await asyncio.sleep(0.05)
        assert (now["replayed"], now["left_out"], now["trouble"]) == (1, 0, "")
        # Once more, and this time a delivered one.
        await api("POST", f"{T}/deliveries/{delivery}:resend", status=202)
        requests = await receiver.got(4)
        await comes_to(api, delivery, "delivered")
    assert {r.headers["webhook-id"] for r in requests} == {sent["id"]}
    assert {r.body for r in requests} == {b'{"n":1}'}
    assert {r.headers["emq-header-event-type"] for r in requests} == {"order.paid"}
    assert [r.headers["emq-attempt"] for r in requests] == ["1", "2", "1", "1"]
    assert (await api("GET", f"{T}/dead-letters/count"))["dead"] == 0


@pytest.mark.parametrize("action", ["", ":pause", ":disable"])
async def test_an_expired_delivery_is_dead_at_once_also_while_its_endpoint_gets_nothing(
    api: Api, receiver: HttpReceiver, action: str
) -> None:
    id_ = await endpoint(api, receiver, retry_schedule_s=[60])
    receiver.answers = lambda _: 500
    async with hosting(api), api.service.keeping():
        first = await api("POST", f"{T}/messages", {"event_type": "order.paid", "payload": {}})
        await comes_to(api, first["deliveries"][0], "delayed")  # so the host is at work
        await api("POST", f"{T}/deliveries/{first['deliveries'][0]}:cancel")
        if action:
            await api("POST", f"{T}/endpoints/{id_}{action}")
            await asyncio.sleep(2.5)  # until the host has followed
        sent = await api("POST", f"{T}/messages", {"event_type": "order.paid", "payload": {"n": 1}, "ttl_s": 1.5})
        ended = await comes_to(api, sent["deliveries"][0], "dead")
        made = 0 if action else 1
        assert (ended["reason"], ended["attempts"], len(receiver.requests)) == ("expired", made, 1 + made)
        lag = await api("GET", f"{T}/lag")
        assert lag["oldest_claimable_s"] is None, "nothing waits"
        attempts = await api("GET", f"{T}/deliveries/{sent['deliveries'][0]}/attempts")
        assert len(attempts["data"]) == made
