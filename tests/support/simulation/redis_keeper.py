"""A real Redis or Valkey server as the keeper of a simulation's data.

All of the adapter is real, and so are the Lua scripts, but for the driver's asynchronous client: in its place a
connection sends each command and blocks until the answer is there, so that no virtual time passes in between. One more
connection is subscribed to the channels of all hosts. After each script it is sent a PING: the server has published
all that the script publishes before it reads the PING, so whatever comes before the PONG is what the script said, and
whatever comes later is none of it. Each host hears its part at the moment of the call.

The server's clock does not follow virtual time, which runs many times faster. One script looks at it, the sweep: it
forgets hosts that have not swept for ten minutes. In a simulation, which takes seconds, none is forgotten. All other
scripts go by the times that hosts give them, which are virtual. What the adapter itself reads from the machine's clock
(when to sweep) is virtual, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import types
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar, cast
from unittest import mock

import redis
import redis.asyncio
import redis.backoff
import redis.exceptions
import redis.retry

import emq_servers as servers
from emq.runtime.clock import Clock
from emq.runtime.environment import Environment
from emq.storage.store import Store
from emq_stores.redis.opening import open_store
from support.simulation.keepers import Contents, Keep, at_once
from support.simulation.member import ENVIRONMENT

T = TypeVar("T")

SCRIPTS = ("EVALSHA", "EVAL")

Snapshot = Sequence[tuple[bytes, bytes]]


@contextlib.contextmanager
def keeping() -> Iterator[Keep]:
    """See `keepers.keeping`."""
    with (
        servers.start_redis() as server,
        contextlib.closing(_Wire(server.url)) as wire,
        mock.patch("emq_stores.redis.opening._client", return_value=_Client(wire)),
        mock.patch("emq_stores.redis.spreading._all", _one_after_the_other),
        mock.patch("emq_stores.redis.wakeups.time", _VIRTUAL),
        mock.patch("emq_stores.redis.damage.time", _VIRTUAL),
    ):
        yield Keep("redis", lambda clock: RedisKeeper(server.url, wire, clock))


class RedisKeeper:
    """See `Keeper`.

    Args:
        url: of the server, on which it is alone, and to which the wire goes.
    """

    def __init__(self, url: str, wire: _Wire, clock: Clock) -> None:
        self._url = url
        self._wire = wire
        self._clock = clock
        self.restore(None)
        self.store = self.open()

    def open(self) -> Store:
        store = at_once(open_store(self._url, Environment(ENVIRONMENT)))
        store.follow(self._clock)
        return store

    def head_of(self, queue: str) -> int:
        [bounds] = at_once(cast(Any, self.store.log.bounds([queue])))
        return int(bounds.head)

    def snapshot(self) -> object:
        return [(key, self._wire.call("DUMP", key)) for key in self._keys()]

    def restore(self, snapshot: object | None) -> None:
        """As when the server's process has started again: it knows no script and no connection."""
        self._wire.call("FLUSHALL")
        self._wire.call("SCRIPT FLUSH")
        for key, dump in cast(Snapshot, snapshot or ()):
            self._wire.call("RESTORE", key, 0, dump)
        self._wire.break_off()

    def contents(self) -> Contents:
        call = self._wire.call
        queues: dict[str, tuple[int, dict[int, bytes]]] = {}
        lanes: dict[str, bytes] = {}
        members: dict[str, list[bytes]] = {}
        for key in self._keys():
            name = key.decode()
            tag, _, rest = name.partition("}:")
            kind, _, of = rest.partition(":")
            if not name.startswith("{emq:"):
                if call("TYPE", key) == b"zset" and name.partition("{")[0] in (name, "prepare", "dead"):
                    topic, _, index = name.rpartition("{")[2].rstrip("}").rpartition("_")
                    members.setdefault(f"{topic}/{index}", []).extend(call("ZRANGE", key, 0, -1))
            elif kind == "head":
                for queue, head in call("HGETALL", key).items():
                    found = call("LRANGE", f"{tag}}}:log:{queue.decode()}", 0, -1)
                    queues[queue.decode()] = _queue(int(head.split()[0]), found)
            elif kind == "log":
                queues.setdefault(of, _queue(1, call("LRANGE", key, 0, -1)))
            elif kind == "body":
                lanes |= {id_.decode(): body for id_, body in sorted(call("HGETALL", key).items())}
        return Contents(queues, lanes, members)

    def close(self) -> None:
        self._wire.break_off()

    def _keys(self) -> list[bytes]:
        return sorted(self._wire.call("KEYS", "*"))


