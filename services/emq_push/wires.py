"""The open connections of a pusher, each with a request under way or ready for the next one."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import Awaitable, Callable, Mapping

import aiohttp
import yarl

from emq_push import files
from emq_push.habits import Habits
from emq_push.turns import Place, Turns
from emq_push.wire import READ_BYTES, Answer, Wire

CONNECT_TIMEOUT_S = 5.0
"""Most seconds for name look-up, connection and TLS; an endpoint's longer time-out applies after that."""
KEEPALIVE_S = 4.0
"""Seconds after which idle connections are dropped. Below the 5 s at which common servers drop theirs: a POST sent into
a connection that is just being closed fails, and must not be repeated unseen."""
USER_AGENT = "emq-push"

Connect = Callable[[yarl.URL, ssl.SSLContext | None], Awaitable[aiohttp.connector.Connection]]
"""Makes a connection to the host of a URL, with these settings of TLS."""


class Wires:
    """Sends POST requests. Connections are not limited here: a `Pusher` shares them among topics.

    Args:
        connect: makes a connection.
        most_idle: most idle connections; None for a part of the files that the process may have open.
        to_proxy: True if what it connects to is a forward proxy, or a tunnel through one.
    """

    def __init__(self, connect: Connect, most_idle: int | None = None, *, to_proxy: bool = False) -> None:
        self._connect = connect
        self._to_proxy = to_proxy
        self._most_idle = files.most_idle() if most_idle is None else most_idle
        self._busy: set[Wire] = set()
        self._idle: dict[Place, list[Wire]] = {}  # the place that was without one for longest comes first
        self._idle_count = 0
        self._sweep: asyncio.TimerHandle | None = None
        self._turns = Turns()
        self._habits = Habits()
        self._read = memoryview(bytearray(READ_BYTES))  # for all wires, since each is through with what it reads

    async def post(
        self,
        url: yarl.URL,
        body: bytes,
        headers: Mapping[str, str],
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> Answer:
        """Send a request; return the answer, with the beginning of its body.

        Args:
            headers: besides `Host`, `User-Agent` and `Content-Length`.
            timeout_s: seconds from now to the end of the answer's head.
            tls: the endpoint's own settings of TLS; None for the usual ones.

        Raises:
            aiohttp.ClientError, OSError, ValueError: there is no answer; `emq_push.verdict` has words for it.
        """
        head = head_of(url, headers, len(body), to_proxy=self._to_proxy and url.scheme == "http")
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        place = url.raw_host, url.port, url.scheme, tls
        wire = self._ready(place, until - timeout_s)
        if wire is None:
            wire = await self._opened(place, url, timeout_s, tls)
        self._busy.add(wire)
        try:
            answer = await wire.send(head, body, until)
        except BaseException as exc:
            if isinstance(exc, ConnectionError | aiohttp.ServerDisconnectedError) and wire.was_silent():
                self._habits.closed(place, until - timeout_s - wire.idle_since, loop.time())
            wire.close()
            raise
        finally:
            self._busy.discard(wire)
        if wire.is_open:
            self._pass_on(place, wire)
        return answer

    def close(self) -> None:
        """Close all connections; requests under way fail. Safe to repeat."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for wire in [*self._busy, *itertools.chain(*self._idle.values())]:
            wire.close()
        self._idle.clear()
        self._idle_count = 0

    def _pass_on(self, place: Place, wire: Wire) -> None:
        """Give a connection to a request that waits for one, or keep it."""
        if self._habits.kept_s(place, wire.idle_since) < 0:
            wire.close()
        elif not self._turns.hand_over(place, wire):
            self._keep(place, wire)

    def _keep(self, place: Place, wire: Wire) -> None:
        """Keep a connection for the next request to its place; close another one if there are too many."""
        self._idle.setdefault(place, []).append(wire)
        self._idle_count += 1
        if self._idle_count > self._most_idle:
            oldest = next(iter(self._idle))
            self._take(oldest, 0).close()
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(KEEPALIVE_S, self._drop_old)

    def _take(self, place: Place, index: int) -> Wire:
        """Take an idle connection out."""
        idle = self._idle[place]
        wire = idle.pop(index)
        self._idle_count -= 1
        if not idle:
            del self._idle[place]
        return wire

    def _ready(self, place: Place, now: float) -> Wire | None:
        """Take the connection that was used last, if one is ready."""
        if place not in self._idle:
            return None
        kept_s = min(KEEPALIVE_S, self._habits.kept_s(place, now))
        while place in self._idle:
            wire = self._take(place, -1)
            if wire.is_open:
                if now <= wire.idle_since + min(kept_s, wire.kept_s) and wire.is_quiet():
                    return wire
                wire.close()
        return None

    async def _opened(self, place: Place, url: yarl.URL, timeout_s: float, tls: ssl.SSLContext | None) -> Wire:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(min(timeout_s, CONNECT_TIMEOUT_S)) as scope:
                free = await self._turns.take(place)
                if free is not None and free.is_open:
                    if free.is_quiet():
                        return free
                    free.close()
                return Wire(await self._connect(url, tls), loop, self._read)
        except TimeoutError as exc:
            if scope.expired() and (timeout_s > CONNECT_TIMEOUT_S or self._to_proxy):
                raise aiohttp.ConnectionTimeoutError from exc
            raise

    def _drop_old(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = loop.time() - KEEPALIVE_S
        for place, idle in list(self._idle.items()):
            for wire in idle:
                if wire.idle_since < oldest:
                    wire.close()
            idle[:] = [wire for wire in idle if wire.is_open]
            if not idle:
                del self._idle[place]
        self._idle_count = sum(map(len, self._idle.values()))
        self._sweep = loop.call_later(KEEPALIVE_S, self._drop_old) if self._idle else None


def head_of(url: yarl.URL, headers: Mapping[str, str], size: int, *, to_proxy: bool = False) -> bytes:
    """Return the head of a POST request.

    Args:
        headers: besides `Host`, `User-Agent` and `Content-Length`.
        size: bytes of the body.
        to_proxy: True if a proxy gets the request itself, and must know the whole URL.

    Raises:
        ValueError: a part has line breaks, or letters outside of ASCII.
    """
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    host = url.host_port_subcomponent
    target = f"{url.scheme}://{host}{url.raw_path_qs}" if to_proxy else url.raw_path_qs
    head = (
        f"POST {target} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {USER_AGENT}\r\n"
        f"Content-Length: {size}\r\n{''.join(lines)}\r\n"
    )
    if not len(lines) + 5 == head.count("\n") == head.count("\r"):
        raise ValueError("a header has a line break")
    return head.encode("ascii")
