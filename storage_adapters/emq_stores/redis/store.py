"""The Redis store as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import NamedTuple

from emq.runtime.clock import Clock
from emq.storage.answers import Failure
from emq.storage.names import group_of
from emq.storage.store import Ended, Holding
from emq_stores.redis.damage import Scripts
from emq_stores.redis.forgetting import forgotten
from emq_stores.redis.held_names import held
from emq_stores.redis.keys import EVERYBODY, Shard
from emq_stores.redis.lane_store import RedisLanes
from emq_stores.redis.log_store import QUEUE_CHUNK, RedisLogStore
from emq_stores.redis.slot_store import RedisSorted
from emq_stores.redis.spreading import each_shard
from emq_stores.redis.wakeups import WakeUps


class Location(NamedTuple):
    """The place of an environment's data.

    Attributes:
        server: runs the scripts.
        shards: the storage shards, which hold the queues and lanes.
        instance: the name of this instance among those on the same data.
        place: a function that returns the place of a sorted slot's store key, see `RedisSorted`.
    """

    server: Scripts
    shards: Sequence[Shard]
    instance: str
    place: Callable[[str], int] = lambda _: 0


class RedisStore:
    """See `emq.storage.store.Store`.

    Args:
        disconnect: closes the connections.
        max_queue_qps: most operations a second that a topic may ask of one queue, or None.
    """

    shared = True

    def __init__(
        self,
        location: Location,
        wakeups: WakeUps,
        disconnect: Callable[[], Awaitable[None]],
        *,
        max_queue_qps: float | None = None,
    ) -> None:
        server, shards, instance, place = location
        self._server, self._shards, self._environment = server, shards, shards[0].environment
        self._instance, self._wakeups = instance, wakeups
        self._everybody = shards[0].channel(EVERYBODY)
        self._disconnect = disconnect
        self._closed = False
        self.log = RedisLogStore(server, shards, instance, max_queue_qps)
        self.lanes = RedisLanes(server, shards, instance)
        self.sorted = RedisSorted(server, shards[0].environment, shards[0].channel(instance), place)

    def follow(self, clock: Clock) -> None:
        """See `emq.storage.store.Store`."""
        self.lanes.clock = self.sorted.clock = clock

    def watch(self) -> AsyncIterator[Sequence[str] | None]:
        return self._wakeups.watch()

    async def tell(self, topics: Collection[str]) -> None:
        """See `emq.storage.store.Store`."""
        await self._server.command("PUBLISH", self._everybody, "\n".join(topics))

    async def unarmed(self, names: Sequence[str], now_ms: int) -> Sequence[str]:
        """See `emq.storage.store.Store`. Names of a shard that does not answer count as unarmed."""

        async def one(shard: Shard, chunk: Sequence[str]) -> list[bool]:
            keys = [shard.armed, shard.lane_armed]
            found = await self._server.run("unarmed", keys, [shard.channel(self._instance), now_ms, *chunk])
            some = {name.decode() for name in found}
            return [name in some for name in chunk]

        answers = await each_shard(self._shards, names, _group, one, QUEUE_CHUNK)
        return [name for name, is_unarmed in zip(names, answers, strict=True) if is_unarmed]

    async def holding(self) -> Holding:
        """See `emq.storage.store.Store`."""
        return await held(self._server, self._environment)

    async def forget(self, ended: Sequence[Ended]) -> Sequence[Sequence[int] | Failure | None]:
        """See `emq.storage.store.Store`."""
        return await forgotten(self._server, self._shards, self.sorted, ended)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._wakeups.close()
            await self._disconnect()


def _group(name: str) -> str:
    """Return the group of a queue or a lane."""
    return name if name.count("/") == 1 else group_of(name)