def _queue(head: int, bodies: Sequence[bytes]) -> tuple[int, dict[int, bytes]]:
    return head + len(bodies), dict(zip(itertools.count(head), bodies, strict=False))


_VIRTUAL = types.SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time())


async def _one_after_the_other(send: Callable[[T], Awaitable[None]], parts: Sequence[T]) -> None:
    """As `spreading._all`, which sends the parts of a call on several connections at once, in no certain order."""
    for part in parts:
        await send(part)


class _Wire:
    """Two connections that block: one for commands, one that hears the channels."""

    def __init__(self, url: str) -> None:
        never = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        client: Any = redis.Redis  # whose types are incomplete
        self._client = client.from_url(url, protocol=2, retry=never, single_connection_client=True)
        self._ear = self._client.connection_pool.make_connection()
        self._ear.connect()
        self._listeners: dict[bytes, list[_Subscription]] = defaultdict(list)

    def call(self, *words: Any) -> Any:
        """Send a command, and hand over what it published; what the driver raises, it raises."""
        try:
            return self._client.execute_command(*words)
        finally:
            if words[0] in SCRIPTS and self._listeners:
                self._hear()

    def _hear(self) -> None:
        self._ear.send_command("PING", "heard")
        while (said := self._ear.read_response())[0] != b"pong":
            _, channel, data = said
            for listener in self._listeners[channel]:
                listener.hear(data)

    def subscribe(self, channel: str, listener: _Subscription) -> None:
        if not self._listeners[channel.encode()]:
            self._ear.send_command("SUBSCRIBE", channel)
            self._ear.read_response()
        self._listeners[channel.encode()].append(listener)

    def unsubscribe(self, listener: _Subscription) -> None:
        for channel, listeners in list(self._listeners.items()):
            if listener in listeners:
                listeners.remove(listener)
                if not listeners:
                    self._ear.send_command("UNSUBSCRIBE", channel)
                    self._ear.read_response()
                    del self._listeners[channel]

    def break_off(self) -> None:
        """End every subscription, like a server that stops."""
        for listener in [one for listeners in self._listeners.values() for one in listeners]:
            self.unsubscribe(listener)
            listener.break_off()

    def close(self) -> None:
        self._ear.disconnect()
        self._client.close()


class _Client:
    """The driver's asynchronous client, as far as the adapter uses it; see the top of the file."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    async def execute_command(self, *words: Any) -> Any:
        return self._wire.call(*words)

    def pubsub(self, *, ignore_subscribe_messages: bool) -> _Subscription:
        assert ignore_subscribe_messages
        return _Subscription(self._wire)

    async def aclose(self) -> None:
        pass


class _Subscription:
    """The driver's `PubSub`, of one host."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire
        self._heard: deque[bytes] = deque()
        self._came = asyncio.Event()
        self._broken = False

    async def subscribe(self, *channels: str) -> None:
        for channel in channels:
            self._wire.subscribe(channel, self)

    def hear(self, data: bytes) -> None:
        self._heard.append(data)
        self._came.set()

    def break_off(self) -> None:
        self._broken = True
        self._came.set()

    async def get_message(self, timeout: float) -> dict[str, bytes] | None:
        try:
            async with asyncio.timeout(timeout):
                await self._came.wait()
        except TimeoutError:
            return None
        if self._broken:
            raise redis.exceptions.ConnectionError("the server has closed the connection")
        said = self._heard.popleft()
        if not self._heard:
            self._came.clear()
        return {"data": said}

    async def aclose(self) -> None:
        self._wire.unsubscribe(self)
