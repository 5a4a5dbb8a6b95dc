"""The HTTP server of a host's metrics: right answers, and no client that keeps the host from its messages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import emq
from emq.observe.metrics import server
from emq.observe.metrics.monitor import Monitor
from emq.observe.metrics.server import MAX_CONNECTIONS, MAX_HEAD_BYTES, Page, Server
from emq.runtime import errors
from emq.runtime.settings import Address, Settings
from emq_testing import Harness
from support.scraped import Scraped
from support.waiting import until

LOOPBACK = Address("127.0.0.1", 0)


async def raw(address: Address, data: bytes) -> bytes:
    """Send bytes, and return all that comes back."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    with contextlib.suppress(ConnectionError):
        writer.write(data)
        await writer.drain()
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def get(address: Address, path: str, method: str = "GET") -> tuple[int, str]:
    answer = await raw(address, f"{method} {path} HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n".encode())
    head, _, text = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), text.decode()


@contextlib.asynccontextmanager
async def serving(text: str = "hello\n") -> AsyncIterator[tuple[Address, list[str]]]:
    asked: list[str] = []

    async def page(query: str) -> Page:
        asked.append(query)
        return Page(200, text)

    async def bug(query: str) -> Page:
        raise ValueError("a bug")

    made = Server({"/page": page, "/bug": bug})
    address = await made.start(LOOPBACK)
    try:
        yield address, asked
    finally:
        await made.close()
        await made.close()


async def test_pages_by_path_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as (address, asked):
        assert await get(address, "/page") == (200, "hello\n")
        assert await get(address, "/page?a=1&b") == (200, "hello\n")
        assert asked == ["", "a=1&b"]
        assert await get(address, "/page", "HEAD") == (200, "")
        assert await get(address, "/page", "POST") == (405, "only GET and HEAD are served here\n")
        assert await get(address, "/etc/passwd") == (404, "here are /bug, /page\n")
        assert (await get(address, "/bug"))[0] == 500
        assert "a bug" in caplog.text
        for strange in (
            b"\x16\x03\x01\x02\x00\r\n\r\n",
            b"GET /page\r\n\r\n",
            b"GET  /page HTTP/1.1\r\n\r\n",
            b"\r\n\r\n",
        ):
            assert (await raw(address, strange)).startswith(b"HTTP/1.1 400 ")
        assert await get(address, "/page") == (200, "hello\n")


async def test_requests_that_people_and_proxies_make_are_served() -> None:
    async with serving() as (address, asked):
        for odd in (
            b"GET /page?a HTTP/1.0\n\n",
            b"GET /page?a HTTP/1.1\nHost: x\n\n",
            b"\r\nGET /page?a HTTP/1.1\r\n\r\n",
            b"GET http://host:9464/page?a HTTP/1.1\r\nHost: host\r\n\r\n",
            b"GET /page?a HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
            b"GET /page?a HTTP/1.1\r\n\r\nGET /page?b HTTP/1.1\r\n\r\n",
        ):
            answer = await asyncio.wait_for(raw(address, odd), 5)
            assert answer.startswith(b"HTTP/1.1 200 "), odd
            assert answer.endswith(b"\r\n\r\nhello\n")
        assert asked == ["a"] * 6
        assert b"\r\nAllow: GET, HEAD\r\n" in await raw(address, b"DELETE /page HTTP/1.1\r\n\r\n")


async def test_a_head_that_comes_in_pieces_is_taken_and_half_a_head_is_no_request() -> None:
    async with serving() as (address, asked):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        for piece in (b"GET /pa", b"ge HTTP/1.1\r", b"\nX: y\r\n\r", b"\n"):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"GET /page HTTP/1.1\r\n")
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        assert len(asked) == 1


@pytest.mark.parametrize(("mute_s", "status"), [(0.0, 200), (60.0, 503)])
async def test_clients_that_ask_nothing_make_room_for_one_that_asks(
    monkeypatch: pytest.MonkeyPatch, mute_s: float, status: int
) -> None:
    """Else an orchestrator would restart a host because somebody holds the connections of its metrics open."""
    monkeypatch.setattr(server, "MUTE_S", mute_s)
    async with serving() as (address, _):
        mutes = [await asyncio.open_connection(address.host, address.port) for _ in range(MAX_CONNECTIONS)]
        for _ in range(2):
            assert (await get(address, "/page"))[0] == status
        dropped = [reader.at_eof() for reader, _ in mutes].count(True)
        assert dropped == (0 if status == 503 else 1), "and no more of them than needed"
        for _, writer in mutes:
            writer.close()


