"""A TCP server for the length of a block, which leaves no connection to a later test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def served(serve: Serve) -> AsyncIterator[int]:
    """Serve each connection on loopback with `serve`; yield the port.

    At the end of the block, calls of `serve` that still run are cancelled, and their connections closed. A connection
    that outlives the event loop would be a warning, and so a failure, in whichever test runs then.
    """
    serving: set[asyncio.Task[None]] = set()

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await serve(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()
            serving.discard(task)

    async with await asyncio.start_server(serve_one, "127.0.0.1", 0) as server:
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            await asyncio.sleep(0)  # a connection that was just accepted gets its task
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
