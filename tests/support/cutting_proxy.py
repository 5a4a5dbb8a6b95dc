"""A proxy before a Redis server that cuts connections in place of replies: a call is carried out, its reply is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Self

from emq_stores.redis import scripts


class CuttingProxy:
    """Passes bytes between clients and a server on 127.0.0.1; an asynchronous context manager.

    A client of EMQ has one call at a time under way on a connection, so the next reply belongs to the last call.

    Attributes:
        cuts: number of replies of each script that were not passed on.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._wanted: dict[bytes, tuple[str, int, bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.cuts: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"

    def cut(self, script: str, times: int, containing: bytes = b"") -> None:
        """Cut in place of the next `times` replies of a script that contain these bytes."""
        digest, _ = scripts.script(script)
        self._wanted[digest.encode()] = script, times, containing

    @property
    def finished(self) -> bool:
        """True if every planned cut has happened."""
        return all(times == 0 for _, times, _ in self._wanted.values())

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            await self._pass(reader, writer)
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            return
        called: list[bytes] = []

        async def forth() -> None:
            while chunk := await reader.read(1 << 20):
                called[:] = [digest for digest in self._wanted if digest in chunk]
                upstream.write(chunk)

        async def back() -> None:
            while chunk := await upstream_reader.read(1 << 20):
                if called and self._is_to_cut(called.pop(), chunk):
                    return
                writer.write(chunk)

        ways = [asyncio.create_task(forth()), asyncio.create_task(back())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            upstream.close()

    def _is_to_cut(self, digest: bytes, reply: bytes) -> bool:
        script, times, containing = self._wanted[digest]
        if times == 0 or containing not in reply or reply.startswith(b"-"):
            return False
        self._wanted[digest] = script, times - 1, containing
        self.cuts[script] += 1
        return True
