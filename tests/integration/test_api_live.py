"""The API behind a real HTTP server: it keeps to its OpenAPI document whatever it is sent, and waits for nobody."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import time
from collections.abc import Iterator

import hypothesis
import pytest
import schemathesis
from schemathesis.core.parameters import ParameterLocation

from emq import App
from emq.runtime import errors
from emq.runtime.settings import Address
from emq.topics.families import Family
from emq.topics.model import Topic
from emq_push.records.endpoints import EndpointSettings
from emq_push.service.service import PushService
from emq_scheduling.model import Pool
from emq_web import connections, serving
from emq_web.limits import Limits
from emq_web.scheduling import schemas
from emq_web.scheduling.desk import PoolDesk
from support.live_api import Live, live
from support.pools import POOL

TENANT, URL = "acme", "https://93.184.216.34/hook"
FAMILY = "orders.*"


async def prepare(service: PushService) -> None:
    await service.tenants.change(TENANT, {"qps": 100}, "test", creates=True)
    await service.endpoints.create(TENANT, EndpointSettings(url=URL), "test")
    await service.parts.app.families.create(Family(Topic(FAMILY, 50.0)))
    await PoolDesk(service).put(schemas.converted(POOL, Pool, "the pool"), None, "test")


@pytest.fixture(scope="module")
def api() -> Iterator[Live]:
    # No host runs, so nothing is delivered.
    with live(prepare, Limits(body_s=0.5, requests_per_s=1e6, unknown_per_s=1e6)) as found:
        yield found


@pytest.fixture(scope="module")
def document(api: Live) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_url(f"{api.url}/v1/openapi.json")


schema = schemathesis.pytest.from_fixture("document")


@schema.parametrize()
@hypothesis.settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    phases=[hypothesis.Phase.generate],
)
def test_every_operation_keeps_to_its_document(case: schemathesis.Case, api: Live) -> None:
    # The service refuses more than a schema can say: cursors of another list, addresses that are not public.
    excluded = [schemathesis.checks.positive_data_acceptance]
    if "tenant" in (case.path_parameters or {}) and case.method not in ("DELETE", "PUT"):
        case.path_parameters["tenant"] = TENANT
    if "pool" in (case.path_parameters or {}) and (case.method, case.path) != ("DELETE", "/v1/pools/{pool}"):
        case.path_parameters["pool"] = POOL["name"]
    if "family" in (case.path_parameters or {}) and case.method != "DELETE":
        case.path_parameters["family"] = FAMILY
    wrong = [place for place, part in case.meta.components.items() if part.mode.is_negative]
    if set(wrong) & {ParameterLocation.PATH, ParameterLocation.HEADER}:
        excluded.append(schemathesis.checks.negative_data_rejection)  # the test has put that right
    response = case.call(headers={"Authorization": f"Bearer {api.key}"})
    assert response.status_code < 500, response.text
    case.validate_response(response, excluded_checks=excluded)


# ------------------------------------------------------------------------------------------------ slow and huge senders


def head(api: Live, length: int) -> bytes:
    lines = ["POST /v1/tenants/acme/messages HTTP/1.1", f"Host: {api.host}", f"Authorization: Bearer {api.key}"]
    lines += ["Content-Type: application/json", f"Content-Length: {length}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def assert_too_slow(answer: bytes) -> None:
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"too_slow"' in answer


def test_a_body_that_does_not_come_is_not_waited_for(api: Live) -> None:
    assert_too_slow(api.talk(head(api, 100) + b'{"event_type":'))


def test_a_request_that_does_not_begin_is_not_waited_for(api: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.2)
    assert api.talk() == b""
    assert_too_slow(api.talk(b"GET /v1/tenants HTTP/1.1\r\nHost: x\r\n"))
    whole = f"GET /v1/nothing HTTP/1.1\r\nHost: {api.host}\r\n\r\n".encode()
    assert api.talk(whole, b"GET /v1/ten", pause_s=0.1).count(b"HTTP/1.1 404") == 1, "the second one on a connection"


def test_a_head_without_end_is_cut_also_behind_a_request_that_waits() -> None:
    with live(prepare, Limits(at_once=4, body_s=5)) as api, contextlib.ExitStack() as stack:
        for _ in range(8):  # they take the turns
            stack.enter_context(socket.create_connection((api.host, api.port))).sendall(head(api, 100) + b"{")
        connection = stack.enter_context(socket.create_connection((api.host, api.port), timeout=30))
        connection.sendall(get(api, "/v1/tenants").replace(b": close", b": keep-alive") + b"GET / HTTP/1.1\r\n")
        sent = 0
        with contextlib.suppress(OSError):
            while sent < 64 << 20:
                connection.sendall(b"X-Filler: " + b"x" * 8_000 + b"\r\n")
                sent += 8_000
        assert sent < 16 << 20, "it was kept in memory"


def test_senders_without_a_key_hold_up_nobody() -> None:
    with live(prepare, Limits(at_once=8, body_s=5)) as api, contextlib.ExitStack() as stack:
        begin = head(api, 8 << 20).replace(b"Bearer emqk_", b"Bearer wrong_")
        for n in range(60):
            connection = stack.enter_context(socket.create_connection((api.host, api.port), timeout=10))
            connection.sendall(begin if n % 2 else b"GET /")
        began = time.monotonic()
        for _ in range(5):
            assert b'"id":"acme"' in api.talk(get(api, "/v1/tenants/acme"))
        assert time.monotonic() - began < 4.5
        connection.settimeout(3)
        assert connection.recv(65_536).startswith((b"HTTP/1.1 401 ", b"HTTP/1.1 429 "))


def test_who_does_not_read_is_not_waited_for(api: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "READ_S", 0.3)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.settimeout(10)
        connection.connect((api.host, api.port))
        with contextlib.suppress(OSError):
            until = time.monotonic() + 60  # on a busy machine, the answers that nobody reads are long in coming
            while time.monotonic() < until:
                connection.sendall(b"GET /v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
                time.sleep(0.02)
            pytest.fail("the connection must end")


def get(api: Live, path: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", f"Host: {api.host}", f"Authorization: Bearer {api.key}", "Connection: close"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def test_no_header_gives_a_sender_another_address() -> None:
    with live(prepare, Limits(strangers_per_s=0.01)) as api:
        answers = [
            api.talk(get(api, "/v1/tenants").replace(b"emqk_", b"emqk_wrong_", 1)[:-2] + each + b"\r\n\r\n")
            for each in (b"X-Forwarded-For: 192.0.2.%d" % n for n in range(5))
        ]
    assert {answer[9:12] for answer in answers} == {b"401", b"429"}


async def test_a_client_that_comes_as_soon_as_the_api_says_where_it_is_is_served() -> None:
    async with App("memory:") as app, serving.serving(app, Address("127.0.0.1", 0)) as where:
        client = http.client.HTTPConnection(where.host, where.port, timeout=10)
        client.connect()  # at once: the server has not had a turn yet
        client.request("GET", "/v1/openapi.json")
        assert (await asyncio.to_thread(client.getresponse)).status == 200
        client.close()


async def test_an_address_at_which_something_else_listens_is_a_wrong_setting() -> None:
    with contextlib.closing(serving.bound(Address("127.0.0.1", 0))) as other:
        other.listen()
        async with App("memory:") as app:
            with pytest.raises(
                errors.InvalidSettings, match=r"cannot be served at .*: address already in use; give another address"
            ):
                async with serving.serving(app, Address("127.0.0.1", other.getsockname()[1])):
                    pytest.fail("the address is taken")
