"""A proxy between a host and its ensemble that can keep the two apart."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Self


class PartingProxy:
    """Passes bytes between clients and servers on 127.0.0.1; an asynchronous context manager.

    States: *open*; *silent* (`silence`: connections stay, nothing passes); *cut* (`cut`: existing and new connections
    break). `heal` leads back to open; then bytes that silence held up pass.

    Args:
        ports: ports of the servers; the proxy has a port for each.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = ports
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._cut = False
        self._passing = asyncio.Event()
        self._passing.set()

    async def __aenter__(self) -> Self:
        for port in self._ports:
            self._servers.append(await asyncio.start_server(self._accept(port), "127.0.0.1", 0))
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for server in self._servers:
            server.close()
        await self._break()

    @property
    def servers(self) -> str:
        """Return the proxy's addresses, as in a URL."""
        return ",".join(f"127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in self._servers)

    async def silence(self) -> None:
        self._passing.clear()

    async def cut(self) -> None:
        self._cut = True
        await self._break()

    async def heal(self) -> None:
        self._cut = False
        self._passing.set()

    async def _break(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, port: int):  # type: ignore[no-untyped-def]
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if self._cut:
                writer.close()
                return
            task = asyncio.create_task(self._connect(port, reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return accept

    async def _connect(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream: asyncio.StreamWriter | None = None
        try:
            upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", port)
            ways = [self._pass(reader, upstream), self._pass(upstream_reader, writer)]
            tasks = [asyncio.create_task(way) for way in ways]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        except OSError:
            pass
        finally:
            writer.close()
            if upstream is not None:
                upstream.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(1 << 16):
            await self._passing.wait()
            writer.write(chunk)
        await self._passing.wait()  # the end of a connection is news, too
