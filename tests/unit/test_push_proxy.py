"""Push through a forward proxy: what goes through it, which addresses it may be asked for, whose fault a failure is."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import re
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from unittest import mock

import pytest
import yaml
import yarl
from aiohttp import web

from emq.runtime import errors, settings
from emq.storage.message import Message
from emq_push import addresses, handshake, proxy
from emq_push.addresses import AddressFilter, ForbiddenAddress
from emq_push.endpoint import Endpoint
from emq_push.proxy import Proxy
from emq_push.pusher import Pusher, Reports
from emq_push.service.reach import Reach
from emq_push.service.refusals import Invalid
from support.authority import Authority
from support.connect_proxy import ConnectProxy
from support.http_receiver import HttpReceiver, Request
from support.manual_clock import ManualClock
from support.pushing import Attempts, endpoint, message
from support.raw_server import RawConnection, RawServer
from support.served import served

HTTPS, HTTP = "https://hooks.example/in", "http://plain.example:8080/in"


def answer(status: str, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", "Content-Length: 0", *headers, "", ""]).encode()


def through(port: int, *allowed: str, account: str = "") -> AddressFilter:
    """Return the filter of settings that name a proxy. The proxy's own address is not allowed, and need not be."""
    url = f"http://{account}127.0.0.1:{port}"
    return AddressFilter.of_settings(settings.load(environ={}, push_proxy_url=url, push_allow=" ".join(allowed)))


async def deliver(routes: AddressFilter, *found: Endpoint, times: int = 1) -> list[BaseException | None]:
    """Deliver a message to each endpoint, `times` times after each other; return the failures of the last time."""
    by_name = {str(i): each for i, each in enumerate(found)}
    async with Pusher(by_name.get, clock=ManualClock(1.7e9), addresses=routes) as push:
        for _ in range(times):
            messages = [Message("id1", b"{}", topic=name) for name in by_name]
            failures = await asyncio.gather(*[push(message) for message in messages], return_exceptions=True)
    return failures


@pytest.fixture
async def tls(tmp_path: Path) -> AsyncIterator[tuple[HttpReceiver, Authority]]:
    """An endpoint at hooks.example, and the authority of its certificate."""
    authority, receiver = Authority(), HttpReceiver(lambda request: 204)
    async with receiver.running(authority.server_context("hooks.example", tmp_path)):
        yield receiver, authority


Tls = tuple[HttpReceiver, Authority]

# ------------------------------------------------------------------------------------------------- what goes through it


async def test_deliveries_go_through_the_proxy_and_no_name_is_looked_up_here(tls: Tls) -> None:
    receiver, authority = tls
    relay = ConnectProxy({"hooks.example:443": receiver.port})
    async with relay.running() as port:
        to = endpoint(HTTPS, tls__ca=authority.pem)
        with mock.patch.object(socket, "getaddrinfo", side_effect=AssertionError("a name was looked up")):
            assert await deliver(through(port, account="emq:s3cret@"), to, times=2) == [None]
    assert [request.path for request in receiver.requests] == ["/in", "/in"]
    [asked] = relay.requests  # the tunnel is kept for the second
    assert (asked.method, asked.target) == ("CONNECT", "hooks.example:443")
    assert "webhook-id" not in asked.headers
    assert "proxy-authorization" not in receiver.requests[0].headers


async def test_tokens_and_handshakes_go_through_it_too(receiver: HttpReceiver) -> None:
    def answers(request: Request) -> web.Response:
        if request.path == "/token":
            return web.json_response({"access_token": "t0ken"})
        return web.Response(headers={"WebHook-Allowed-Origin": "*"})

    receiver.answers = answers
    relay = ConnectProxy({"plain.example:8080": receiver.port, "tokens.example:80": receiver.port})
    async with relay.running() as port:
        tokens = {"oauth2__url": "http://tokens.example/token", "oauth2__client_id": "c", "oauth2__secret": "s"}
        assert await deliver(through(port), endpoint(HTTP, **tokens)) == [None]
        await handshake.handshake(endpoint(HTTP), "emq.example", 1.0, through(port))
    assert [asked.method for asked in relay.requests] == ["POST", "POST", "OPTIONS"]


