"""An HTTP server on loopback whose answers a test decides."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from support.waiting import until


class HttpReceiver:
    """Answers with what `answers` returns: a status, or a response.

    Attributes:
        requests: method, path with query, headers and body of each request.
        port: where it listens.
    """

    def __init__(self, answers: Callable[[Request], web.Response | int | Awaitable[web.Response | int]]) -> None:
        self.answers = answers
        self.requests: list[Request] = []
        self.port = 0

    @property
    def bodies(self) -> list[bytes]:
        return [request.body for request in self.requests]

    def url(self, path: str = "/", scheme: str = "http") -> str:
        return f"{scheme}://127.0.0.1:{self.port}{path}"

    async def got(self, count: int, within_s: float = 10.0) -> list[Request]:
        """Wait for so many requests; return all that came. Fails if there are more or fewer."""
        await until(lambda: len(self.requests) >= count, within_s)
        await asyncio.sleep(0.05)
        assert len(self.requests) == count
        return list(self.requests)

    @contextlib.asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[HttpReceiver]:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_route("*", "/{rest:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        self.port = runner.addresses[0][1]
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _handle(self, asked: web.Request) -> web.Response:
        request = Request(asked.method, asked.path_qs, dict(asked.headers), await asked.read())
        self.requests.append(request)
        answer = self.answers(request)
        if not isinstance(answer, web.Response | int):
            answer = await answer
        return web.Response(status=answer) if isinstance(answer, int) else answer


class Request:
    def __init__(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        self.method, self.path, self.body = method, path, body
        self.headers = {name.lower(): value for name, value in headers.items()}
