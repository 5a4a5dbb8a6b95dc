"""Endpoints that hang, and name servers that are silent, stop the deliveries of their own tenants only."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import yarl

from emq.storage.message import Message
from emq_push.addresses import AddressFilter
from emq_push.endpoint import Endpoint
from emq_push.pusher import Pusher
from emq_push.resolver import LOOKUPS, FairResolver
from support.http_receiver import HttpReceiver, Request

SOON_S = 5.0
ANY = AddressFilter(("*",))


@pytest.fixture
async def port(receiver: HttpReceiver) -> int:
    """Of a server that answers 204, but never on the path /hang."""

    async def answer(request: Request) -> int:
        if request.path == "/hang":
            await asyncio.Event().wait()
        return 204

    receiver.answers = answer
    return receiver.port


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names whose name servers are asked and say nothing."""
    asked: list[str] = []
    gate, real = threading.Event(), socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        if str(host).startswith("silent"):
            asked.append(str(host))
            gate.wait(60)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return real("127.0.0.1" if str(host).startswith("well") else host, port, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr("emq_push.http.build_resolver", FairResolver)
    yield asked
    gate.set()


def message(topic: str) -> Message:
    return Message("id", b"x", topic=topic)


async def end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_endpoints_that_hang_leave_connections_to_the_others(port: int) -> None:
    def endpoint(topic: str) -> Endpoint:
        return Endpoint(topic, yarl.URL(f"http://127.0.0.1:{port}/{topic.partition('-')[0]}"))

    async with Pusher(endpoint, connections=40, addresses=ANY) as push:
        for i in range(10):
            await push(message(f"well-{i}"))
        hanging = [asyncio.create_task(push(message(f"hang-{i % 10}"))) for i in range(400)]
        await asyncio.sleep(0.2)
        async with asyncio.timeout(SOON_S):
            for i in range(10):
                await push(message(f"well-{i}"))
        assert push._places.used < 40
        await end(hanging)
        assert push._places.used == 0


async def test_silent_name_servers_stall_only_the_endpoints_that_need_them(port: int, silent: list[str]) -> None:
    def endpoint(topic: str) -> Endpoint:
        return Endpoint(topic, yarl.URL(f"http://{topic}.example:{port}/"))

    async with Pusher(endpoint, addresses=ANY) as push:
        waiting = [asyncio.create_task(push(message(f"silent-{i}"))) for i in range(2 * LOOKUPS)]
        await asyncio.sleep(0.2)
        async with asyncio.timeout(2 * SOON_S):
            for i in range(5):
                await push(message(f"well-{i}"))
        assert len(silent) >= LOOKUPS // 2
        await end(waiting)
