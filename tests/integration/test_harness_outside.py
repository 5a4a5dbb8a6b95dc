"""`emq_testing.Harness` with handlers that use threads, connections and busy waiting, and with other event loops."""

from __future__ import annotations

import asyncio
import datetime
import socket
import threading
import time
from collections.abc import Callable, Iterator

import aiohttp
import pytest
import uvloop
from aiohttp import test_utils, web

import emq
from emq_testing import Harness

START = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)


async def delivered_once(handler: Callable[[emq.Message], object]) -> None:
    """Deliver a message to the handler; no time may pass for the handler's waiting."""
    app = emq.App("memory:")
    app.handler("t")(handler)
    async with Harness(app, start=START) as t:
        await app.create_topic("t", qps=50)
        await t.publish("t", b"1")
        await t.settled()
        assert not t.failures
        assert len(t.delivered) == 1


async def test_time_stands_still_while_a_plain_function_works() -> None:
    app = emq.App("memory:")

    @app.handler("plain")
    def plain(message: emq.Message) -> None:
        time.sleep(0.05)

    async with Harness(app, start=START) as t:
        await app.create_topic("plain", qps=50)
        await t.publish("plain", b"1")
        await t.settled()
        before = t.now
        await app.publish_many("plain", [b"2", b"3"])
        await t.settled()
        assert len(t.delivered) == 3
        assert t.now == before


async def test_a_plain_function_may_publish_and_block_until_that_is_done() -> None:
    app = emq.App("memory:")
    loop = asyncio.get_running_loop()

    @app.handler("plain")
    def plain(message: emq.Message) -> None:
        if message.payload == b"1":
            asyncio.run_coroutine_threadsafe(app.publish("plain", b"2"), loop).result(10)

    async with Harness(app, start=START) as t:
        await app.create_topic("plain", qps=50)
        await t.publish("plain", b"1")
        await t.settled()
        assert [m.payload for m in t.delivered] == [b"1", b"2"] or [m.payload for m in t.delivered] == [b"2", b"1"]


async def test_a_time_out_fires_although_a_thread_hangs() -> None:
    app, end = emq.App("memory:"), threading.Event()

    @app.handler("hang")
    def hang(message: emq.Message) -> None:
        end.wait(60)

    try:
        began_s = time.monotonic()
        async with Harness(app, start=START, patience_s=0.2) as t:
            await app.create_topic("hang", qps=10, handler_timeout_s=300, max_attempts=1)
            await t.publish("hang", b"1")
            await t.settled(within_s=400)
            assert t.dead_letters[0].reason == "the handler took longer than 300 s"
        assert time.monotonic() - began_s < 40
    finally:
        end.set()


async def test_time_stands_still_while_to_thread_works() -> None:
    async def aside(message: emq.Message) -> None:
        async with asyncio.timeout(0.001):
            await asyncio.to_thread(time.sleep, 0.1)

    await delivered_once(aside)


async def test_a_server_in_the_test_answers_without_time_passing() -> None:
    app = emq.App("memory:")
    asked: list[str] = []

    async def hook(request: web.Request) -> web.Response:
        asked.append(await request.text())
        return web.Response(status=503 if len(asked) == 1 else 200)

    served = web.Application()
    served.router.add_post("/", hook)
    began_s = time.monotonic()
    async with (
        test_utils.TestServer(served) as server,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session,
        Harness(app, start=START, patience_s=30) as t,
    ):
        url = server.make_url("/")

        @app.handler("hooks")
        async def call(message: emq.Message) -> None:
            async with session.post(url, data=message.payload) as answer:
                answer.raise_for_status()
                await asyncio.sleep(1)  # with the connection open

        await app.create_topic("hooks", qps=10)
        await t.advance(2)
        before = t.now
        await t.publish("hooks", b"17")
        await t.settled()
        assert t.now == before
        assert isinstance(t.failures[0].error, aiohttp.ClientResponseError)
        await t.drained()
        assert asked == ["17", "17"]
        assert len(t.delivered) == 1
    assert time.monotonic() - began_s < 10


@pytest.fixture
def slow_server() -> Iterator[int]:
    """A server in a thread of its own that answers each line after a tenth of a real second; yields its port."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                while line := connection.recv(100):
                    time.sleep(0.1)
                    connection.sendall(line)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listening.getsockname()[1]
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join(5)


async def test_time_stands_still_while_another_process_answers(slow_server: int) -> None:
    async def ask(message: emq.Message) -> None:
        async with asyncio.timeout(0.05):
            reader, writer = await asyncio.open_connection("127.0.0.1", slow_server)
            writer.write(b"hello\n")
            assert await reader.readline() == b"hello\n"
            writer.close()
            await writer.wait_closed()

    await delivered_once(ask)


async def test_a_handler_that_asks_for_the_time_again_and_again_gets_there() -> None:
    async def busy(message: emq.Message) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + 1
        while loop.time() < until:
            await asyncio.sleep(0)

    await delivered_once(busy)


def test_another_kind_of_event_loop_is_refused_with_its_name() -> None:
    async def main() -> None:
        async with Harness(emq.App("memory:")):
            pass

    with (
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        pytest.raises(RuntimeError, match=r"needs asyncio's own event loop .* this test runs on uvloop\.Loop"),
    ):
        runner.run(main())
