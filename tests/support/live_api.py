"""The push service's API behind a real HTTP server, in a thread of the test's process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple, TypeVar

from emq import App
from emq.runtime import settings
from emq_push.service.service import PushService
from emq_web import serving
from emq_web.limits import Limits

T = TypeVar("T")


class Live(NamedTuple):
    """Attributes:
    host, port: where the API is.
    key: of an admin.
    """

    host: str
    port: int
    key: str

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def talk(self, *parts: bytes, pause_s: float = 0.0) -> bytes:
        """Send the parts; return what the API answers until it closes the connection."""
        with socket.create_connection((self.host, self.port), timeout=30) as connection:
            for part in parts:
                connection.sendall(part)
                time.sleep(pause_s)
            answer = b""
            while part := connection.recv(65_536):
                answer += part
            return answer


@contextlib.contextmanager
def live(prepare: Callable[[PushService], Awaitable[None]], limits: Limits) -> Iterator[Live]:
    """Serve the API for the length of a block.

    Args:
        prepare: called with the service before the block.
        limits: of the API.
    """
    ready, done = threading.Event(), threading.Event()
    found: list[Live] = []
    failures: list[BaseException] = []

    async def serve() -> None:
        made, address = settings.Settings(store="memory:"), settings.Address("127.0.0.1", 0)
        async with App(options=made) as app, serving.serving(app, address, limits) as where:
            service = await PushService.open(app)
            _, key = await service.keys.create("admin", "test")
            await prepare(service)
            found.append(Live(where.host, where.port, key))
            ready.set()
            while not done.is_set():
                await asyncio.sleep(0.02)

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as exc:
            failures.append(exc)
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="live api")
    thread.start()
    try:
        ready.wait(30)
        assert not failures, failures
        yield found[0]
    finally:
        done.set()
        thread.join(30)
    assert not failures, failures
