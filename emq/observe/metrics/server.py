"""A small HTTP server for a handful of paths, inside the host's event loop.

It uses only asyncio's streams, so that every host can have it, also without the extra `push`. It must never delay
deliveries, so everything is bounded: connections, the head of a request, the time of a connection, and the bytes that
wait for a slow reader. Clients that connect and ask nothing make room for newer connections, so that an orchestrator
gets its answer.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import NamedTuple

from emq.runtime import errors
from emq.runtime.settings import Address

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
"""Most connections at once. A further one replaces the oldest one, if that has asked nothing for `MUTE_S`; else it is
refused."""

MUTE_S = 1.0
"""Seconds within which a client should send its request."""

MAX_HEAD_BYTES = 16 << 10
"""Most bytes of a request's line and headers."""

REQUEST_S = 10.0
"""Seconds after which a connection ends, whatever the other side does."""

WRITE_BYTES = 64 << 10
"""Bytes written at a time. For each slow reader so many wait in memory, beside the page, which requests share."""

BACKLOG = 256

_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 431: "Headers Too Large"}
_REASONS |= {500: "Internal Server Error", 503: "Service Unavailable"}

PLAIN = "text/plain; charset=utf-8"

METHODS = ("GET", "HEAD")

_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
"""Also takes a request that somebody types into a terminal."""

_ORIGIN = re.compile(r"(?i)https?://[^/?]*")
"""What stands before the path in a request that comes through a proxy."""


class Page(NamedTuple):
    """An answer: its status, its text, and the type of the text. Requests may share the bytes of a text."""

    status: int
    text: str | bytes
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
        self._unasked: dict[asyncio.StreamWriter, float] = {}  # connections without a request, since when; oldest first

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
        for writer in self._unasked:  # the task of a new connection may not have begun, and would not end it
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await server.wait_closed()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        if len(self._tasks) >= MAX_CONNECTIONS and not self._make_room(loop.time() - MUTE_S):
            for part in _parts(Page(503, "too many requests at once; try again later\n"), with_text=True):
                writer.write(part)
            writer.close()
            return
        self._unasked[writer] = loop.time()
        task = loop.create_task(self._serve(reader, writer), name="emq metrics request")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _make_room(self, mute_since: float) -> bool:
        """Drop the oldest connection that has asked nothing since that time; return False if there is none."""
        writer, since = next(iter(self._unasked.items()), (None, math.inf))
        if writer is None or since > mute_since:
            return False
        del self._unasked[writer]
        writer.transport.abort()  # its task reads the end, and ends
        return True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S):
                method, page = await self._answer(reader, writer)
                writer.transport.set_write_buffer_limits(WRITE_BYTES)
                for part in _parts(page, with_text=method != "HEAD"):
                    writer.write(part)
                    await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, EOFError):
            pass  # the other side has gone, or is too slow
        finally:
            self._unasked.pop(writer, None)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, Page]:
        head = b""
        while (end := _END_OF_HEAD.search(head)) is None and len(head) <= MAX_HEAD_BYTES:
            if not (more := await reader.read(MAX_HEAD_BYTES)):
                raise EOFError
            head += more
        self._unasked.pop(writer, None)
        if end is None or end.start() > MAX_HEAD_BYTES:
            return "GET", Page(431, f"the head of a request has at most {MAX_HEAD_BYTES} bytes\n")
        line = head[: end.start()].lstrip().decode("latin-1").partition("\n")[0].rstrip("\r").split(" ")
        if len(line) != 3 or not line[2].startswith("HTTP/1."):
            return "GET", Page(400, "this is not a request of HTTP/1.1\n")
        method, target, _ = line
        path, _, query = _ORIGIN.sub("", target, count=1).partition("?")
        if method not in METHODS:
            return method, Page(405, "only GET and HEAD are served here\n")
        if (answer := self._pages.get(path)) is None:
            return method, Page(404, f"here are {', '.join(sorted(self._pages))}\n")
        try:
            return method, await answer(query)
        except Exception as exc:  # a bug must show, and must not end the host
            log.exception("the answer to %s failed", path)
            return method, Page(500, f"{type(exc).__name__}: {exc}\n")


def _parts(page: Page, *, with_text: bool) -> Iterator[bytes | memoryview]:
    """Yield the bytes of an answer, at most `WRITE_BYTES` at a time."""
    text = page.text.encode("utf-8", "replace") if isinstance(page.text, str) else page.text
    allowed = f"Allow: {', '.join(METHODS)}\r\n" if page.status == 405 else ""
    yield (
        f"HTTP/1.1 {page.status} {_REASONS[page.status]}\r\nContent-Type: {page.content_type}\r\n"
        f"Content-Length: {len(text)}\r\n{allowed}Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    ).encode("latin-1")
    if with_text:
        data = memoryview(text)
        for start in range(0, len(data), WRITE_BYTES):
            yield data[start : start + WRITE_BYTES]
