"""How a delivery says who sends: Basic, OAuth 2.0, client certificates; and the handshake of CloudEvents webhooks."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yarl
from aiohttp import web

from emq.runtime import errors
from emq.storage.message import Message
from emq_push import handshake
from emq_push.addresses import AddressFilter
from emq_push.endpoint import Endpoint
from emq_push.oauth2 import REFUSED_S, OAuth2, Tokens
from emq_push.pusher import Pusher, Reports
from support.authority import Authority
from support.emq_shell import Shell
from support.http_receiver import HttpReceiver, Request
from support.manual_clock import ManualClock
from support.pushing import ANY, Attempts, deliver, endpoint, message, topic

NOW_S = 1_700_000_000.0


# --------------------------------------------------------------------------------------------------------------- basic


async def test_user_and_password_go_with_each_request(receiver: HttpReceiver) -> None:
    assert await deliver(endpoint(receiver.url(), basic="shop:pässword:1")) == [None]
    kind, _, given = receiver.requests[0].headers["authorization"].partition(" ")
    assert (kind, base64.b64decode(given).decode()) == ("Basic", "shop:pässword:1")


# ------------------------------------------------------------------------------------------------------------- OAuth 2


class Server(HttpReceiver):
    """An endpoint and its token server in one: hands out t1, t2, ... and accepts those that `accepts` says."""

    def __init__(self, life_s: object = 3600, accepts: Callable[[str], bool] = lambda token: True) -> None:
        super().__init__(self._answer)
        self.life_s = life_s
        self.accepts = accepts
        self.token_status = 200
        self.delay_s = 0.0
        self.fetched = 0

    async def _answer(self, request: Request) -> web.Response | int:
        if request.path != "/token":
            return 204 if self.accepts(request.headers["authorization"]) else 401
        await asyncio.sleep(self.delay_s)
        if self.token_status != 200:
            return self.token_status
        self.fetched += 1
        body = {"access_token": f"t{self.fetched}", "token_type": "Bearer", "expires_in": self.life_s}
        return web.json_response(body)

    @property
    def used(self) -> list[str]:
        return [request.headers["authorization"] for request in self.requests if request.path != "/token"]

    def endpoint(self) -> Endpoint:
        url = self.url("/token")
        secret = "s3:cret"
        return endpoint(
            url=self.url("/hook"), oauth2__url=url, oauth2__client_id="a b", oauth2__secret=secret, oauth2__scope="x y"
        )


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    found = Server()
    async with found.running():
        yield found


@pytest.mark.parametrize("said", ["the token {} is unknown", "Bearer {}", "the end: {}"])
async def test_a_token_that_an_endpoint_repeats_is_masked(said: str, receiver: HttpReceiver) -> None:
    token = "eyJhbGciOiJub25lIn0.s3cret"

    def answers(request: Request) -> web.Response:
        if request.path == "/token":
            return web.json_response({"access_token": token})
        return web.Response(status=500, text=said.format(token))

    receiver.answers = answers
    credentials = {"oauth2__url": receiver.url("/token"), "oauth2__client_id": "c", "oauth2__secret": "s" * 8}
    [failure] = await deliver(endpoint(receiver.url(), **credentials))
    assert isinstance(failure, errors.Retry)
    assert "s3cret" not in failure.reason
    assert "***" in failure.reason


async def test_a_token_is_fetched_once_for_many_deliveries(server: Server) -> None:
    server.delay_s = 0.05
    assert await deliver(server.endpoint(), *map(message, "abcdef")) == [None] * 6
    assert server.used == ["Bearer t1"] * 6
    [asked] = [request for request in server.requests if request.path == "/token"]
    assert asked.body == b"grant_type=client_credentials&scope=x+y"
    assert base64.b64decode(asked.headers["authorization"].removeprefix("Basic ")) == b"a+b:s3%3Acret"


@pytest.mark.parametrize(("life_s", "until_s"), [(3600, 3540), (100, 90), ("100", 90), (None, 270)])
async def test_a_token_is_fetched_again_before_its_end(server: Server, life_s: object, until_s: float) -> None:
    server.life_s, clock = life_s, ManualClock(NOW_S)
    async with Pusher({"t": server.endpoint()}.get, clock=clock, addresses=ANY) as push:
        await push(message())
        clock.advance(until_s - 1)
        await push(message())
        assert server.fetched == 1
        clock.advance(2)
        await push(message())
        assert server.used == ["Bearer t1"] * 3
        async with asyncio.timeout(20):
            while server.used[-1] != "Bearer t2":  # the host has it some time after the server has given it
                await push(message())
        assert server.fetched == 2


async def test_a_token_is_used_to_its_end_while_its_server_hangs_or_fails(server: Server) -> None:
    server.life_s, clock = 100, ManualClock(NOW_S)
    async with Pusher({"t": server.endpoint()}.get, clock=clock, addresses=ANY) as push:
        await push(message())
        clock.advance(91)
        server.delay_s, server.token_status = 0.5, 503
        for _ in range(3):
            await push(message())
            assert server.used[-1] == "Bearer t1"
            await asyncio.sleep(0.6)
        assert sum(r.path == "/token" for r in server.requests) == 2, "a server that fails is left alone for a while"
        clock.advance(10)
        with pytest.raises(errors.Retry, match="no token"):
            await push(message())
        clock.advance(REFUSED_S)
        server.token_status = 200
        await push(message())
        assert server.used[-1] == "Bearer t2"


async def test_a_slow_token_server_does_not_make_its_endpoint_slow(server: Server) -> None:
    made = Attempts()
    server.delay_s = 1.5
    await deliver(server.endpoint(), reports=Reports(attempted=made.attempted))
    assert [attempt.took_us < 1_450_000 for attempt in made.all] == [True]


async def test_a_refused_token_is_fetched_again_once_within_the_attempt(server: Server) -> None:
    server.accepts = lambda token: token != "Bearer t1"
    assert await deliver(server.endpoint()) == [None]
    assert server.used == ["Bearer t1", "Bearer t2"]
    server.accepts = lambda token: False
    server.requests.clear()
    [failure] = await deliver(server.endpoint())
    assert isinstance(failure, errors.Retry)
    assert failure.reason == "HTTP 401"
    assert len(server.used) == 2


async def test_a_dead_token_server_delays_its_own_endpoints_only(server: Server) -> None:
    server.token_status, clock = 503, ManualClock(NOW_S)
    endpoints = {"t": server.endpoint(), "other": endpoint(server.url("/hook"), basic="a:b")}
    async with Pusher(endpoints.get, clock=clock, addresses=ANY) as push:
        for _ in range(5):
            with pytest.raises(errors.Retry, match=r"no token from 127\.0\.0\.1: HTTP 503"):
                await push(message())
        await push(Message("id", b"{}", topic="other"))
        assert sum(request.path == "/token" for request in server.requests) == 1, "it is left alone for a while"
        server.token_status = 200
        clock.advance(REFUSED_S + 1)
        await push(message())


DEEP = b'{"access_token": "a", "more": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"


@pytest.mark.parametrize(
    "answer",
    [
        *(b"", b"{}", b'{"access_token": 5}', b'{"access_token": "a b"}', b'{"access_token": ""}', b"x" * 200_000),
        pytest.param(DEEP, id="deep"),
    ],
)
async def test_an_answer_without_a_token_is_a_failure(server: Server, answer: bytes) -> None:
    async def answers(request: Request) -> web.Response:
        return web.Response(body=answer)

    server.answers = answers
    [failure] = await deliver(server.endpoint())
    assert isinstance(failure, errors.Retry)
    assert failure.reason.startswith("no token from 127.0.0.1: its")


@pytest.mark.parametrize(
    ("addresses", "why"),
    [
        (AddressFilter(), "loopback address"),
        (AddressFilter(("*",), https_only=True), "is not allowed"),
        (AddressFilter(("*",), ports=frozenset((443,))), "is not allowed"),
    ],
)
async def test_a_token_server_is_under_the_same_limits_of_addresses_schemes_and_ports(
    server: Server, addresses: AddressFilter, why: str
) -> None:
    found = dataclasses.replace(server.endpoint(), url=yarl.URL("https://127.0.0.1:443/"))
    [failure] = await deliver(found, addresses=addresses)
    assert isinstance(failure, errors.Retry)
    assert failure.reason.startswith("no token from 127.0.0.1: ")
    assert why in failure.reason
    assert not server.requests


async def test_a_refusal_and_the_second_request_share_the_time_out(server: Server) -> None:
    answers = server.answers

    async def slowly(request: Request) -> web.Response | int:
        if request.path != "/token":
            await asyncio.sleep(1.2)
            return 401
        return await answers(request)  # type: ignore[misc,return-value]

    server.answers = slowly
    found = dataclasses.replace(server.endpoint(), timeout_s=2.0)
    began = asyncio.get_running_loop().time()
    [failure] = await deliver(found)
    assert isinstance(failure, errors.Retry)
    assert failure.reason == "timeout after 2 s"
    assert asyncio.get_running_loop().time() - began < 3.0


async def test_a_fetch_that_breaks_rests_before_the_next_one() -> None:
    asked, clock = 0, ManualClock(NOW_S)

    async def post(*_: object) -> Any:
        nonlocal asked
        asked += 1
        raise RuntimeError("the client is confused")

    tokens, credentials = Tokens(post, clock), OAuth2(yarl.URL("http://127.0.0.1/token"), "client", "secret")
    for _ in range(3):
        await tokens.prepare(credentials)
        with pytest.raises(errors.Retry, match="confused"):
            await tokens.authorization(credentials)
        clock.advance(1.0)
    assert asked == 1
    clock.advance(REFUSED_S)
    await tokens.prepare(credentials)
    assert asked == 2


async def test_a_cancelled_delivery_takes_no_token_from_the_others(server: Server) -> None:
    server.delay_s = 0.1
    async with Pusher({"t": server.endpoint()}.get, addresses=ANY) as push:
        first, second = (asyncio.create_task(push(message(id_))) for id_ in "ab")
        await asyncio.sleep(0.05)
        first.cancel()
        await second
    assert server.used == ["Bearer t1"]


# ----------------------------------------------------------------------------------------------------------------- TLS


@pytest.fixture
async def tls_server(tmp_path: Path) -> AsyncIterator[tuple[HttpReceiver, Authority]]:
    """A server whose certificate is of an own authority, and which asks for one of the same."""
    authority, receiver = Authority(), HttpReceiver(lambda request: 204)
    context = authority.server_context("127.0.0.1", tmp_path)
    context.load_verify_locations(cadata=authority.pem)
    context.verify_mode = ssl.CERT_REQUIRED
    async with receiver.running(context):
        yield receiver, authority


async def test_an_endpoint_gets_a_client_certificate_and_is_trusted_by_its_own_authority(
    tls_server: tuple[HttpReceiver, Authority],
) -> None:
    receiver, authority = tls_server
    certificate, key = authority.issue("emq")
    url = receiver.url(scheme="https")
    good = endpoint(url, tls__ca=authority.pem, tls__cert=certificate, tls__key=key)
    assert await deliver(good, message("a"), message("b")) == [None, None]
    without = endpoint(url, tls__ca=authority.pem)
    assert isinstance((await deliver(without))[0], errors.Retry)
    [failure] = await deliver(endpoint(url, tls__cert=certificate, tls__key=key))
    assert isinstance(failure, errors.Retry)
    assert "certificate not accepted" in failure.reason
    assert len(receiver.requests) == 2


def test_a_key_that_does_not_fit_its_certificate_is_refused() -> None:
    authority = Authority()
    with pytest.raises(
        errors.InvalidTopic, match=r"push\.tls\.cert and push\.tls\.key must be a certificate and its key"
    ):
        endpoint("https://a/", tls__cert=authority.issue("a")[0], tls__key=authority.issue("b")[1])


# ----------------------------------------------------------------------------------------------------------- handshake


async def shaken(
    receiver: HttpReceiver, headers: dict[str, str], status: int = 200
) -> tuple[handshake.Allowed, Request]:
    receiver.answers = lambda _: web.Response(status=status, headers=headers)
    found = await handshake.handshake(endpoint(receiver.url("/hook")), "emq.example", 2.0, ANY)
    return found, receiver.requests[0]


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({"WebHook-Allowed-Origin": "emq.example", "WebHook-Allowed-Rate": "60"}, ("emq.example", 60)),
        ({"WebHook-Allowed-Origin": "*", "WebHook-Allowed-Rate": "*"}, ("emq.example", None)),
        ({"webhook-allowed-origin": "EMQ.example"}, ("emq.example", None)),
    ],
)
async def test_an_endpoint_agrees_to_deliveries(
    headers: dict[str, str], allowed: tuple[str, int | None], receiver: HttpReceiver
) -> None:
    found, request = await shaken(receiver, headers)
    assert tuple(found) == allowed
    assert (request.method, request.path) == ("OPTIONS", "/hook")
    assert request.headers["webhook-request-origin"] == "emq.example"
    assert request.headers["webhook-request-rate"] == "120"


@pytest.mark.parametrize(
    ("headers", "status", "text"),
    [
        ({}, 200, "HTTP 200 with no WebHook-Allowed-Origin"),
        ({"Allow": "POST"}, 405, "HTTP 405 with no WebHook-Allowed-Origin"),
        ({"WebHook-Allowed-Origin": "other.example"}, 200, "with WebHook-Allowed-Origin 'other.example'"),
        ({"WebHook-Allowed-Origin": "*", "WebHook-Allowed-Rate": "0"}, 200, "allows the rate '0'"),
        ({"WebHook-Allowed-Origin": "*", "WebHook-Allowed-Rate": "many"}, 200, "allows the rate 'many'"),
    ],
)
async def test_an_endpoint_that_does_not_agree_is_refused(
    headers: dict[str, str], status: int, text: str, receiver: HttpReceiver
) -> None:
    with pytest.raises(errors.InvalidTopic, match=text):
        await shaken(receiver, headers, status)


async def test_a_handshake_goes_to_allowed_addresses_only() -> None:
    with pytest.raises(errors.InvalidTopic, match="loopback address"):
        await handshake.handshake(endpoint("http://127.0.0.1:1/"), "emq.example", 1.0, AddressFilter())


async def test_an_agreement_is_kept_in_the_topic_and_in_each_delivery(receiver: HttpReceiver) -> None:
    made = topic(url=receiver.url(), **{k[5:]: v for k, v in handshake.Allowed("emq.example", 60).attributes.items()})
    found = Endpoint.from_topic(made)
    assert found is not None
    assert await deliver(found) == [None]
    assert receiver.requests[0].headers["webhook-request-origin"] == "emq.example"
    assert handshake.capped(made) == 1.0
    assert json.loads(receiver.requests[0].body) == {}


async def test_the_command_line_asks_the_endpoint_and_keeps_below_its_rate(
    emq: Shell, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMQ_PUSH_ALLOW", "127.0.0.1")
    answer = {"WebHook-Allowed-Origin": "emq.example", "WebHook-Allowed-Rate": "30"}
    receiver.answers = lambda request: web.Response(headers=answer if request.path == "/agrees" else {})

    def create(path: str) -> list[str]:
        return f"topic create t{path[1:]} --qps 20 --handshake emq.example --url {receiver.url(path)}".split()

    [first, *more] = create("/agrees")
    made = await asyncio.to_thread(emq.json, first, *more)
    assert made["qps"] == 0.5
    assert made["options"]["attributes"]["push.allowed_rate"] == "30"
    assert made["options"]["attributes"]["push.origin"] == "emq.example"
    [first, *more] = create("/not")
    assert "does not agree to deliveries from 'emq.example'" in await asyncio.to_thread(emq.refused, first, *more)


@pytest.mark.parametrize(
    ("attributes", "said", "shown"),
    [
        (
            {"headers__Authorization": "Bearer s3cret.tok"},
            "the token s3cret.tok has expired",
            "the token *** has expired",
        ),
        (
            {"headers__Authorization": "Basic bWU6cGFzc3cwcmQ="},
            "wrong password passw0rd in bWU6cGFzc3cwcmQ=",
            "wrong password *** in ***",
        ),
        ({"headers__X_Kind": "two words"}, "two words; words", "***; words"),
        ({"basic": "a:s3cret"}, "it is s3cret", "it is ***"),
        (
            {"oauth2__url": "http://b/", "oauth2__client_id": "a", "oauth2__secret": "s3cret"},
            "it is s3cret",
            "it is ***",
        ),
    ],
)
def test_a_secret_is_masked_and_not_in_the_repr(attributes: dict[str, str], said: str, shown: str) -> None:
    found = endpoint("http://a/", **attributes)
    assert found.masked(said) == shown
    assert "s3cret" not in repr(found)
