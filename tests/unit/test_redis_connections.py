"""Connections to the servers of Redis: lines that close, go elsewhere or break, and what a broken one is told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import pytest
import redis.asyncio
import redis.exceptions
from redis.exceptions import AskError, MovedError, ResponseError

from emq.storage.durability import Durability
from emq_stores.redis import opening
from emq_stores.redis.address import parsed
from emq_stores.redis.cluster import ClusterServer
from emq_stores.redis.failures import translated
from emq_stores.redis.node_pipeline import NodePipeline
from emq_stores.redis.sentinels import OneAtATime
from emq_stores.redis.topology import HASH_SLOTS, Topology


class SlowToClose:
    """A node's client that takes its time, and may be interrupted in it."""

    def __init__(self) -> None:
        self.closed = 0

    async def aclose(self) -> None:
        await asyncio.sleep(0.01)
        self.closed += 1


async def test_a_line_that_is_forgotten_while_the_store_closes_is_closed_too() -> None:
    clients: dict[str, Any] = {}
    topology = Topology([], lambda host, port: clients.setdefault(host, SlowToClose()), "redis+cluster://a")
    topology._served = ["master:1"] * HASH_SLOTS
    for address in ("master:1", "replica:1", "gone:1"):
        topology.at(address)
    refreshing = asyncio.create_task(topology._forget_others())
    await asyncio.sleep(0.015)  # the second one of the two is being closed
    refreshing.cancel()
    await asyncio.gather(refreshing, return_exceptions=True)
    await topology.close()
    assert all(client.closed for client in clients.values())


@pytest.mark.parametrize("broken", ["execute_command", "answers"])
async def test_a_pipeline_that_breaks_or_answers_too_little_keeps_no_caller_waiting(broken: str) -> None:
    client = mock.AsyncMock()
    client.pipeline = mock.Mock(return_value=(pipeline := mock.AsyncMock()))
    pipeline.execute_command = mock.Mock(side_effect=TypeError if broken == "execute_command" else None)
    pipeline.execute.return_value = [b"1"]
    line = NodePipeline("10.0.0.1:7000", client)
    async with asyncio.timeout(5):
        told = await asyncio.gather(*(line.send(["GET", name]) for name in "ab"), return_exceptions=True)
    assert all(isinstance(outcome, Exception) for outcome in told)
    await line.close()


@pytest.mark.parametrize("refusal", [MovedError, AskError])
@pytest.mark.parametrize(("named", "next_address"), [("", "10.0.0.1:7001"), ("10.0.0.2", "10.0.0.2:7001")])
async def test_a_node_that_names_a_port_alone_means_its_own_host(
    refusal: type[ResponseError], named: str, next_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []

    async def send(line: NodePipeline, *_: object, **__: object) -> bytes:
        sent.append(line.address)
        if len(sent) == 1:
            raise refusal(f"5 {named}:7001")
        return b"done"

    monkeypatch.setattr(NodePipeline, "send", send)
    monkeypatch.setattr(Topology, "suspect", lambda self: None)
    topology = Topology([], lambda host, port: redis.asyncio.Redis(host=host, port=port), "redis+cluster://10.0.0.1")
    topology._served = ["10.0.0.1:7000"] * HASH_SLOTS
    server = ClusterServer(topology, "redis+cluster://10.0.0.1")
    assert await server.run("bounds", ["key"], [], Durability.ACCEPTED) == b"done"
    assert sent == ["10.0.0.1:7000", next_address]
    await topology.close()


class AnsweringSentinel:
    """Says who the master is, unless it is down."""

    down = False

    async def sentinel_masters(self) -> dict[str, Any]:
        await asyncio.sleep(0)
        if self.down:
            raise redis.exceptions.ConnectionError
        state = {"ip": "10.0.0.1", "port": 7000, "is_master": True, "is_sdown": False, "is_odown": False}
        return {"main": {**state, "num-other-sentinels": 2}}


async def test_no_sentinel_is_forgotten_when_many_connections_look_for_the_master_at_once() -> None:
    answering = [AnsweringSentinel() for _ in range(3)]
    sentinels = OneAtATime([])
    sentinels.sentinels = list(answering)
    for first in answering:
        first.down = True
        found = await asyncio.gather(*(sentinels.discover_master("main") for _ in range(5)))
        assert found == [("10.0.0.1", 7000)] * 5
        assert set(sentinels.sentinels) == set(answering)
        first.down = False


HANDLER = (
    "unable to perform operation on <TCPTransport closed=True reading=False 0x55e56c860e90>; the handler is closed"
)
RESET = "Error while reading from 127.0.0.1:39109 : (104, 'Connection reset by peer')"


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (RuntimeError(HANDLER), "the handler is closed"),
        (redis.exceptions.ConnectionError(RESET), "Connection reset by peer"),
        (
            redis.exceptions.ConnectionError("Error UNKNOWN while writing to socket. Connection lost."),
            "Connection lost",
        ),
        (redis.exceptions.ConnectionError("Error 32 while writing to socket. Broken pipe."), "Broken pipe"),
        (redis.exceptions.ConnectionError("Connection closed by server."), "Connection closed by server"),
    ],
)
def test_the_reason_of_a_broken_connection_is_plain(failure: Exception, said: str) -> None:
    assert str(translated(failure, "redis://h/0")) == f"connection to redis://h/0 broke: {said}"


@contextlib.asynccontextmanager
async def sentinel(*, answers: bool) -> AsyncIterator[str]:
    """Serve a sentinel that knows the master `main`, or that accepts connections and never answers."""
    masters = {"name": "main", "ip": "127.0.0.1", "port": "7", "flags": "master", "num-other-sentinels": "1"}
    numbers = ("pending-commands", "link-pending-commands", "last-ping-sent", "last-ok-ping-reply", "last-ping-reply")
    more = ("down-after-milliseconds", "info-refresh", "role-reported-time", "config-epoch", "num-slaves", "quorum")
    last = ("failover-timeout", "parallel-syncs", "link-refcount")
    words = [word for pair in {**masters, **dict.fromkeys((*numbers, *more, *last), "1")}.items() for word in pair]
    told = f"*1\r\n*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            if answers:
                writer.write(told.encode() if b"MASTERS" in data.upper() else b"+OK\r\n" * data.count(b"*"))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield "{}:{}".format(*server.sockets[0].getsockname())


async def test_a_sentinel_that_hangs_does_not_hide_the_others() -> None:
    async with sentinel(answers=False) as hung, sentinel(answers=True) as well:
        sentinels = opening._sentinels(parsed(f"redis+sentinel://{hung},{well}/main"))
        try:
            async with asyncio.timeout(10):  # a bound far above what it takes, and far below the driver's own patience
                assert await sentinels.discover_master("main") == ("127.0.0.1", 7)
        finally:
            await sentinels.aclose()
