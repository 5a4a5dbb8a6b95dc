"""A small forward proxy on loopback: CONNECT for https, whole URLs for http; it keeps what it was asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple
from urllib.parse import urlsplit

from support.served import served


class Asked(NamedTuple):
    """A request to the proxy; the names of headers are in lower case."""

    method: str
    target: str
    headers: dict[str, str]


class ConnectProxy:
    """Passes requests on, unless `refuses` answers.

    Attributes:
        ports: host and port of a request to the port on loopback where it goes; the names exist nowhere else.
        refuses: returns the whole answer to a request; None to pass it on.
        requests: all of them, in their order.
    """

    def __init__(self, ports: dict[str, int], refuses: Callable[[Asked], bytes | None] = lambda _: None) -> None:
        self.ports = ports
        self.refuses = refuses
        self.requests: list[Asked] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[int]:
        """Serve for the length of a block; yield the port."""
        async with served(self._serve) as port:
            yield port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        method, target, _ = first.split()
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        self.requests.append(asked := Asked(method, target, headers))
        if (answer := self.refuses(asked)) is not None:
            writer.write(answer)
            await writer.drain()
            return
        url = urlsplit(target if method != "CONNECT" else f"//{target}")
        place = f"{url.hostname}:{url.port or 80}"
        inner, outer = await asyncio.open_connection("127.0.0.1", self.ports[place])
        try:
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                outer.write(head.replace(target.encode(), url.path.encode(), 1))
            await asyncio.gather(_pumped(reader, outer), _pumped(inner, writer))
        finally:
            outer.close()


async def _pumped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    if writer.can_write_eof():
        with contextlib.suppress(OSError):
            writer.write_eof()
    else:
        writer.close()
