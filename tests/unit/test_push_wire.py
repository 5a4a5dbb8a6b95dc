"""The client of deliveries: what it sends, what it takes for an answer, and when it uses a connection again."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest
import yarl

from emq_push import verdict
from emq_push.http import Connections
from emq_push.wire import BODY_BYTES, BODY_TIMEOUT_S, FIELD_BYTES, HEAD_BYTES, Answer, NotHTTP
from emq_push.wires import Wires, head_of
from support.pushing import ANY
from support.served import Serve, served
from support.waiting import until

Post = Callable[..., asyncio.Future[Answer]]

NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"
FINE = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"
ENDLESS = b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nfi\r\n2\r\nne\r\n0\r\n\r\n"


class Server:
    """Answers each request with the next text, a piece at a time; then closes the connection if it `hangs_up`.

    Args:
        at_once: the first answer waits for so many connections.
    """

    def __init__(
        self, *answers: bytes, hangs_up: bool = False, piece: int = 1 << 30, pause_s: float = 0.0, at_once: int = 1
    ) -> None:
        self.answers = list(answers)
        self.hangs_up = hangs_up
        self.piece = piece
        self.pause_s = pause_s
        self.at_once = at_once
        self.requests: list[bytes] = []
        self.connections = 0
        self.lost = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(size))
                while self.connections < self.at_once:
                    await asyncio.sleep(0.01)
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                for start in range(0, len(answer), self.piece):
                    writer.write(answer[start : start + self.piece])
                    await writer.drain()
                    await asyncio.sleep(self.pause_s)
                if self.hangs_up:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            self.lost += 1

    def asked(self) -> contextlib.AbstractAsyncContextManager[Post]:
        return asking(self.serve)


@contextlib.asynccontextmanager
async def asking(serve: Serve) -> AsyncIterator[Post]:
    """Yield what posts a request to a server."""
    connections = Connections(ANY)
    async with served(serve) as port:
        url = yarl.URL(f"http://127.0.0.1:{port}/hook")

        def post(body: bytes = b"{}", timeout_s: float = 5.0) -> asyncio.Future[Answer]:
            return asyncio.ensure_future(connections.deliver(url, body, {}, timeout_s))

        try:
            yield post
        finally:
            await connections.close()


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (NO_CONTENT, 204, b""),
        (FINE, 200, b"fine"),
        (CHUNKED, 200, b"fine"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + FINE, 200, b"fine"),
        (b"HTTP/1.1 500 Broken\nContent-Length: 4\n\nfine", 500, b"fine"),
        (b"HTTP/1.1 204 No Content\r\nX: " + b"x" * 8000 + b"\r\n\r\n", 204, b""),
        (CHUNKED[:-2] + b"Retry-After: 99\r\n\r\n", 200, b"fine"),  # a trailer changes nothing
    ],
)
@pytest.mark.parametrize("piece", [1, 7, 10_000])
async def test_an_answer_is_read_however_it_comes_and_its_connection_used_again(
    answer: bytes, status: int, body: bytes, piece: int
) -> None:
    server = Server(answer, piece=piece)
    async with server.asked() as post:
        for _ in range(3):
            assert await post() == Answer(status, None, body)
    assert server.connections == 1


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\nfine", b"fine"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\nfine", b"fine"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n", b""),
        (FINE + b"and more", b"fine"),
        (FINE + NO_CONTENT, b"fine"),
        (ENDLESS + b"x" * BODY_BYTES, b"x" * BODY_BYTES),
        (CHUNKED[:-5] + b"not a size", b"fine"),
    ],
)
async def test_a_connection_that_says_more_or_less_than_one_answer_is_not_used_again(
    answer: bytes, body: bytes
) -> None:
    server = Server(answer)
    async with server.asked() as post:
        for _ in range(2):
            assert (await post()).body == body
    assert server.connections == 2


@pytest.mark.parametrize("answer", [b"HTTP/1.0 200 OK\r\n\r\nfine", ENDLESS + b"fine"])
async def test_a_body_lasts_until_the_endpoint_hangs_up(answer: bytes) -> None:
    async with Server(answer, hangs_up=True).asked() as post:
        assert await post() == Answer(200, None, b"fine")


async def test_a_head_that_drips_ends_at_the_time_out() -> None:
    async with Server(NO_CONTENT, piece=1, pause_s=0.02).asked() as post:
        with pytest.raises(TimeoutError):
            await post(timeout_s=0.2)


async def test_a_body_that_drips_is_waited_for_a_second_at_most() -> None:
    server = Server(ENDLESS + b"x" * 500, piece=len(ENDLESS) + 1, pause_s=0.3)
    async with server.asked() as post:
        began = asyncio.get_running_loop().time()
        answer = await post()
        assert asyncio.get_running_loop().time() - began < 2.5
    assert answer.status == 200
    assert answer.body.startswith(b"x")


async def test_what_follows_a_body_without_end_is_not_kept() -> None:
    trailer = CHUNKED[:-2] + b"X: " + b"x" * (4 * HEAD_BYTES)
    server = Server(trailer, piece=10_000, pause_s=0.001)
    async with server.asked() as post:
        began = asyncio.get_running_loop().time()
        assert (await post()).body == b"fine"
        assert asyncio.get_running_loop().time() - began < BODY_TIMEOUT_S
        await post()
    assert server.connections == 2


async def test_the_first_retry_after_of_the_answer_itself_counts() -> None:
    hint = b"HTTP/1.1 103 Early Hints\r\nRetry-After: 1\r\n\r\n"
    answer = b"HTTP/1.1 503 Busy\r\nretry-AFTER: 30\r\nRetry-After: 60\r\nContent-Length: 0\r\n\r\n"
    async with Server(hint + answer, NO_CONTENT).asked() as post:
        assert await post() == Answer(503, "30", b"")
        assert await post() == Answer(204, None, b"")


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 2x4 No\r\n\r\n",
        FINE.replace(b"200", b"000"),
        FINE.replace(b"200", b"099"),
        b"HTTP/1.1 204 No\r\nX: " + b"x" * FIELD_BYTES + b"\r\n\r\n",
        b"HTTP/1.1 204 No\r\n" + b"X: y\r\n" * HEAD_BYTES,
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
async def test_what_is_no_answer_is_refused_and_not_kept(answer: bytes) -> None:
    server = Server(answer, piece=1000)
    async with server.asked() as post:
        for _ in range(2):
            with pytest.raises(NotHTTP, match=r"^the answer is not HTTP: \w+"):
                await post()
    assert server.connections == 2


async def test_a_greeting_before_the_request_is_no_answer() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example\r\n")
        await reader.read()

    async with asking(greet) as post:
        with pytest.raises(NotHTTP):
            await post()


async def test_a_connection_that_says_something_while_idle_is_not_used_again() -> None:
    loop = asyncio.get_running_loop()
    server = Server(FINE)
    inner = server.serve

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop.call_later(0.05, writer.write, b"HTTP/1.1 2")
        await inner(reader, writer)

    server.serve = serve  # type: ignore[method-assign]
    async with server.asked() as post:
        assert (await post()).status == 200
        await asyncio.sleep(0.1)
        assert (await post()).status == 200
    assert server.connections == 2


async def test_a_reset_is_told_from_an_orderly_end() -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async with asking(reset) as post:
        with pytest.raises(ConnectionResetError) as caught:
            await post(b"x")
        assert verdict.of_error(caught.value, 1.0).reason == "connection reset"
    async with Server(b"", hangs_up=True).asked() as post:
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await post()


async def test_idle_connections_are_dropped_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emq_push.wires.KEEPALIVE_S", 0.1)
    server = Server(NO_CONTENT, at_once=5)
    async with server.asked() as post:
        await asyncio.gather(*[post() for _ in range(5)])
        await asyncio.sleep(0.4)
        assert server.lost == 5
        await post()
    assert server.connections == 6


async def test_a_large_body_arrives_whole_and_concurrent_requests_do_not_share_a_connection() -> None:
    server = Server(NO_CONTENT, at_once=4)
    bodies = [bytes([i]) * (1 << 20) for i in range(4)]
    async with server.asked() as post:
        await asyncio.gather(*[post(body) for body in bodies])
    assert server.connections == 4
    assert sorted(request.partition(b"\r\n\r\n")[2] for request in server.requests) == bodies


async def test_cancelling_a_request_closes_its_connection() -> None:
    server = Server(b"")
    async with server.asked() as post:
        posting = post()
        await until(lambda: server.requests)
        posting.cancel()
        await until(lambda: server.lost)


async def test_a_connection_that_becomes_free_goes_to_one_who_waits() -> None:
    server = Server(NO_CONTENT)
    async with server.asked() as post:
        await asyncio.gather(*[post() for _ in range(500)])
    assert len(server.requests) == 500
    assert server.connections < 250


async def test_a_slow_connection_has_its_own_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object) -> aiohttp.connector.Connection:
        await asyncio.sleep(60)
        raise AssertionError

    monkeypatch.setattr("emq_push.wires.CONNECT_TIMEOUT_S", 0.05)
    url = yarl.URL("http://shop.example/")
    for timeout_s, reason in ((0.04, "timeout after 0.04 s"), (10.0, "connect timeout")):
        with pytest.raises(TimeoutError) as caught:
            await Wires(never).post(url, b"", {}, timeout_s)
        assert verdict.of_error(caught.value, timeout_s).reason == reason


@pytest.mark.parametrize("value", ["a\r\nX: 1", "a\nb", "a\rb", "é"])
def test_a_header_cannot_begin_another_one(value: str) -> None:
    with pytest.raises(ValueError, match=r"line break|ascii"):
        head_of(yarl.URL("http://shop.example/"), {"a": value}, 0)


def test_the_head_names_host_and_port_as_the_url_does() -> None:
    for url, host in (("http://shop.example:80/a?b=%2F#c", "shop.example"), ("https://[::1]:8443", "[::1]:8443")):
        head = head_of(yarl.URL(url, encoded=True), {"Content-Type": "text/csv"}, 7)
        assert f"\r\nHost: {host}\r\n".encode() in head
        assert b"\r\nContent-Length: 7\r\n" in head
        assert head.endswith(b"\r\nContent-Type: text/csv\r\n\r\n")
    assert head_of(yarl.URL("http://shop.example/a?b=%2F#c", encoded=True), {}, 0).startswith(
        b"POST /a?b=%2F HTTP/1.1\r"
    )
