"""Connections that break under the drivers, on asyncio's event loop and on uvloop: each error is one of EMQ's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

import emq_servers as servers
from emq.runtime import errors
from emq_push.wire import Wire
from emq_stores.redis.address import parsed
from emq_stores.redis.keys import Shard
from emq_stores.redis.opening import _client
from emq_stores.redis.server import Server
from emq_stores.redis.wakeups import ServerWakeUps
from support.loops import on_both_loops


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[Server]:
    address = parsed(url)
    server = Server(_client(address, *address.hosts[0]), url)
    try:
        yield server
    finally:
        await server.client.aclose()


def cut(server: Server) -> None:
    """End the connections below the driver, which does not hear of it before it writes."""
    for connection in server.client.connection_pool._available_connections:  # type: ignore[attr-defined]
        connection._writer.transport.abort()


@on_both_loops
async def test_a_write_to_a_connection_that_is_closed_is_of_unknown_outcome(redis_server: servers.RedisServer) -> None:
    async with connected(redis_server.url) as server:
        await server.command("PING")
        cut(server)
        with pytest.raises(errors.OutcomeUnknown, match=r"^connection to redis://127.0.0.1:\d+.* broke: .*"):
            await server.command("PING")
        assert await server.command("PING")


@on_both_loops
async def test_wake_ups_go_on_after_a_connection_that_is_closed(
    redis_server: servers.RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")]
    async with connected(redis_server.url) as server:
        real = server.client.pubsub

        def pubsub(**options: Any) -> Any:
            made = real(**options)
            if failures:
                monkeypatch.setattr(made, "subscribe", lambda *_: _raising(failures.pop()))
            return made

        monkeypatch.setattr(server.client, "pubsub", pubsub)
        watch = ServerWakeUps(server.client, server, [Shard("online", 0)], "me").watch()
        async with asyncio.timeout(10):
            assert await anext(watch) is None, "it has subscribed, after the error"
        await watch.aclose()  # type: ignore[attr-defined]


async def _raising(error: Exception) -> None:
    raise error


async def test_a_request_on_a_connection_that_is_closed_fails_as_on_any_broken_one() -> None:
    class Closed:
        def write(self, data: bytes) -> None:
            raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")

    wire = Wire.__new__(Wire)
    wire._loop, wire._transport = asyncio.get_running_loop(), Closed()  # type: ignore[assignment]
    with pytest.raises(ConnectionResetError, match="the handler is closed"):
        await wire.send(b"POST / HTTP/1.1\r\n\r\n", b"", 0.0)
