"""`app.lifespan` and `app.hosting_lifespan` with real web apps, and the snippets of docs/web.md."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import fastapi
import pytest
import starlette.applications
import starlette.requests
import starlette.responses
import starlette.routing
import uvicorn

import emq
from emq.host.host import Host
from emq.runtime import errors
from support.pages import module_of, snippets


@contextlib.asynccontextmanager
async def served(web: Any) -> AsyncIterator[int]:
    """Serve a web app on loopback with uvicorn; yields the port."""
    server = uvicorn.Server(uvicorn.Config(web, port=0, lifespan="on", log_level="critical", ws="none"))
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await serving


async def posted(port: int, path: str, body: bytes) -> tuple[int, Any]:
    """Return status and JSON of the answer to a POST."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    headers, _, content = answer.partition(b"\r\n\r\n")
    return int(headers.split()[1]), json.loads(content)


@pytest.fixture(autouse=True)
def in_a_directory(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


async def test_the_documented_web_app_publishes_within_a_request() -> None:
    module = module_of(snippets("docs/web.md")[1])
    async with served(module.web) as port:
        answers = await asyncio.gather(*(posted(port, f"/orders/c{i}", b"%d" % i) for i in range(10)))
        assert {status for status, _ in answers} == {200}
        assert module.app.producer.published == 10
    with pytest.raises(errors.StoreUnavailable, match="is closed"):
        await module.orders.publish("c1", b"too late")
    # What was published is there, and the same app can be a host now.
    received: list[emq.Message] = []

    @module.orders.handler
    async def handle(message: emq.Message) -> None:
        received.append(message)

    async with module.app, module.app.running():
        while len(received) < 10:
            await asyncio.sleep(0.01)
    assert {message.id for message in received} == {answer["id"] for _, answer in answers}
    assert {message.topic for message in received} == {f"orders.c{i}" for i in range(10)}


async def test_a_lifespan_of_the_users_own_goes_around_it() -> None:
    module = module_of(snippets("docs/web.md")[2])

    @module.web.post("/state")
    async def state(request: fastapi.Request) -> dict[str, Any]:
        return {"same": request.state.emq is module.app, "prices": request.state.prices}

    async with served(module.web) as port:
        assert await posted(port, "/state", b"") == (200, {"same": True, "prices": {"apple": 3}})


async def test_the_documented_hooks_run(capsys: pytest.CaptureFixture[str]) -> None:
    module = module_of(snippets("docs/web.md")[0])
    async with module.app, module.app.running():
        await module.app.publish("orders", b"17")
        while not (printed := capsys.readouterr().out):
            await asyncio.sleep(0.01)
    assert "b'17'" in printed
    assert "AsyncExitStack" in printed
    assert capsys.readouterr().out == "closing\n"


async def test_a_web_process_that_consumes() -> None:
    app = emq.App("memory:")
    handled = asyncio.Event()

    @app.on_startup
    async def topics() -> None:
        await app.create_topic("orders", qps=100)

    @app.handler("orders")
    async def handle(message: emq.Message) -> None:
        handled.set()

    async def order(request: starlette.requests.Request) -> starlette.responses.JSONResponse:
        return starlette.responses.JSONResponse({"id": await request.state.emq.publish("orders", await request.body())})

    routes = [starlette.routing.Route("/orders", order, methods=["POST"])]
    web = starlette.applications.Starlette(routes=routes, lifespan=app.hosting_lifespan)
    async with served(web) as port:
        status, _ = await posted(port, "/orders", b"17")
        assert status == 200
        await asyncio.wait_for(handled.wait(), 10)
        assert app.host is not None
        totals = app.host.statistics
    assert totals().totals.succeeded == 1
    assert app.host is None


async def test_a_host_that_fails_within_a_web_process_is_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, failing = emq.App("memory:"), asyncio.Event()

    async def run(host: Host) -> None:
        host.running.set()
        await failing.wait()
        raise errors.HostConflict("another host consumes from this store")

    monkeypatch.setattr(Host, "run", run)

    async def told() -> None:
        async with app.hosting_lifespan():
            failing.set()
            while "consumes no more" not in caplog.text:
                await asyncio.sleep(0)

    with pytest.raises(errors.HostConflict):
        await told()
    assert "another host consumes from this store" in caplog.text