async def test_a_request_without_end_is_refused() -> None:
    async with serving() as (address, _):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"GET /page HTTP/1.1\r\n")
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 10 << 20:
                writer.write(b"X: " + b"y" * 65_000 + b"\r\n")
                sent += 65_000
                await writer.drain()
        assert sent < 10 << 20, f"{sent} bytes of headers were taken"
        with contextlib.suppress(ConnectionError):
            assert (await reader.read(12)) in (b"HTTP/1.1 431", b"")
        writer.close()
        assert (await get(address, "/page"))[0] == 200


async def test_the_largest_head_that_is_allowed_is_taken() -> None:
    async with serving() as (address, _):
        head = b"GET /page HTTP/1.1\r\nX: " + b"y" * (MAX_HEAD_BYTES - 100) + b"\r\n\r\n"
        assert (await raw(address, head)).startswith(b"HTTP/1.1 200")


async def test_who_never_reads_or_never_asks_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 0.2)
    text = "x" * (64 << 20)
    async with serving(text) as (address, _):
        loop = asyncio.get_running_loop()
        slow = socket.create_connection(address)
        slow.setblocking(False)
        await loop.sock_sendall(slow, b"GET /page HTTP/1.1\r\n\r\n")
        mute = socket.create_connection(address)
        mute.setblocking(False)
        assert await asyncio.wait_for(loop.sock_recv(mute, 10), 10) == b""
        await asyncio.sleep(0.3)
        received = 0
        with contextlib.suppress(ConnectionError):
            while data := await asyncio.wait_for(loop.sock_recv(slow, 1 << 20), 10):
                received += len(data)
        assert received < len(text)
        slow.close()
        mute.close()


async def test_a_thousand_requests_at_once_are_answered_or_told_to_come_again() -> None:
    async with serving("x" * 200_000) as (address, _):
        answers = await asyncio.gather(*(get(address, "/page") for _ in range(1_000)), return_exceptions=True)
        codes = [answer[0] for answer in answers if isinstance(answer, tuple)]
        assert set(codes) <= {200, 503}
        assert codes.count(200) >= MAX_CONNECTIONS
        assert (await get(address, "/page"))[0] == 200


async def test_a_taken_address_is_named() -> None:
    async with serving() as (address, _):
        with pytest.raises(errors.InvalidSettings, match=rf"metrics = '127\.0\.0\.1:{address.port}' is in use"):
            await Server({}).start(address)
    with pytest.raises(errors.InvalidSettings, match="cannot be used"):
        await Server({}).start(Address("192.0.2.1", 9464))


async def test_an_app_serves_while_it_consumes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "emq.observe.metrics")
    options = Settings(store=f"sqlite:///{tmp_path}/emq.db", metrics="127.0.0.1:0")
    app = emq.App(options=options)
    done = asyncio.Event()

    @app.handler('we"ird\\*')
    async def weird(message: emq.Message) -> None:
        pass

    @app.handler("mail.*")
    async def mail(message: emq.Message) -> None:
        done.set()

    async with app:
        assert app.monitor.address is None
        await app.create_topic("mail.acme", 100)
        await app.create_topic('we"ird\\topic', 100)
        async with app.running():
            address = app.monitor.address
            assert address is not None
            assert address.port > 0
            assert f"http://{address}/metrics" in caplog.text
            await app.publish("mail.acme", b"x")
            await asyncio.wait_for(done.wait(), 20)
            await until(lambda: all(sum(c.runs) for c in app.host.deliveries if c.pattern == "mail.*"))  # type: ignore
            status, text = await get(address, "/metrics")
            assert status == 200
            page = Scraped(text)
            assert page.value("emq_started_total", handler="mail.*") == 1
            assert page.value("emq_started_total", handler='we"ird\\*') == 0
            assert await get(address, "/readyz") == (200, "ok\n")
            status, text = await get(address, "/readyz?verbose")
            assert status == 200
            assert text.startswith("[+] running:")
            assert text.endswith("\nok\n")
            assert (await get(address, "/livez"))[0] == 200
            assert "/metrics" in (await get(address, "/"))[1]
        assert app.monitor.address is None
        with pytest.raises(ConnectionError):
            await get(address, "/readyz")
        async with app.running():  # a host again, which counts from 0
            assert app.monitor.address is not None
            page = Scraped((await get(app.monitor.address, "/metrics"))[1])
            assert page.value("emq_started_total", handler="mail.*") == 0


