"""Endpoints whose topics sleep: the API works on them as on others, and the next message wakes them."""

from __future__ import annotations

from typing import Any

import emq
from emq.offsets.sleep import put_to_sleep
from emq.topics.model import Topic
from emq_push.cli.pushing import _Surroundings
from support import push_api
from support.http_receiver import HttpReceiver
from support.push_api import Api
from support.push_api_calls import hosting
from support.waiting import until

TENANT = "/v1/tenants/acme"
ENDPOINTS = f"{TENANT}/endpoints"
MESSAGE = {"event_type": "order.paid", "payload": {"n": 1}}

api = push_api.fixture("acme", push_allow="127.0.0.1")


async def asleep(app: emq.App, made: dict[str, Any]) -> str:
    """Put the topic of an endpoint to sleep, as its host does; return its name."""
    name = f"acme.{made['id']}"
    topic = await app.catalog.get(name)
    assert await put_to_sleep(app.store, app.catalog, app.checkpoints, [topic], 0) == {name}
    return name


async def test_an_endpoint_that_sleeps_is_changed_paused_and_resumed_and_gets_its_next_message(
    api: Api, receiver: HttpReceiver
) -> None:
    made = await api("POST", ENDPOINTS, {"url": receiver.url("/before")}, status=201)
    other = await api("POST", ENDPOINTS, {"url": receiver.url("/other")}, status=201)
    name = await asleep(api.app, made)
    await asleep(api.app, other)

    await api("PATCH", f"{ENDPOINTS}/{made['id']}", {"url": receiver.url("/after"), "qps": 7})
    assert (await api("POST", f"{TENANT}:pause"))["paused"] is True
    assert (await api("POST", f"{TENANT}:resume"))["paused"] is False
    await api("PUT", TENANT, {"qps": 50})
    assert (await api("GET", f"{ENDPOINTS}/{made['id']}"))["url"] == receiver.url("/after")
    assert len((await api("GET", ENDPOINTS))["data"]) == 2
    topic: Topic = await api.app.catalog.get(name)
    assert (topic.asleep_s > 0, topic.qps) == (True, 7.0)
    assert await _Surroundings(api.app).pushed([name, "acme", "gone"]) == [name]  # old records of it go

    async with hosting(api):
        await api("POST", f"{TENANT}/messages", MESSAGE, status=202)
        await until(lambda: len(receiver.requests) == 2)
    assert {request.path for request in receiver.requests} == {"/after", "/other"}


async def test_an_endpoint_that_sleeps_is_deleted_with_its_tenant(api: Api) -> None:
    made = [await api("POST", ENDPOINTS, {"url": "http://127.0.0.1:9/"}, status=201) for _ in range(2)]
    for one in made:
        await asleep(api.app, one)
    await api("DELETE", f"{ENDPOINTS}/{made[0]['id']}", status=204)
    assert len((await api("GET", ENDPOINTS))["data"]) == 1
    await api("DELETE", TENANT, status=204)
    assert await api.app.catalog.names("acme*") == []