async def test_the_proxy_learns_the_whole_url_and_who_asks_and_gets_the_credentials(
    receiver: HttpReceiver, tls: Tls
) -> None:
    url = "http://plain.example:8080/a%2Fb?c=%20d&e"
    secure, authority = tls
    relay = ConnectProxy({"plain.example:8080": receiver.port, "hooks.example:443": secure.port})
    async with relay.running() as port:
        routes = through(port, account="emq:s3cret@")
        assert await deliver(routes, endpoint(url), endpoint(HTTPS, tls__ca=authority.pem)) == [None] * 2
    plain, tunnel = sorted(relay.requests, key=lambda asked: asked.method == "CONNECT")
    assert plain.target == url
    assert plain.headers["host"] == "plain.example:8080"
    assert plain.headers["user-agent"] == tunnel.headers["user-agent"] == "emq-push"
    account = "Basic " + base64.b64encode(b"emq:s3cret").decode()
    assert plain.headers["proxy-authorization"] == tunnel.headers["proxy-authorization"] == account


# ------------------------------------------------------------------------------------------- sick endpoints behind it


@contextlib.asynccontextmanager
async def sick(
    directory: Path, serve: Callable[[RawConnection], None]
) -> AsyncIterator[tuple[RawServer, Endpoint, AddressFilter]]:
    """An endpoint behind a proxy; yields its server, the endpoint, and the filter that leads through the proxy."""
    authority = Authority()
    with RawServer(serve, authority.server_context("hooks.example", directory)).running() as server:
        async with ConnectProxy({"hooks.example:443": server.port}).running() as port:
            yield server, endpoint(HTTPS, tls__ca=authority.pem, timeout_s="5"), through(port)


async def test_an_endpoint_that_does_not_end_tls_holds_no_tunnel(tmp_path: Path) -> None:
    ended = threading.Event()

    def serve(connection: RawConnection) -> None:
        connection.head()
        connection.over.sendall(answer("204 No Content", "Connection: close"))
        connection.wait_for_end()
        ended.set()

    async with sick(tmp_path, serve) as (_, to, routes), Pusher({"t": to}.get, addresses=routes) as push:
        await push(message())
        assert await asyncio.to_thread(ended.wait, 5.0)


async def test_an_endless_preface_is_no_answer(tmp_path: Path) -> None:
    def serve(connection: RawConnection) -> None:
        connection.head()
        while True:
            connection.over.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)

    async with sick(tmp_path, serve) as (_, to, routes):
        began = asyncio.get_running_loop().time()
        [failure] = await deliver(routes, to)
        assert isinstance(failure, errors.Retry)
        assert failure.reason.startswith("the answer is not HTTP")
        assert asyncio.get_running_loop().time() - began < 2.0


async def test_a_tunnel_is_not_used_again_after_a_refusal_of_a_large_body(tmp_path: Path) -> None:
    def serve(connection: RawConnection) -> None:
        connection.head()
        connection.over.sendall(answer("413 Too Large"))

    async with sick(tmp_path, serve) as (server, to, routes), Pusher({"t": to}.get, addresses=routes) as push:
        for _ in range(2):
            with pytest.raises(errors.Retry, match="HTTP 413"):
                await push(message(payload=bytes(100_000)))
        assert len(server.connections) == 2


# ---------------------------------------------------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "[::1]", "10.0.0.7", "169.254.169.254", "127.1", "0x7f.1", "2130706433", "localhost"),
        *("a.localhost.", "0177.0.0.1", "\uff11\uff12\uff17.0.0.1", "[::ffff:127.0.0.1]"),
    ],
)
async def test_an_address_in_a_url_is_refused_before_the_proxy_is_asked(host: str) -> None:
    relay = ConnectProxy({})
    async with relay.running() as port:
        [failure] = await deliver(through(port), endpoint(f"https://{host}/"))
        assert isinstance(failure, errors.Retry)
        assert "is not allowed" in failure.reason
        with pytest.raises(Invalid, match="which is not allowed"):
            await Reach(through(port)).check(yarl.URL(f"https://{host}/"))
    assert relay.requests == []


async def test_an_allowed_address_goes_through_the_proxy(receiver: HttpReceiver) -> None:
    relay = ConnectProxy({"10.0.0.7:80": receiver.port})
    async with relay.running() as port:
        assert await deliver(through(port, "10.0.0.0/24"), endpoint("http://10.0.0.7/in")) == [None]


