"""The Redis store as a whole: its URL, its connection pool, and its wake-ups."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
import urllib.parse
from collections.abc import AsyncIterator, Sequence

import redis.asyncio
import redis.asyncio.retry
import redis.backoff
import redis.exceptions

from emq import errors
from emq.model import Environment
from storage_adapters.redis.keys import Shard
from storage_adapters.redis.lanes import RedisLanes
from storage_adapters.redis.log import RedisLogStore
from storage_adapters.redis.packing import pack_in_c
from storage_adapters.redis.server import Server
from storage_adapters.redis.sorted import RedisSorted

SWEEP_S = 2.0
"""How often a watcher asks for wake-ups whose message was lost; one call a shard, whatever the number of queues."""

WOKEN_KEPT_S = 600
"""How long the server remembers wake-ups of an instance that is gone."""

RECONNECT_S = 0.5


class RedisStore:
    """See `emq.storage.Store`."""

    shared = True

    def __init__(
        self, client: redis.asyncio.Redis, url: str, shards: Sequence[Shard], max_queue_qps: float | None
    ) -> None:
        self._client = client
        self._shards = shards
        self._instance = secrets.token_hex(8)
        self._closed = False
        self._server = Server(client, url)
        self.log = RedisLogStore(self._server, shards, self._instance, max_queue_qps)
        self.lanes = RedisLanes(self._server, shards, self._instance)
        self.sorted = RedisSorted(self._server, shards[0].environment, shards[0].channel(self._instance))

    async def watch(self) -> AsyncIterator[Sequence[str] | None]:
        channels = [shard.channel(self._instance) for shard in self._shards]
        while not self._closed:
            pubsub = self._client.pubsub(ignore_subscribe_messages=True)
            try:
                await pubsub.subscribe(*channels)
                yield None  # what was woken before the subscription stood was not heard
                swept = time.monotonic()
                while not self._closed:
                    message = await pubsub.get_message(timeout=SWEEP_S)
                    if message is not None:
                        yield message["data"].decode().split("\n")
                    if time.monotonic() - swept >= SWEEP_S:
                        if missed := await self._sweep():
                            yield missed
                        swept = time.monotonic()
            except (redis.exceptions.RedisError, OSError, errors.StoreUnavailable):
                await asyncio.sleep(RECONNECT_S)
            finally:
                with contextlib.suppress(redis.exceptions.RedisError, OSError):
                    await pubsub.aclose()  # type: ignore[no-untyped-call]

    async def _sweep(self) -> list[str]:
        """Wake-ups of this instance that no read or claim has answered yet; forgets those of instances long gone."""
        missed: list[str] = []
        now_s, command = int(time.time()), self._server.command
        for shard in self._shards:
            channel = shard.channel(self._instance)
            await command("ZADD", shard.watchers, now_s, channel)
            first, last = _range_of(channel.encode())
            found = await command("ZRANGEBYLEX", shard.woken, first, last)
            missed += [member.partition(b"\n")[2].decode() for member in found]
            for gone in await command("ZRANGEBYSCORE", shard.watchers, "-inf", now_s - WOKEN_KEPT_S):
                await command("ZREMRANGEBYLEX", shard.woken, *_range_of(gone))
                await command("ZREM", shard.watchers, gone)
        return missed

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._client.aclose()


def _range_of(channel: bytes) -> tuple[bytes, bytes]:
    """The range of a channel's members in the set of wake-ups."""
    return b"[" + channel + b"\n", b"(" + channel + b"\n\xff"


async def open_store(url: str, environment: Environment) -> RedisStore:
    """Connect to `redis://` or `rediss://[user:password@]host[:port][/db][?shards=N][&max_queue_qps=X]`.

    Args:
        url: `shards` (1 to 4,096, default 1) spreads the keys over as many hash tags and must stay the same for the
            life of the data; `max_queue_qps` bounds what a topic may ask of one queue.

    Raises:
        InvalidSettings: a parameter of the URL is wrong.
        StoreUnavailable: no server answers there, or it is older than Redis 7.
    """
    parts = urllib.parse.urlsplit(url)
    options = dict(urllib.parse.parse_qsl(parts.query))
    shown = f"{parts.scheme}://{parts.hostname}:{parts.port or 6379}"
    try:
        shards = int(options.pop("shards", "1"))
        max_queue_qps = float(options.pop("max_queue_qps")) if "max_queue_qps" in options else None
    except ValueError as exc:
        raise errors.InvalidSettings(f"store URL {shown}: shards and max_queue_qps must be numbers ({exc})") from exc
    if not 1 <= shards <= 4096:
        raise errors.InvalidSettings(f"store URL {shown}: shards={shards} must be from 1 to 4096")
    try:
        client = redis.asyncio.Redis.from_url(
            urllib.parse.urlunsplit(parts._replace(query=urllib.parse.urlencode(options))),
            protocol=2,
            retry=redis.asyncio.retry.Retry(redis.backoff.NoBackoff(), 0),
            socket_connect_timeout=5,
            socket_timeout=30,
            health_check_interval=0,
        )
    except ValueError as exc:
        raise errors.InvalidSettings(f"store URL {shown}: {exc}") from exc
    pack_in_c(client)
    store = RedisStore(client, shown, [Shard(environment.value, i) for i in range(shards)], max_queue_qps)
    try:
        await _check_version(store._server, shown)
    except errors.EMQError:
        await store.close()
        raise
    return store


async def _check_version(server: Server, shown: str) -> None:
    info = await server.command("INFO", "server")
    version = info.get("redis_version", "0") if isinstance(info, dict) else "0"
    if int(str(version).split(".")[0]) < 7:
        raise errors.StoreUnavailable(f"{shown} is Redis {version}; EMQ needs Redis 7.0 or later, or Valkey")
