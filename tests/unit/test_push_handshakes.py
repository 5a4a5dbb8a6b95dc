"""The handshake of CloudEvents webhooks by the API, and the rate that an endpoint allowed: it binds later, too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from emq import App
from emq.runtime import errors
from emq.topics import model
from emq_push import allowed_rates
from support import push_api
from support.emq_shell import Shell
from support.http_receiver import HttpReceiver, Request
from support.push_api import Api
from support.push_api_calls import hosting
from support.waiting import until

TENANT = "/v1/tenants/acme"
ORIGIN = {"origin": "events.example.com"}


class Endpoint:
    """Attributes:
    answers: headers of its answer to a handshake.
    path: of the endpoint in the API.
    """

    def __init__(self, api: Api, receiver: HttpReceiver) -> None:
        self.api, self.receiver = api, receiver
        self.answers: dict[str, str] = {}
        self.path = self.topic = ""
        receiver.answers = lambda request: web.Response(headers=self.answers)

    async def create(self) -> None:
        made = await self.api("POST", f"{TENANT}/endpoints", {"url": self.receiver.url("/in")}, status=201)
        self.path, self.topic = f"{TENANT}/endpoints/{made['id']}", f"acme.{made['id']}"

    async def qps(self) -> float:
        return (await self.api.app.catalog.get(self.topic)).qps

    async def binds(self, qps: float) -> None:
        """Wait until the topic has this qps."""

        async def is_bound() -> bool:
            return await self.qps() == qps

        await until(is_bound, step_s=0.02)

    async def shake(self) -> dict[str, Any]:
        """Start a handshake; return what came of it, once a host has asked."""
        asked = await self.api("POST", f"{self.path}:handshake", ORIGIN, status=202)
        assert (asked["state"], asked["origin"]) == ("asked", ORIGIN["origin"])

        async def answered() -> Any:
            found = await self.api("GET", f"{self.path}/handshake")
            return None if found["state"] == "asked" else found

        return dict(await until(answered, step_s=0.02))

    async def attributes(self) -> dict[str, str]:
        return dict((await self.api.app.catalog.get(self.topic)).options.attributes)


@pytest.fixture
async def endpoint(receiver: HttpReceiver) -> AsyncIterator[Endpoint]:
    async with push_api.opened("acme", push_allow="127.0.0.1") as api:
        found = Endpoint(api, receiver)
        await found.create()
        async with hosting(api):
            yield found


async def test_an_endpoint_agrees_and_its_rate_binds_whatever_is_changed_later(endpoint: Endpoint) -> None:
    api = endpoint.api
    assert (await api("GET", f"{endpoint.path}/handshake"))["state"] == "none"
    endpoint.answers = {"WebHook-Allowed-Origin": "events.example.com", "WebHook-Allowed-Rate": "120"}
    shaken = await endpoint.shake()
    assert (shaken["state"], shaken["allowed_rate_per_min"], shaken["origin"]) == ("agreed", 120, "events.example.com")
    assert await api("GET", f"{endpoint.path}/handshake") == shaken
    asked: Request = endpoint.receiver.requests[0]
    assert asked.method == "OPTIONS"
    assert asked.headers["webhook-request-rate"] == "6000"
    await endpoint.binds(2)
    await api("PATCH", endpoint.path, {"qps": 50})
    assert await endpoint.qps() == 2
    await api("PUT", TENANT, {"qps": 80})
    assert await endpoint.qps() == 2
    await api("PATCH", endpoint.path, {"qps": 1})
    assert await endpoint.qps() == 1
    with pytest.raises(errors.InvalidTopic, match="more than its endpoint allows: 2 a second"):
        await api.app.update_topic(endpoint.topic, qps=50)
    assert (await endpoint.attributes())["push.origin"] == "events.example.com"


async def test_another_handshake_may_allow_more(endpoint: Endpoint) -> None:
    endpoint.answers = {"WebHook-Allowed-Origin": "*", "WebHook-Allowed-Rate": "60"}
    await endpoint.shake()
    await endpoint.binds(1)
    endpoint.answers = {"WebHook-Allowed-Origin": "*", "WebHook-Allowed-Rate": "*"}
    assert (await endpoint.shake())["allowed_rate_per_min"] is None
    await endpoint.binds(100)
    assert endpoint.receiver.requests[-1].headers["webhook-request-rate"] == "6000", "it asks for what it wants"


async def test_an_endpoint_that_does_not_agree_is_told_and_nothing_changes(endpoint: Endpoint) -> None:
    before = await endpoint.attributes()
    shaken = await endpoint.shake()
    assert shaken["state"] == "refused"
    assert "no WebHook-Allowed-Origin" in shaken["reason"]
    assert await endpoint.attributes() == before
    assert await endpoint.api("GET", f"{endpoint.path}/handshake") == shaken


async def test_an_agreement_is_outdated_under_another_url_and_its_rate_still_binds(endpoint: Endpoint) -> None:
    endpoint.answers = {"WebHook-Allowed-Origin": "*", "WebHook-Allowed-Rate": "120"}
    await endpoint.shake()
    await endpoint.binds(2)
    await endpoint.api("PATCH", endpoint.path, {"url": endpoint.receiver.url("/other")})
    assert (await endpoint.api("GET", f"{endpoint.path}/handshake"))["state"] == "outdated"
    assert await endpoint.qps() == 2


@pytest.mark.parametrize("origin", ["", "a b", "https://events.example.com", "-a", "a\r\nb"])
async def test_an_origin_that_is_no_name_is_refused(endpoint: Endpoint, origin: str) -> None:
    await endpoint.api("POST", f"{endpoint.path}:handshake", {"origin": origin}, status=422)
    assert endpoint.receiver.requests == []


async def test_handshakes_wait_in_the_queue_under_the_cap_and_hold_up_no_request(endpoint: Endpoint) -> None:
    api, release = endpoint.api, asyncio.Event()
    asked: list[float] = []

    async def hang(_: Request) -> web.Response:
        asked.append(asyncio.get_running_loop().time())
        await release.wait()
        return web.Response()

    endpoint.receiver.answers = hang
    await api("PATCH", endpoint.path, {"qps": 5})
    async with asyncio.timeout(60):  # the endpoint hangs, so a request that waited for it would take longer
        for _ in range(30):
            await api("POST", f"{endpoint.path}:handshake", ORIGIN, status=202)
    await until(lambda: asked)
    await asyncio.sleep(1.5)
    assert len(asked) <= 5 * (asked[-1] - asked[0] + 2)
    release.set()


async def test_what_an_endpoint_said_under_another_url_is_dropped(endpoint: Endpoint) -> None:
    api, release = endpoint.api, asyncio.Event()

    async def late(_: Request) -> web.Response:
        await release.wait()
        return web.Response(headers={"WebHook-Allowed-Origin": "*", "WebHook-Allowed-Rate": "60"})

    endpoint.receiver.answers = late
    await api("POST", f"{endpoint.path}:handshake", ORIGIN, status=202)
    await until(lambda: endpoint.receiver.requests)
    await api("PATCH", endpoint.path, {"url": endpoint.receiver.url("/other")})
    release.set()
    await asyncio.sleep(0.3)
    assert (await api("GET", f"{endpoint.path}/handshake"))["state"] == "outdated"
    assert await endpoint.qps() == 100


# ------------------------------------------------------------------------------------------------------ plain topics


@pytest.mark.parametrize(
    ("rate", "most"), [("120", 2.0), ("100", 1.666666), ("1", 0.016666), ("1000000000", 16_666_666.666666)]
)
def test_the_most_qps_has_the_decimals_that_a_qps_may_have(rate: str, most: float) -> None:
    assert allowed_rates.most_qps({"push.allowed_rate": rate}) == most


def test_the_rate_binds_a_plain_topic_on_the_command_line(emq: Shell) -> None:
    emq("topic create shop --qps 1")
    emq("topic set shop push.url=http://shop.example/ push.allowed_rate=100")
    assert "more than its endpoint allows: 1.66667 a second" in emq.refused("topic set shop qps=2")
    emq("topic set shop qps=1.5")
    emq("topic set shop qps=2 push.allowed_rate=")


async def test_a_topic_that_was_above_the_rate_before_can_be_changed_otherwise() -> None:
    attributes = {"push.url": "http://shop.example/", "push.allowed_rate": "60"}
    options = model.TopicOptions(attributes=attributes)
    before = model.Topic("shop", 5.0, options=options)
    allowed_rates.check(model.Topic("shop", 5.0, options=options, state=model.State.PAUSED), before)
    allowed_rates.check(model.Topic("shop", 4.0, options=options), before)
    with pytest.raises(errors.InvalidTopic):
        allowed_rates.check(model.Topic("shop", 6.0, options=options), before)
    async with App("memory:") as app:
        with pytest.raises(errors.InvalidTopic):
            await app.create_topic("shop", 5, attributes=attributes)
