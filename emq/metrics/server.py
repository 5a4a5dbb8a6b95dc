"""A small HTTP server for a handful of paths, inside the host's event loop.

It is written on asyncio's streams: GET of four paths needs no library, and every host can have it, also one without the
extra `push`. It must never be in the way of deliveries, so everything is bounded: connections, the head of a request,
the time of a connection, and the bytes that wait for a slow reader.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from emq import errors
from emq.settings import Address

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
"""Most connections at once; further ones are told to come again."""

MAX_HEAD_BYTES = 16 << 10
"""Most bytes of a request's line and headers."""

REQUEST_S = 10.0
"""Seconds after which a connection ends, whatever the other side does."""

WRITE_BYTES = 64 << 10
"""Bytes written at a time; a slow reader makes this much wait in memory."""

BACKLOG = 256

_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 431: "Headers Too Large"}
_REASONS |= {500: "Internal Server Error", 503: "Service Unavailable"}

PLAIN = "text/plain; charset=utf-8"


class Page(NamedTuple):
    """An answer: its status, its text, and the type of the text."""

    status: int
    text: str
    content_type: str = PLAIN


Answer = Callable[[str], Awaitable[Page]]
"""Makes the page of a path; the argument is the query, the part of the address behind `?`."""


class Server:
    """Serves pages by path; every connection carries one request.

    Args:
        pages: the answer of each path.
    """

    def __init__(self, pages: Mapping[str, Answer]) -> None:
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, address: Address) -> Address:
        """Listen at the address; return it with the port that was chosen for port 0.

        Raises:
            InvalidSettings: the address is taken, or does not belong to this machine.
        """
        try:
            self._server = await asyncio.start_server(
                self._connected, address.host or None, address.port, limit=MAX_HEAD_BYTES, backlog=BACKLOG
            )
        except OSError as exc:
            why = "is in use by another process" if exc.errno == errno.EADDRINUSE else f"cannot be used: {exc}"
            raise errors.InvalidSettings(f"settings: metrics = '{address}' {why}; choose another address") from exc
        return Address(address.host, self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening, and end all connections. Safe to repeat."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await server.wait_closed()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= MAX_CONNECTIONS:
            writer.write(_bytes(Page(503, "too many requests at once; try again later\n"), with_text=True))
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer), name="emq metrics request")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S):
                method, page = await self._answer(reader)
                writer.transport.set_write_buffer_limits(WRITE_BYTES)
                data = memoryview(_bytes(page, with_text=method != "HEAD"))
                for start in range(0, len(data), WRITE_BYTES):
                    writer.write(data[start : start + WRITE_BYTES])
                    await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the other side has gone, or is too slow
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[str, Page]:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return "GET", Page(431, f"the head of a request has at most {MAX_HEAD_BYTES} bytes\n")
        line = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(line) != 3 or not line[2].startswith("HTTP/1."):
            return "GET", Page(400, "this is not a request of HTTP/1.1\n")
        method, target, _ = line
        path, _, query = target.partition("?")
        if method not in ("GET", "HEAD"):
            return method, Page(405, "only GET and HEAD are served here\n")
        if (answer := self._pages.get(path)) is None:
            return method, Page(404, f"here are {', '.join(sorted(self._pages))}\n")
        try:
            return method, await answer(query)
        except Exception as exc:  # a bug must show, and must not end the host
            log.exception("the answer to %s failed", path)
            return method, Page(500, f"{type(exc).__name__}: {exc}\n")


def _bytes(page: Page, *, with_text: bool) -> bytes:
    text = page.text.encode("utf-8", "replace")
    head = (
        f"HTTP/1.1 {page.status} {_REASONS[page.status]}\r\nContent-Type: {page.content_type}\r\n"
        f"Content-Length: {len(text)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (text if with_text else b"")
