"""Name look-ups: silent name servers stall their own endpoints, and a dead one of ours is no fault of theirs."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import threading
from collections.abc import AsyncIterator
from typing import cast

import pytest
import yarl
from aiohttp.abc import AbstractResolver, ResolveResult

from emq.runtime import errors
from emq.storage.message import Message
from emq_push import resolver
from emq_push.addresses import AddressFilter
from emq_push.endpoint import Endpoint
from emq_push.pusher import Pusher
from emq_push.resolver import NAMES, NoNameServer, WatchedResolver, build_resolver
from support.http_receiver import HttpReceiver

SOON_S = 3.0


class NameServer(asyncio.DatagramProtocol):
    """Answers 127.0.0.1 for names that begin with "well", nothing for "silent", and for all others that there is none.

    Attributes:
        asked: the names.
        is_silent: True to answer nothing at all.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_silent = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        labels, at = [], 12
        while size := data[at]:
            labels.append(data[at + 1 : at + 1 + size].decode())
            at += 1 + size
        name, kind, question = ".".join(labels), data[at + 1 : at + 3], data[12 : at + 5]
        self.asked.append(name)
        if self.is_silent or name.startswith("silent"):
            return
        if not name.startswith("well"):
            self.transport.sendto(data[:2] + b"\x81\x83\0\1\0\0\0\0\0\0" + question, address)
        elif kind == b"\0\1":
            record = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + socket.inet_aton("127.0.0.1")
            self.transport.sendto(data[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + question + record, address)
        else:
            self.transport.sendto(data[:2] + b"\x81\x80\0\1\0\0\0\0\0\0" + question, address)


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NameServer]:
    loop = asyncio.get_running_loop()
    transport, found = await loop.create_datagram_endpoint(NameServer, ("127.0.0.1", 0))
    place = "127.0.0.1:{}".format(transport.get_extra_info("sockname")[1])
    monkeypatch.setattr("emq_push.http.build_resolver", lambda: build_resolver([place]))
    yield found
    transport.close()


async def test_silent_name_servers_stall_nobody_else_and_hold_no_thread(server: NameServer) -> None:
    receiver = HttpReceiver(lambda request: 204)
    async with receiver.running():

        def endpoint(topic: str) -> Endpoint:
            return Endpoint(topic, yarl.URL(f"http://{topic}.example:{receiver.port}/"))

        async with Pusher(endpoint, addresses=AddressFilter(("*",))) as push:
            await push(Message("id", b"x", topic="well"))
            threads = threading.active_count()
            waiting = [asyncio.create_task(push(Message("id", b"x", topic=f"silent-{i}"))) for i in range(500)]
            await asyncio.sleep(0.3)
            async with asyncio.timeout(SOON_S):
                for i in range(5):
                    await push(Message("id", b"x", topic=f"well-{i}"))
            assert threading.active_count() <= threads + 1
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
    assert len({name for name in server.asked if name.startswith("silent")}) > 100


async def test_a_name_that_does_not_exist_counts_against_its_endpoint(server: NameServer) -> None:
    async with Pusher(lambda topic: Endpoint(topic, yarl.URL("http://nobody.example/"))) as push:
        with pytest.raises(errors.Retry, match=r"host nobody\.example not found"):
            await push(Message("id", b"x", topic="t"))


class Scripted(AbstractResolver):
    """Fails for names as `fails` says: with an error number, or None for an answer."""

    def __init__(self) -> None:
        self.fails: dict[str, int | None] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        if (number := self.fails[host]) is not None:
            raise OSError(number, "no")
        return []

    async def close(self) -> None:
        pass


@dataclasses.dataclass
class Monotonic:
    now: float = 100.0

    def monotonic(self) -> float:
        return self.now


async def failure(watched: WatchedResolver, name: str) -> OSError:
    with pytest.raises(OSError, match=r"no|does not answer") as caught:
        await watched.resolve(name)
    return caught.value


async def test_a_name_server_of_ours_is_away_if_it_answers_for_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    inner, time = Scripted(), Monotonic()
    monkeypatch.setattr(resolver, "time", time)
    watched = WatchedResolver(inner)
    names = [f"n{i}" for i in range(NAMES)]
    inner.fails = dict.fromkeys(names, socket.EAI_AGAIN) | {"well": None, "none": socket.EAI_NONAME}
    for _ in range(2):
        for name in names:
            assert not isinstance(await failure(watched, name), NoNameServer), "it has not lasted"
    time.now += 10
    assert isinstance(await failure(watched, names[0]), NoNameServer)
    for answer in ("well", "none"):
        if answer == "well":
            await watched.resolve(answer)
        else:
            await failure(watched, answer)
        assert not isinstance(await failure(watched, names[0]), NoNameServer), "it answers"
        time.now += 10
        assert not isinstance(await failure(watched, names[0]), NoNameServer), "one name may be dead for itself"
        for name in names:
            await failure(watched, name)
        assert isinstance(await failure(watched, names[1]), NoNameServer)


async def test_a_dead_name_server_of_ours_is_charged_to_nobody(
    server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.is_silent = True
    monkeypatch.setattr(resolver, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(resolver, "AWAY_S", 0.0)
    async with Pusher(lambda topic: Endpoint(topic, yarl.URL(f"http://{topic}.example/"))) as push:
        failures = []
        for i in range(NAMES + 1):
            with pytest.raises((errors.Retry, errors.GiveBack)) as caught:
                await push(Message("id", b"x", topic=f"well-{i}"))
            failures.append(caught.value)
        assert isinstance(failures[0], errors.Retry)
        assert isinstance(failures[-1], errors.GiveBack)
        assert failures[-1].reason == "this host: the name server of this host does not answer"
