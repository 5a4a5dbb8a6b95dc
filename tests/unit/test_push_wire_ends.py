"""How connections to endpoints end: at once, for good, and before a request that would get the answer of another."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
import yarl

from emq_push.addresses import AddressFilter
from emq_push.http import Connections
from emq_push.wire import Answer, NotHTTP
from support.authority import Authority
from support.raw_server import PATIENCE_S, RawConnection, RawServer

FINE = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"
TOO_LARGE = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n"
SOON_S = 5.0
"""Most seconds until a connection is closed; TLS alone would wait for 30."""

Post = Callable[..., asyncio.Future[Answer]]
Serve = Callable[[RawConnection], None]


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


class Asking:
    """Posts to raw servers, over TLS or not."""

    def __init__(self, authority: Authority, directory: Path, *, is_tls: bool) -> None:
        self.scheme = "https" if is_tls else "http"
        self.ours = ssl.create_default_context(cadata=authority.pem) if is_tls else None
        self.theirs = authority.server_context("localhost", directory) if is_tls else None
        self.client = Connections(AddressFilter(("*",)))

    @contextlib.asynccontextmanager
    async def served(self, serve: Serve) -> AsyncIterator[tuple[RawServer, Post]]:
        with RawServer(serve, self.theirs).running() as server:
            url = yarl.URL(f"{self.scheme}://127.0.0.1:{server.port}/hook")

            def post(body: bytes = b"{}", timeout_s: float = 5.0) -> asyncio.Future[Answer]:
                return asyncio.ensure_future(self.client.deliver(url, body, {}, timeout_s, self.ours))

            try:
                yield server, post
            finally:
                await self.client.close()


@pytest.fixture(params=["http", "https"])
def asking(request: pytest.FixtureRequest, authority: Authority, tmp_path: Path) -> Asking:
    return Asking(authority, tmp_path, is_tls=request.param == "https")


def answering(answer: bytes) -> Serve:
    """Return what reads requests whole and answers each one."""

    def serve(connection: RawConnection) -> None:
        while True:
            connection.body(connection.head())
            connection.over.sendall(answer)

    return serve


@pytest.mark.parametrize(
    "answer", [FINE.replace(b"OK", b"OK\r\nConnection: close"), b"", b"HTTP/1.1 2", b"SSH-2.0\r\n"]
)
@pytest.mark.parametrize("size", [2, 5_000_000])
async def test_an_endpoint_that_ends_nothing_holds_no_connection(asking: Asking, answer: bytes, size: int) -> None:
    ended = threading.Event()

    def serve(connection: RawConnection) -> None:
        connection.head()
        connection.over.sendall(answer)
        time.sleep(0.6)  # the client closes meanwhile, or has no time left
        connection.wait_for_end()
        ended.set()

    async with asking.served(serve) as (_, post):
        with contextlib.suppress(TimeoutError, NotHTTP):
            assert (await post(bytes(size), timeout_s=0.4)).status == 200
        assert await asyncio.to_thread(ended.wait, SOON_S)


@pytest.mark.parametrize("way", ["read", "unread", "cut", "cancelled"])
async def test_a_token_server_that_ends_nothing_holds_no_connection_either(asking: Asking, way: str) -> None:
    ended = threading.Event()

    def serve(connection: RawConnection) -> None:
        connection.head()
        if way != "cancelled":
            connection.over.sendall(FINE[: -2 if way == "cut" else None])
        connection.wait_for_end()
        ended.set()

    async with asking.served(serve) as (server, _):
        url = yarl.URL(f"{asking.scheme}://127.0.0.1:{server.port}/token")
        with contextlib.suppress(TimeoutError):
            response = await asking.client.request("POST", url, b"{}", {}, 0.5, asking.ours)
            if way == "read":
                assert await response.read() == b"fine"
            response.release()
        assert await asyncio.to_thread(ended.wait, SOON_S)


async def test_a_delivery_does_not_use_the_connection_of_a_token(asking: Asking) -> None:
    async with asking.served(answering(FINE)) as (server, post):
        url = yarl.URL(f"{asking.scheme}://127.0.0.1:{server.port}/token")
        (await asking.client.request("POST", url, b"{}", {}, 5.0, asking.ours)).release()
        await asyncio.sleep(0.05)
        await post()
        assert len(server.connections) == 2


async def test_the_end_of_a_pusher_closes_idle_and_busy_connections_at_once(asking: Asking) -> None:
    ended = threading.Semaphore(0)

    def serve(connection: RawConnection) -> None:
        if connection.body(connection.head()) == b"{}":
            connection.over.sendall(FINE)
        connection.wait_for_end()
        ended.release()

    async with asking.served(serve) as (server, post):
        busy = post(b"wait")
        await post()
        while len(server.connections) < 2:
            await asyncio.sleep(0.01)
        await asking.client.close()
        for _ in range(2):
            assert await asyncio.to_thread(ended.acquire, timeout=SOON_S)
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await asyncio.wait_for(busy, SOON_S)
        with pytest.raises(RuntimeError, match="the pusher is closed"):
            await post()


async def test_the_end_of_a_pusher_does_not_wait_for_an_endpoint_that_reads_nothing(asking: Asking) -> None:
    async with asking.served(lambda connection: None) as (server, post):
        busy = post(bytes(20_000_000), timeout_s=60.0)
        while not server.connections:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        async with asyncio.timeout(SOON_S):
            await asking.client.close()
            await asyncio.gather(busy, return_exceptions=True)


@pytest.mark.parametrize(("answer", "size"), [(TOO_LARGE, 100_000), (TOO_LARGE, 20_000_000), (FINE, 20_000_000)])
async def test_an_answer_to_a_request_that_is_not_read_costs_the_connection(
    asking: Asking, answer: bytes, size: int
) -> None:
    def serve(connection: RawConnection) -> None:
        connection.head()
        connection.over.sendall(answer)

    async with asking.served(serve) as (server, post):
        for _ in range(2):
            assert (await post(bytes(size))).status == int(answer[9:12])
        assert len(server.connections) == 2


async def test_a_large_request_that_is_read_whole_keeps_its_connection(asking: Asking) -> None:
    async with asking.served(answering(FINE)) as (server, post):
        for _ in range(3):
            assert (await post(bytes(5_000_000))).status == 200
        assert len(server.connections) == 1


@pytest.mark.parametrize("says", [b"", FINE, b"\r\n"])
async def test_what_came_while_the_event_loop_was_busy_costs_the_connection_and_no_request(
    asking: Asking, says: bytes
) -> None:
    said = threading.Event()

    def serve(connection: RawConnection) -> None:
        connection.body(connection.head())
        connection.over.sendall(FINE)
        time.sleep(0.1)
        if says:
            connection.over.sendall(says)
        else:
            connection.close()
        said.set()
        if says:
            connection.body(connection.head())  # of a request that must not come

    async with asking.served(serve) as (server, post):
        assert (await post()).status == 200
        said.wait(SOON_S)  # the event loop has no turn
        said.clear()
        assert (await post()).status == 200
        assert len(server.connections) == 2


async def test_a_connection_at_whose_end_tls_says_so_is_not_used_again(asking: Asking) -> None:
    async with asking.served(answering(FINE)) as (server, post):
        assert (await post()).status == 200
        [[wire]] = asking.client._wires._idle.values()
        wire.eof_received()
        assert not wire.is_open
        assert (await post()).status == 200
        assert len(server.connections) == 2


@pytest.mark.parametrize(
    ("kept", "connections"),
    [(b"timeout=1", 2), (b"max=5, TIMEOUT = 1", 2), (b"timeout=5, max=100", 1), (b"max=1", 1), (b"timeout=x", 1)],
)
async def test_an_endpoint_says_for_how_long_it_keeps_a_connection(
    asking: Asking, kept: bytes, connections: int
) -> None:
    async with asking.served(answering(FINE.replace(b"OK", b"OK\r\nkeep-ALIVE: " + kept))) as (server, post):
        await post()
        await asyncio.sleep(0.6)
        await post()
        assert len(server.connections) == connections


async def test_an_endpoint_that_closes_without_a_word_costs_one_request_and_not_every_second(asking: Asking) -> None:
    gone: list[bool] = []

    def serve(connection: RawConnection) -> None:
        connection.body(connection.head())
        connection.over.sendall(FINE)
        gone.append(bool(connection.head()))  # the next request is read, and gets no answer
        connection.close()

    async with asking.served(serve) as (server, post):
        assert (await post()).status == 200
        with pytest.raises((aiohttp.ServerDisconnectedError, ConnectionError)):
            await post()
        for _ in range(10):
            assert (await post()).status == 200
        assert gone == [True]
        assert len(server.connections) == 11


async def test_an_endpoint_that_is_slow_once_keeps_its_connections(asking: Asking) -> None:
    requests = 0

    def serve(connection: RawConnection) -> None:
        nonlocal requests
        while True:
            connection.body(connection.head())
            requests += 1
            if requests != 2:
                connection.over.sendall(FINE)

    async with asking.served(serve) as (server, post):
        await post()
        with pytest.raises(TimeoutError):
            await post(timeout_s=0.2)
        for _ in range(3):
            await post()
        assert len(server.connections) == 2


async def test_few_connections_stay_idle_and_the_oldest_ones_are_closed(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Semaphore(0)
    asked = threading.Semaphore(0)
    answers = threading.Semaphore(0)

    def serve(connection: RawConnection) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                connection.body(connection.head())
                asked.release()
                answers.acquire(timeout=PATIENCE_S)
                connection.over.sendall(FINE)
        ended.release()

    async def reaches(semaphore: threading.Semaphore, count: int) -> None:
        for _ in range(count):
            assert await asyncio.to_thread(semaphore.acquire, timeout=SOON_S)

    async def at_once(post: Post, count: int) -> None:
        """Have `count` requests under way before any of them gets its answer."""
        posted = [post() for _ in range(count)]
        await reaches(asked, count)
        answers.release(count)
        await asyncio.gather(*posted)

    monkeypatch.setattr(asking.client._wires, "_most_idle", 3)
    async with asking.served(serve) as (first, post_first), asking.served(serve) as (second, post_second):
        for _ in range(2):
            await at_once(post_first, 10)
            await reaches(ended, 7)
        assert len(first.connections) == 17
        await at_once(post_second, 3)
        await reaches(ended, 3)
        await at_once(post_second, 1)
        assert len(second.connections) == 3
        await at_once(post_first, 1)
        assert len(first.connections) == 18