async def test_a_stopping_host_answers_to_the_end_and_is_not_ready(tmp_path: Path) -> None:
    app = emq.App(options=Settings(store=f"sqlite:///{tmp_path}/emq.db", metrics="127.0.0.1:0"))
    begun, gate = asyncio.Event(), asyncio.Event()

    @app.handler("t")
    async def wait(message: emq.Message) -> None:
        begun.set()
        await gate.wait()

    async with app:
        await app.create_topic("t", 100)
        running = asyncio.create_task(app.run())
        await app.publish("t", b"x")
        await asyncio.wait_for(begun.wait(), 20)
        address = app.monitor.address
        assert address is not None
        app.stop()
        await asyncio.sleep(0)
        assert await get(address, "/readyz") == (503, "failed; ?verbose says why\n")
        assert "[-] running: stops\n" in (await get(address, "/readyz?verbose"))[1]
        assert (await get(address, "/livez"))[0] == 200
        assert Scraped((await get(address, "/metrics"))[1]).value("emq_in_flight_messages") == 1
        gate.set()
        await running


async def test_a_command_serves_from_before_its_servers_answer(tmp_path: Path) -> None:
    app = emq.App(
        options=Settings(store="redis://127.0.0.1:1/0", database=f"sqlite:///{tmp_path}/emq.db", metrics="127.0.0.1:0"),
        patient=True,
    )
    async with app.monitor.serving():
        address = app.monitor.address
        assert address is not None
        assert await get(address, "/readyz?verbose") == (
            503,
            "[-] open: store and database are not open yet\nfailed\n",
        )
        opening = asyncio.create_task(app.__aenter__())
        await until(lambda: app.waits_for is not None)
        status, text = await get(address, "/readyz?verbose")
        assert status == 503
        assert text.startswith("[-] open: waits for ")
        assert "127.0.0.1:1" in text
        assert (await get(address, "/livez"))[0] == 200
        assert "emq_info" in (await get(address, "/metrics"))[1]
        opening.cancel()
        await asyncio.wait([opening])


async def test_scrapes_at_the_same_time_share_one_page(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    real = Monitor._render

    async def render(self: Monitor) -> bytes:
        nonlocal made
        made += 1
        return await real(self)

    monkeypatch.setattr(Monitor, "_render", render)
    app = emq.App("memory://shared-page", options=Settings(metrics="127.0.0.1:0"))
    async with app.monitor.serving():
        pages = await asyncio.gather(*(app.monitor._metrics("") for _ in range(500)))
        assert len({id(page.text) for page in pages}) == made == 1
        assert isinstance(pages[0].text, bytes), "slow readers would hold a copy each"
        await app.monitor._metrics("")
        assert made == 2


async def _handle(message: emq.Message) -> None:
    pass


async def test_a_test_of_handlers_serves_nothing() -> None:
    app = emq.App("memory:", options=Settings(metrics="192.0.2.1:9464"))  # an address that is not of this machine
    app.handler("t")(_handle)
    async with Harness(app) as t:
        await app.create_topic("t", qps=50)
        await t.publish("t", b"x")
        await t.settled()
        assert app.monitor.address is None


@pytest.mark.parametrize(("process", "port"), [(0, 9464), (3, 9467)])
async def test_each_process_of_a_host_has_a_port_of_its_own(
    monkeypatch: pytest.MonkeyPatch, process: int, port: int
) -> None:
    asked: list[Address] = []

    async def start(self: Server, address: Address) -> Address:
        asked.append(address)
        return address

    monkeypatch.setattr(Server, "start", start)
    app = emq.App("memory:", options=Settings(metrics="127.0.0.1:9464"))
    async with app.monitor.serving(process), app.monitor.serving():  # the inner one is that of `run`
        assert asked == [Address("127.0.0.1", port)]
    assert app.monitor.address is None