async def test_setting_a_url_looks_no_name_up_where_the_proxy_does() -> None:
    with mock.patch.object(socket, "getaddrinfo", side_effect=AssertionError("a name was looked up")):
        assert await Reach(through(1)).check(yarl.URL("https://nowhere.invalid/")) == []


# ------------------------------------------------------------------------------------------------------- whose fault


@pytest.mark.parametrize("url", [HTTPS, HTTP])
async def test_a_proxy_that_is_down_is_our_own_fault(url: str) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        [failure] = await deliver(through(nobody.getsockname()[1]), endpoint(url))
    assert isinstance(failure, errors.GiveBack)
    assert "the proxy is out of reach" in str(failure)


async def test_a_proxy_whose_name_is_not_found_is_our_own_fault() -> None:
    routes = AddressFilter.of_settings(settings.load(environ={}, push_proxy_url="http://proxy.invalid:4750"))
    [failure] = await deliver(routes, endpoint(HTTPS))
    assert isinstance(failure, errors.GiveBack)


DENIED = "X-Smokescreen-Error: denied"


@pytest.mark.parametrize(
    ("url", "said", "kind", "text"),
    [
        (HTTPS, answer("407 Proxy Authentication Required"), errors.GiveBack, "other credentials"),
        (HTTPS, answer("500 Internal Server Error"), errors.GiveBack, "the proxy failed: HTTP 500"),
        (HTTPS, answer("405 Method Not Allowed"), errors.GiveBack, "the proxy failed: HTTP 405"),
        (HTTPS, answer("429 Too Many Requests"), errors.GiveBack, "the proxy failed: HTTP 429"),
        (HTTPS, answer("407 Request rejected by proxy", DENIED), errors.Retry, "refuses to connect"),
        (HTTPS, answer("403 Forbidden"), errors.Retry, "refuses to connect"),
        (HTTPS, answer("502 Bad gateway"), errors.Retry, "does not reach the endpoint: HTTP 502"),
        (HTTPS, answer("503 Service Unavailable"), errors.Retry, "does not reach the endpoint"),
        (HTTPS, answer("504 Gateway timeout"), errors.Retry, "does not reach the endpoint"),
        (HTTP, answer("407 Proxy Authentication Required"), errors.GiveBack, ""),
        (HTTP, answer("407 Request rejected by proxy", DENIED.swapcase()), errors.Retry, ""),
    ],
)
async def test_the_answer_of_the_proxy_says_whose_fault_it_is(
    url: str, said: bytes, kind: type[errors.Retry | errors.GiveBack], text: str
) -> None:
    async with ConnectProxy({}, lambda _: said).running() as port:
        [failure] = await deliver(through(port), endpoint(url))
    assert isinstance(failure, kind)
    assert text in str(failure)


async def test_faults_of_the_proxy_are_not_charged_to_the_endpoint() -> None:
    records, health = Attempts(), mock.Mock()
    async with ConnectProxy({}, lambda _: answer("500 Oops")).running() as port:
        reports = Reports(lambda: health, records.attempted)
        async with Pusher({"t": endpoint(HTTPS)}.get, addresses=through(port), reports=reports) as push:
            with pytest.raises(errors.GiveBack) as caught:
                await push(message())
    assert caught.value.pause_s > 0
    assert health.mock_calls == []
    assert [attempt.outcome for attempt in records.all] == ["parked"]


async def test_a_proxy_that_hangs_up_on_several_endpoints_is_at_fault_and_on_one_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proxy, "SILENT_S", 0.0)

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async with served(hang_up) as port:
        [alone] = await deliver(through(port), endpoint("https://a.example/"), times=5)
        assert isinstance(alone, errors.Retry)
        several = [endpoint(f"https://{name}.example/") for name in "abc"]
        failures = await deliver(through(port), *several, times=2)
    assert all(isinstance(failure, errors.GiveBack) for failure in failures)
    assert "the proxy does not answer" in str(failures[0])


