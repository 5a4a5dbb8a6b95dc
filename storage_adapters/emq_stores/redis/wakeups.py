"""Wake-ups from one server, or from the master that the sentinels name."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import redis.asyncio

from emq.runtime import errors
from emq_stores.redis.damage import Scripts
from emq_stores.redis.failures import TRANSPORT
from emq_stores.redis.keys import EVERYBODY, Shard

SWEEP_S = 2.0
"""Seconds between two sweeps for lost wake-ups; a sweep is one call for each shard, for any number of queues."""

WOKEN_KEPT_S = 600
"""Seconds for which the server keeps the wake-ups of an instance that no longer sweeps."""

RECONNECT_S = 0.5

SUBSCRIBE_S = 5.0
"""Most seconds for a subscription; a server may accept a connection and never answer."""


class WakeUps(Protocol):
    """The source of a store's wake-ups."""

    def watch(self) -> AsyncIterator[Sequence[str] | None]:
        """See `emq.storage.store.Store.watch`."""

    async def close(self) -> None:
        """End the watcher, in a few seconds at the latest. Call this before you close the connections."""


async def sweep(server: Scripts, shard: Shard, channel: str) -> list[str]:
    """Return this instance's wake-ups in one shard after which no read or claim came; errors as for `Scripts.run`."""
    keys = [shard.watchers, shard.woken]
    return [name.decode() for name in await server.run("sweep", keys, [channel, WOKEN_KEPT_S])]


class ServerWakeUps:
    """Hears of all shards on one connection."""

    def __init__(self, client: redis.asyncio.Redis, server: Scripts, shards: Sequence[Shard], instance: str) -> None:
        self._client = client
        self._server = server
        self._channels = {shard.channel(instance): shard for shard in shards}
        self._everybody = shards[0].channel(EVERYBODY)
        self._closed = False

    async def close(self) -> None:
        self._closed = True

    async def watch(self) -> AsyncIterator[Sequence[str] | None]:
        while not self._closed:
            pubsub = self._client.pubsub(ignore_subscribe_messages=True)
            try:
                async with asyncio.timeout(SUBSCRIBE_S):
                    await pubsub.subscribe(*self._channels, self._everybody)
                yield None  # a wake-up before the subscription was not heard
                swept = time.monotonic()
                while not self._closed:
                    async with asyncio.timeout(SWEEP_S + SUBSCRIBE_S):  # the driver may have to connect again
                        message = await pubsub.get_message(timeout=SWEEP_S)
                    if message is not None:
                        yield message["data"].decode().split("\n")
                    if time.monotonic() - swept >= SWEEP_S:
                        if missed := await self._sweep():
                            yield missed
                        swept = time.monotonic()
            except (*TRANSPORT, errors.StoreUnavailable):
                await asyncio.sleep(RECONNECT_S)
            finally:
                with contextlib.suppress(*TRANSPORT):
                    await pubsub.aclose()  # type: ignore[no-untyped-call]

    async def _sweep(self) -> list[str]:
        missed: list[str] = []
        for channel, shard in self._channels.items():
            with contextlib.suppress(errors.KeyDamaged):  # a read of the shard's queues reports the damage
                missed += await sweep(self._server, shard, channel)
        return missed
