"""Proxies on loopback between clients and servers: they keep the two apart, or lose the replies to chosen calls."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import urllib.parse
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Self

from emq_stores.redis import scripts
from support.served import served

Loses = Callable[[bytes], bool]
"""Whether a reply is lost, and its connection with it."""


class PartingProxy:
    """Passes bytes between clients and servers on 127.0.0.1; an asynchronous context manager.

    States: *open*; *silent* (`silence`: connections stay, nothing passes, or only one way); *cut* (`cut`: existing and
    new connections break). `heal` leads back to open; then bytes that silence held up pass.

    Args:
        ports: ports of the servers; the proxy has a port for each.

    Attributes:
        delay_s: seconds for which the proxy keeps all that it passes, each way; `heal` sets it to 0.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self._to = ports
        self._serving = contextlib.AsyncExitStack()
        self._connections: set[asyncio.Task[None]] = set()
        self._cut = False
        self._requests, self._replies = asyncio.Event(), asyncio.Event()
        self._requests.set()
        self._replies.set()
        self.delay_s = 0.0
        self.ports: list[int] = []

    async def __aenter__(self) -> Self:
        for port in self._to:
            self.ports.append(await self._serving.enter_async_context(served(functools.partial(self._serve, port))))
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._serving.aclose()

    @property
    def servers(self) -> str:
        """Return the proxy's addresses, as in a URL."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    async def silence(self, *, requests: bool = True, replies: bool = True) -> None:
        """Pass nothing more that clients send (`requests`), that servers send (`replies`), or neither."""
        if requests:
            self._requests.clear()
        if replies:
            self._replies.clear()

    async def cut(self) -> None:
        self._cut = True
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def heal(self) -> None:
        self._cut = False
        self.delay_s = 0.0
        self._requests.set()
        self._replies.set()

    def asked(self, data: bytes) -> Loses | None:
        """Look at what a client sent; return what judges the replies from then on, None for what did until now."""
        return None

    async def _pass(self, way: asyncio.Event) -> None:
        await asyncio.sleep(self.delay_s)
        await way.wait()

    async def _serve(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._cut:
            return
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with contextlib.suppress(OSError):
                await self._connect(port, reader, writer)
        finally:
            self._connections.discard(task)

    async def _connect(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
        loses: Loses | None = None

        async def forth() -> None:
            nonlocal loses
            while data := await reader.read(1 << 20):
                await self._pass(self._requests)
                loses = self.asked(data) or loses
                to_server.write(data)
            await self._requests.wait()  # the end of a connection is news, too

        async def back() -> None:
            while data := await from_server.read(1 << 20):
                await self._pass(self._replies)
                if loses is not None and loses(data):
                    return
                writer.write(data)
            await self._replies.wait()

        with contextlib.closing(to_server):
            ways = [asyncio.create_task(forth()), asyncio.create_task(back())]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)


class CommitCutter(PartingProxy):
    """Before PostgreSQL: cuts connections after a commit, so that the change is applied and its reply lost.

    Args:
        url: of the server.

    Attributes:
        lost: number of commits, from now on, whose reply is lost.
    """

    def __init__(self, url: str) -> None:
        self._url = urllib.parse.urlsplit(url)
        assert self._url.port is not None
        super().__init__([self._url.port])
        self.lost = 0

    @property
    def url(self) -> str:
        account = self._url.netloc.rpartition("@")[0]
        return self._url._replace(netloc=f"{account}@{self.servers}").geturl()

    def asked(self, data: bytes) -> Loses | None:
        if not self.lost or b"COMMIT" not in data:
            return None
        self.lost -= 1
        return lambda _: True


class ReplyCutter(PartingProxy):
    """Before Redis: cuts connections in place of replies, so that a call is carried out and its reply lost.

    A client of EMQ has one call at a time under way on a connection, so the next reply belongs to the last call.

    Attributes:
        cuts: number of replies of each script that were not passed on.
    """

    def __init__(self, port: int) -> None:
        super().__init__([port])
        self._wanted: dict[bytes, tuple[str, int, bytes]] = {}
        self.cuts: Counter[str] = Counter()

    @property
    def url(self) -> str:
        return f"redis://{self.servers}/0"

    def lose(self, script: str, times: int, containing: bytes = b"") -> None:
        """Cut in place of the next `times` replies of a script that contain these bytes."""
        digest, _ = scripts.script(script)
        self._wanted[digest.encode()] = script, times, containing

    @property
    def finished(self) -> bool:
        """True if every planned cut has happened."""
        return all(times == 0 for _, times, _ in self._wanted.values())

    def asked(self, data: bytes) -> Loses | None:
        called = [digest for digest in self._wanted if digest in data]
        return lambda reply: bool(called) and self._is_to_lose(called.pop(), reply)

    def _is_to_lose(self, digest: bytes, reply: bytes) -> bool:
        script, times, containing = self._wanted[digest]
        if times == 0 or containing not in reply or reply.startswith(b"-"):
            return False
        self._wanted[digest] = script, times - 1, containing
        self.cuts[script] += 1
        return True