async def test_one_endpoint_that_answers_shows_that_the_proxy_is_well(
    monkeypatch: pytest.MonkeyPatch, tls: Tls
) -> None:
    monkeypatch.setattr(proxy, "SILENT_S", 0.0)
    dead = [endpoint(f"https://{name}.example/") for name in "ab"]
    receiver, authority = tls
    ports = {"hooks.example:443": receiver.port}
    async with ConnectProxy(ports, lambda asked: None if asked.target in ports else b"").running() as port:
        routes = through(port)
        for _ in range(3):
            assert all(isinstance(failure, errors.Retry) for failure in await deliver(routes, *dead))
            assert await deliver(routes, endpoint(HTTPS, tls__ca=authority.pem)) == [None]


async def test_a_wrong_certificate_is_the_endpoints_fault(tls: Tls) -> None:
    relay = ConnectProxy({"hooks.example:443": tls[0].port})
    async with relay.running() as port:
        [failure] = await deliver(through(port), endpoint(HTTPS))
    assert isinstance(failure, errors.Retry)
    assert "certificate not accepted" in failure.reason


# ------------------------------------------------------------------------------------------------------------ setting


@pytest.mark.parametrize(
    "text",
    [
        *("127.0.0.1:4750", "https://127.0.0.1:4750", "http://127.0.0.1", "http://h:1/path"),
        *("http://h:1?a=1", "http://:1", "socks5://h:1"),
    ],
)
def test_a_proxy_that_is_none_is_named(text: str) -> None:
    with pytest.raises(errors.InvalidSettings, match="push_proxy_url"):
        Proxy.of_setting(text)


def test_the_password_of_the_proxy_is_never_shown() -> None:
    with pytest.raises(errors.InvalidSettings) as caught:
        Proxy.of_setting("https://emq:s3cret@127.0.0.1:4750")
    assert "s3cret" not in str(caught.value)
    found = settings.load(environ={}, push_proxy_url="http://emq:s3cret@127.0.0.1:4750")
    assert "s3cret" not in str(settings.shown(found))
    kept = Proxy.of_setting(found.push_proxy_url)
    assert kept is not None
    assert "s3cret" not in str(kept.url)


def test_without_a_proxy_an_address_is_checked_at_the_connection_as_before() -> None:
    with pytest.raises(ForbiddenAddress):
        AddressFilter().check("127.0.0.1")
    assert AddressFilter.of_settings(settings.load(environ={})).proxy is None


# ------------------------------------------------------------------------------------------------------------ recipes


def recipe(title: str) -> str:
    page = (Path(__file__).parents[2] / "docs" / "egress-proxy.md").read_text()
    return page.partition(f'title="{title}"')[2].partition("\n")[2].partition("\n```")[0]


def left_open(closed: Iterable[str], version: int) -> list[str]:
    """Return the networks to which push does not connect, and which are not among the closed ones."""
    mine = [n for networks in addresses._NETWORKS.values() for n in networks if n.version == version]
    mine += [n for n in map(ipaddress.ip_network, ("::/3", "4000::/2", "8000::/1")) if n.version == version]
    theirs = [ipaddress.ip_network(text) for text in closed]
    return [str(n) for n in mine if not any(n.version == t.version and n.subnet_of(t) for t in theirs)]  # type: ignore[arg-type]


def test_the_recipe_for_smokescreen_closes_what_push_closes() -> None:
    ranges = re.findall(r"--deny-range (\S+)", recipe("run-smokescreen"))
    # These it refuses by itself: what is no global unicast address.
    assert left_open([*ranges, "::1/128", "::/128"], 4) == []
    assert left_open([*ranges, "::1/128", "::/128"], 6) == []


def test_the_recipe_for_envoy_lets_through_port_443_of_addresses_that_push_does_not_close() -> None:
    [listener] = yaml.safe_load(recipe("envoy.yaml"))["static_resources"]["listeners"]
    filters = listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
    lookup, rbac, _ = (each["typed_config"] for each in filters)
    assert lookup["save_upstream_address"] is True
    assert lookup["dns_cache_config"]["dns_lookup_family"] == "V4_ONLY"
    assert rbac["rules"]["action"] == "ALLOW"
    [policy] = rbac["rules"]["policies"].values()
    port, closed = policy["permissions"][0]["and_rules"]["rules"]
    assert port["matcher"]["typed_config"]["upstream_port_range"] == {"start": 443, "end": 444}
    networks = [rule["matcher"]["typed_config"]["upstream_ip"] for rule in closed["not_rule"]["or_rules"]["rules"]]
    assert left_open([f"{n['address_prefix']}/{n['prefix_len']}" for n in networks], 4) == []
