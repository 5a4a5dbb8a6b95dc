"""Requests that nobody can read, alone and behind others on their connection: each is answered, in order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator

import pytest
import uvicorn
from starlette.types import Message, Receive, Scope, Send
from uvicorn.server import ServerState

from emq_push.service.service import PushService
from emq_web import connections
from emq_web.connections import Connection, Doors
from emq_web.limits import Limits
from support.live_api import Live, live
from support.loops import on_both_loops

LONG_S = 30.0
"""Seconds that a busy machine may need for what takes a moment."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused client may take its time, on a busy machine."""
    monkeypatch.setattr(connections, "DROPPED_S", 10 * LONG_S)


Answer = tuple[int, str]
"""Status and, of a problem, its code."""


def answers(data: bytes) -> list[Answer]:
    """Return the answers of a connection. All but the last of those that are problems keep the connection open."""
    found: list[Answer] = []
    while data:
        head, separator, rest = data.partition(b"\r\n\r\n")
        assert separator, data
        status, *lines = head.split(b"\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        length = int(headers[b"content-length"])
        body, data = rest[:length], rest[length:]
        assert len(body) == length
        code = ""
        if headers[b"content-type"] == b"application/problem+json":
            assert headers[b"connection"] == b"close"
            code = json.loads(body)["code"]
        found.append((int(status.split()[1]), code))
    return found


# ------------------------------------------------------------------------------------------------- the API as it stands


async def prepare(service: PushService) -> None:
    await service.tenants.change("acme", {"qps": 100}, "test", creates=True)


@pytest.fixture(scope="module")
def api() -> Iterator[Live]:
    with live(prepare, Limits(requests_per_s=1e6, body_bytes=50_000)) as found:
        yield found


def begin(api: Live) -> bytes:
    """The head of a publish, without its end and without what tells the length of its body."""
    lines = ["POST /v1/tenants/acme/messages HTTP/1.1", "Host: a", f"Authorization: Bearer {api.key}"]
    return ("\r\n".join([*lines, "Content-Type: application/json"]) + "\r\n").encode()


def publish(api: Live) -> bytes:
    body = b'{"event_type":"order.paid","payload":1}'
    return begin(api) + b"Content-Length: %d\r\n\r\n" % len(body) + body


CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
FILLER = (b"X-Filler: " + b"x" * 8_000 + b"\r\n") * 12

MALFORMED = {
    "no size of a chunk": CHUNKED + b"zz\r\n",
    "no size of a later chunk": CHUNKED + b"5\r\nabcde\r\nzz\r\n",
    "no end of a chunk": CHUNKED + b"5\r\nabcde!!",
    "an unknown coding": b"Transfer-Encoding: gzip\r\n\r\nabc",
    "two ways to tell the length": b"Content-Length: 5\r\n" + CHUNKED + b"0\r\n\r\n",
    "two lengths": b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a length twice": b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nab",
    "a length that is no number": b"Content-Length: x\r\n\r\n",
    "a length below nothing": b"Content-Length: -1\r\n\r\n",
    "two hosts": b"Host: b\r\n\r\n",
    "a bad header": b"bad header\r\n\r\n",
    "another protocol, with a body": b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\n{}",
}


TOO_LARGE = {
    "a body that is announced": b"Content-Length: 1000000000\r\n\r\n",
    "a body that is asked for": b"Content-Length: 60000\r\nExpect: 100-continue\r\n\r\n",
    "a body that is sent": b"Content-Length: 10000000\r\n\r\n" + b"x" * 10_000_000,
    "a body in chunks": CHUNKED + b"ea60\r\n" + b"x" * 60_000 + b"\r\n0\r\n\r\n",
}
NO_REQUESTS = {
    "bytes": b"\x00\x01\r\n\r\n",
    "a word": b"hello\r\n\r\n",
    "no host": b"GET /v1/tenants HTTP/1.1\r\n\r\n",
    "two keys": b"GET /v1/tenants HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n",
    "two ids": b"GET /v1/tenants HTTP/1.1\r\nHost: a\r\nIdempotency-Key: a\r\nIdempotency-Key: b\r\n\r\n",
    "an odd path": b"GET /\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n",
    "another version": b"GET / HTTP/9.9\r\nHost: a\r\n\r\n",
    "a large head": b"GET / HTTP/1.1\r\nHost: a\r\n" + FILLER + b"\r\n",
    "a large head without end": b"GET / HTTP/1.1\r\nHost: a\r\n" + FILLER,
}


@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.parametrize("form", [*MALFORMED, *TOO_LARGE, *NO_REQUESTS])
def test_a_malformed_request_is_answered_behind_those_before_it(api: Live, form: str, before: int) -> None:
    rests = {**MALFORMED, **TOO_LARGE}
    sent = begin(api) + rests[form] if form in rests else NO_REQUESTS[form]
    refusal = (400, "malformed")
    if "a large head" in form:
        refusal = (431, "head_too_large")
    elif form in TOO_LARGE:
        refusal = (413, "too_large")
    assert answers(api.talk(publish(api) * before + sent)) == [(202, "")] * before + [refusal]


def test_a_head_as_large_as_it_may_be_is_read_behind_others(api: Live) -> None:
    large = publish(api).replace(b"Host: a\r\n", b"Host: a\r\n" + FILLER[: 7 * len(FILLER) // 12])
    last = publish(api).replace(b"Host: a\r\n", b"Host: a\r\nConnection: close\r\n")
    assert answers(api.talk(publish(api) + large * 3 + last)) == [(202, "")] * 5


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
def test_requests_behind_one_for_another_protocol_are_answered(api: Live, protocol: str) -> None:
    asking = f"GET /v1/openapi.json HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n".encode()
    last = publish(api).replace(b"Host: a\r\n", b"Host: a\r\nConnection: close\r\n")
    assert answers(api.talk(asking + publish(api) + asking + last)) == [(200, ""), (202, "")] * 2


def test_trailers_without_end_are_cut(api: Live) -> None:
    sent = begin(api) + CHUNKED + b"2\r\n{}\r\n0\r\n"
    assert answers(api.talk(publish(api) + sent, FILLER)) == [(202, ""), (431, "head_too_large")]


def test_nothing_is_said_behind_a_request_that_ends_the_connection(api: Live) -> None:
    last = publish(api).replace(b"Host: a\r\n", b"Host: a\r\nConnection: close\r\n")
    assert answers(api.talk(last + begin(api) + MALFORMED["two hosts"])) == [(202, "")]


def test_a_client_that_goes_on_to_send_sees_the_refusal(api: Live) -> None:
    sent = [publish(api), begin(api) + MALFORMED["no size of a chunk"], *[b"x" * 50_000] * 10]
    assert answers(api.talk(*sent)) == [(202, ""), (400, "malformed")]


def test_a_client_that_sends_on_and_on_is_left(api: Live) -> None:
    with socket.create_connection((api.host, api.port), timeout=LONG_S) as connection:
        connection.sendall(begin(api) + MALFORMED["two hosts"])
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while True:  # or the send times out
                connection.sendall(b"x" * 65_536)


# ----------------------------------------------------------------------------------- an application that takes its time


class Slow:
    """An application whose answers wait until they are released, one after the other.

    Attributes:
        asked: paths in the order in which they came.
        broken: number of requests whose sender had gone.
        connections: those of its server.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.broken = 0
        self.connections: list[Connection] = []
        self.begun = asyncio.Semaphore(0)
        self.released = asyncio.Semaphore(0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.append(scope["path"])
        self.begun.release()
        message = await receive()
        while message.get("more_body"):
            message = await receive()
        if message["type"] == "http.disconnect":
            self.broken += 1
            return
        await self.released.acquire()
        headers = [(b"content-type", b"text/plain"), (b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})


@contextlib.asynccontextmanager
async def talking(slow: Slow) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Serve an application; yield a connection to it."""
    config, doors = uvicorn.Config(slow, lifespan="off", log_config=None), Doors(10)
    config.load()

    def connected() -> Connection:
        slow.connections.append(Connection(config=config, server_state=ServerState(), app_state={}, doors=doors))
        return slow.connections[-1]

    server = await asyncio.get_running_loop().create_server(connected, "127.0.0.1", 0)
    try:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    finally:
        server.close()


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode()


POST = b"POST /broken HTTP/1.1\r\nHost: a\r\n"


@pytest.mark.parametrize("form", ["no size of a chunk", "two lengths", "two hosts"])
async def test_a_refusal_waits_for_the_slow_answers_before_it(form: str) -> None:
    slow = Slow()
    async with asyncio.timeout(LONG_S), talking(slow) as (reader, writer):
        writer.write(get("/1") + get("/2") + get("/3") + POST + MALFORMED[form])
        for number in (1, 2, 3):
            await slow.begun.acquire()
            assert slow.asked == [f"/{n}" for n in range(1, number + 1)]
            slow.released.release()
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")
        assert answers(await reader.read()) == [(400, "malformed")]
        assert slow.asked == ["/1", "/2", "/3"], "the application never sees what nobody can read"


async def test_an_answer_comes_whatever_is_sent_behind_a_request_that_nobody_can_read() -> None:
    slow = Slow()
    async with asyncio.timeout(LONG_S), talking(slow) as (reader, writer):
        writer.write(get("/1") + POST + MALFORMED["no size of a chunk"])
        await slow.begun.acquire()
        [connection] = slow.connections
        while connection._refusal is None:
            await asyncio.sleep(0)
        connection.data_received(b"x" * (connections.DROPPED + 1))
        slow.released.release()
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")
        assert answers(await reader.read()) == [(400, "malformed")]


async def test_a_body_that_breaks_while_its_request_waits_for_its_turn_is_refused_in_order() -> None:
    slow = Slow()
    async with asyncio.timeout(LONG_S), talking(slow) as (reader, writer):
        writer.write(get("/1"))
        await slow.begun.acquire()
        writer.write(POST + CHUNKED + b"5\r\nabc")
        writer.write(b"de\r\nzz\r\n")
        slow.released.release()
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")
        slow.released.release()
        assert answers(await reader.read()) == [(400, "malformed")]


async def test_a_body_that_breaks_in_the_application_ends_its_request() -> None:
    slow = Slow()
    async with asyncio.timeout(LONG_S), talking(slow) as (reader, writer):
        writer.write(POST + CHUNKED + b"5\r\nabcde\r\n")
        await slow.begun.acquire()
        writer.write(b"zz\r\n")
        assert answers(await reader.read()) == [(400, "malformed")]
        while not slow.broken:
            await asyncio.sleep(0)


async def test_a_head_that_does_not_end_is_refused_behind_a_slow_answer() -> None:
    slow = Slow()
    async with asyncio.timeout(LONG_S), talking(slow) as (reader, writer):
        writer.write(get("/1") + b"GET /2 HTTP/1.1\r\n")
        await slow.begun.acquire()
        [connection] = slow.connections
        while not connection._head_bytes:
            await asyncio.sleep(0)
        assert connection._deadline is not None
        connection._close()  # as the deadline does
        slow.released.release()
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")
        assert answers(await reader.read()) == [(408, "too_slow")]


async def test_a_trailer_is_no_header() -> None:
    """Of a header in front and a trailer, a proxy and the API could take different ones."""
    seen = []

    class Looking(Slow):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            self.released.release()
            await super().__call__(scope, receive, send)
            seen.extend(scope["headers"])

    async with asyncio.timeout(LONG_S), talking(Looking()) as (reader, writer):
        writer.write(POST + b"Connection: close\r\n" + CHUNKED + b"2\r\n{}\r\n0\r\nIdempotency-Key: a\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    assert [name for name, _ in seen] == [b"host", b"connection", b"transfer-encoding"]


async def test_a_head_that_the_api_does_not_read_yet_is_not_refused() -> None:
    class Deaf(Slow):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            async def nothing() -> Message:
                return {"type": "http.request", "body": b""}

            await super().__call__(scope, nothing, send)

    slow = Deaf()
    async with asyncio.timeout(LONG_S), talking(slow) as (reader, writer):
        writer.write(get("/1") + get("/2") + b"GET /3 HTT")
        await slow.begun.acquire()
        [connection] = slow.connections
        while not connection._head_bytes:
            await asyncio.sleep(0)
        assert connection.flow.read_paused
        assert connection._deadline is not None
        connection._deadline.cancel()
        connection._close()  # as the deadline does
        writer.write(b"P/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        for _ in range(3):
            slow.released.release()
        assert (await reader.read()).count(b"HTTP/1.1 200 ") == 3
        assert slow.asked == ["/1", "/2", "/3"]


@pytest.mark.parametrize("ending", ["a request that ends it", "a refusal", "the end of waiting for a request"])
@on_both_loops
async def test_a_connection_that_ends_waits_for_no_reader_for_ever(
    ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left is too little to pause the writing."""
    monkeypatch.setattr(connections, "READ_S", 0.01)
    monkeypatch.setattr(connections, "DROPPED_S", 0.01)
    slow = Slow()
    async with asyncio.timeout(LONG_S), talking(slow) as (_, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(
            get("/1").replace(b"a\r\n", b"a\r\nConnection: close\r\n") if "request that" in ending else get("/1")
        )
        await slow.begun.acquire()
        [connection] = slow.connections
        connection.transport.set_write_buffer_limits(high=1 << 30)
        while connection.transport.get_write_buffer_size() < 1_000:
            connection.transport.write(b"x" * 1_000_000)
            await asyncio.sleep(0)
        slow.released.release()
        while not slow.connections[0].cycle.response_complete:
            await asyncio.sleep(0)
        if ending == "a refusal":
            connection._refuse(connections._malformed("it is"))
        elif ending == "the end of waiting for a request":
            connection.timeout_keep_alive_handler()
        while connection._doors._count:
            await asyncio.sleep(0.001)
