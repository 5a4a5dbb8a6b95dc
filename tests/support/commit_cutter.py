"""A proxy before PostgreSQL that cuts connections after a commit: the change is applied, its reply is lost."""

from __future__ import annotations

import asyncio
import urllib.parse
from typing import Self


class CommitCutter:
    """Passes bytes between clients and the server of a URL; an asynchronous context manager.

    Attributes:
        cut: number of commits, from now on, whose reply is lost.
    """

    def __init__(self, url: str) -> None:
        self._url = urllib.parse.urlsplit(url)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.cut = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        assert self._server is not None
        account = self._url.netloc.rpartition("@")[0]
        port = self._server.sockets[0].getsockname()[1]
        return self._url._replace(netloc=f"{account}@127.0.0.1:{port}").geturl()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        to_reader, to_writer = await asyncio.open_connection(self._url.hostname, self._url.port)
        try:
            await self._pass_on(reader, writer, to_reader, to_writer)
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()
            to_writer.close()
            self._tasks.discard(task)

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        to_reader: asyncio.StreamReader,
        to_writer: asyncio.StreamWriter,
    ) -> None:
        """Pass bytes on until one side ends, or the reply of a commit arrives that is to be lost."""
        doomed = False

        async def up() -> None:
            nonlocal doomed
            while data := await reader.read(1 << 16):
                if self.cut and b"COMMIT" in data:
                    self.cut -= 1
                    doomed = True
                to_writer.write(data)
                await to_writer.drain()

        async def down() -> None:
            while data := await to_reader.read(1 << 16):
                if doomed:
                    return
                writer.write(data)
                await writer.drain()

        ways = [asyncio.create_task(up()), asyncio.create_task(down())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
