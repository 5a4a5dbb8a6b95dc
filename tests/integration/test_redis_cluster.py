"""Whole hosts on a real Redis cluster, and behind sentinels: hash slots that move, masters that die."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

import emq
from emq.runtime import errors
from emq.runtime.environment import Environment
from emq.storage.log_store import Put, Read
from emq.storage.opening import open_store
from emq_stores.redis.cluster import hash_slot
from emq_stores.redis.keys import SlotKeys, cluster_shards
from emq_stores.redis.opening import CLUSTER_SHARDS
from support.redis_servers.cluster import RedisCluster, start_redis_cluster
from support.redis_servers.sentinel import start_redis_sentinels
from support.waiting import until

QPS = 300.0

PATIENCE_S = 40.0


class Load:
    """One app that publishes to a log and a sorted topic, one message at a time each, and consumes them.

    Attributes:
        known, unknown, refused: payloads by what became of their publishes.
        handled: how often each payload was.
        starts: by topic and aligned second.
    """

    def __init__(self, url: str, directory: Path, durability: str = "accepted") -> None:
        self.app = emq.App(url, database=f"sqlite:///{directory}/catalog.db")
        self.durability = durability
        self.known: set[str] = set()
        self.unknown: set[str] = set()
        self.refused: set[str] = set()
        self.handled: Counter[str] = Counter()
        self.starts: Counter[tuple[str, int]] = Counter()
        self.broken: Exception | None = None
        self._stop = asyncio.Event()
        self.app.handler("*")(self._handle)

    async def _handle(self, m: emq.Message) -> None:
        self.starts[m.topic, m.started_us // 1_000_000] += 1
        self.handled[m.payload.decode()] += 1

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Publish and consume for the length of the block; then publish no more, and drain."""
        async with self.app:
            await self.app.create_topic("log", QPS, durability=self.durability)
            await self.app.create_topic(
                "sorted", QPS, kind="range_merge", slots=8, time_range_ms=20, durability=self.durability
            )
            host = asyncio.create_task(self.app.run())
            publishers = [asyncio.create_task(self._publish(topic, n)) for topic in ("log", "sorted") for n in range(3)]
            try:
                yield
                self._stop.set()
                await asyncio.gather(*publishers)
                await self.until(lambda: self.known <= set(self.handled))
            finally:
                for task in publishers:
                    task.cancel()
                self.app.stop()
                await host

    async def more(self, count: int) -> None:
        """Wait until that many more of each topic were handled."""
        before = Counter(name.partition("-")[0] for name in self.handled)
        wanted = {topic: before[topic] + count for topic in ("log", "sorted")}

        def enough() -> bool:
            now = Counter(name.partition("-")[0] for name in self.handled)
            return all(now[topic] >= n for topic, n in wanted.items())

        await self.until(enough)

    async def until(self, holds: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not holds():
                    if self.broken is not None:
                        raise self.broken
                    await asyncio.sleep(0.01)
        except TimeoutError:
            missing = sorted(self.known - set(self.handled))
            raise AssertionError(
                f"not within {timeout_s:g} s; {len(missing)} known not handled: {missing[:5]}"
            ) from None

    async def _publish(self, topic: str, publisher: int) -> None:
        number = 0
        while not self._stop.is_set():
            name = f"{topic}-{publisher}-{number}"
            number += 1
            try:
                await self.app.publish(topic, name)
                self.known.add(name)
            except errors.OutcomeUnknown:
                self.unknown.add(name)
            except errors.StoreUnavailable:
                self.refused.add(name)
            except Exception as exc:
                self.broken = exc
                raise
            await asyncio.sleep(0.01)


def move_on(cluster: RedisCluster, slots: set[int]) -> None:
    """Move each hash slot to the next node."""
    for slot in sorted(slots):
        source = cluster.master_of(slot)
        target = cluster.nodes[(cluster.nodes.index(source) + 1) % len(cluster.nodes)]
        cluster.move_slot(slot, source, target)


async def test_hash_slots_move_back_and_forth_under_load_and_nothing_is_lost_or_repeated(
    redis_cluster: RedisCluster, tmp_path: Path
) -> None:
    with start_redis_cluster(replicas=0) as cluster:
        load = Load(cluster.url, tmp_path)
        used = {hash_slot(shard.head) for shard in cluster_shards("online", CLUSTER_SHARDS)}
        used |= {hash_slot(SlotKeys("online", f"sorted/{index}").store) for index in range(8)}
        async with load.running():
            await load.more(30)
            for _ in range(2):
                await asyncio.to_thread(move_on, cluster, used)
            await load.more(30)
        refused = sum(
            int(node.ask("INFO", "errorstats").count(kind))
            for node in cluster.nodes
            for kind in ("errorstat_MOVED", "errorstat_TRYAGAIN")
        )
    assert refused, "no call met a hash slot on its way; the test tried nothing"
    assert not load.unknown
    assert not load.refused
    assert set(load.handled) == load.known
    assert max(load.handled.values()) == 1
    assert max(load.starts.values()) <= QPS


async def test_a_replica_takes_over_and_nothing_that_was_published_replicated_is_lost(
    redis_cluster: RedisCluster, tmp_path: Path
) -> None:
    with start_redis_cluster() as cluster:
        load = Load(cluster.url, tmp_path, "replicated")
        async with load.running():
            await load.more(40)
            lost = cluster.masters()[0]
            await asyncio.to_thread(lost.kill)
            await asyncio.to_thread(cluster.await_taken_over, lost)
            await asyncio.to_thread(lost.restart)  # without a replica nothing is replicated
            await asyncio.to_thread(cluster.await_replicas)
            await load.more(40)
    assert load.unknown | load.refused, "no publish met the dead master; the test tried nothing"
    assert load.known <= set(load.handled)
    assert set(load.handled) <= load.known | load.unknown
    assert max(load.starts.values()) <= QPS


async def test_the_sentinels_name_a_new_master_and_nothing_that_was_published_replicated_is_lost(
    redis_cluster: RedisCluster, tmp_path: Path
) -> None:
    with start_redis_sentinels() as behind:
        load = Load(behind.url, tmp_path, "replicated")
        async with load.running():
            await load.more(40)
            master = behind.master()
            await asyncio.to_thread(master.kill)
            await load.until(lambda: behind.master() is not master)
            await asyncio.to_thread(master.restart)  # without a replica nothing is replicated
            await load.more(40)
    assert load.unknown | load.refused
    assert load.known <= set(load.handled)


async def test_a_put_wakes_its_reader_on_every_shard_before_any_sweep(redis_cluster_url: str, tmp_path: Path) -> None:
    store, other = [await open_store(redis_cluster_url, Environment.ONLINE) for _ in range(2)]
    queues = [f"{tmp_path.name}/{group}/high" for group in range(300)]
    woken: set[str] = set()
    stands = asyncio.Event()

    async def watch() -> None:
        async for names in store.watch():
            stands.set() if names is None else woken.update(names)

    task = asyncio.create_task(watch())
    try:
        async with asyncio.timeout(10):
            await stands.wait()
        await store.log.read([Read(queue, 1, 10, 1) for queue in queues])
        await other.log.put([Put(queue, [b"x"]) for queue in queues])
        await until(lambda: woken >= set(queues), 1.5)  # a sweep comes every two seconds
    finally:
        await store.close()
        await other.close()
        await task


async def test_a_node_that_forgot_its_scripts_is_sent_them_again(redis_cluster: RedisCluster) -> None:
    store = await open_store(redis_cluster.url, Environment.SANDBOX)
    try:
        queues = [f"forgotten/{group}/high" for group in range(100)]
        for n in range(1, 4):
            redis_cluster.masters()[n - 1].ask("SCRIPT", "FLUSH")
            assert await store.log.put([Put(queue, [b"x"]) for queue in queues]) == [range(n, n + 1)] * 100
    finally:
        await store.close()


async def test_another_number_of_shards_is_refused_and_none_means_what_it_was(redis_cluster_url: str) -> None:
    store = await open_store(redis_cluster_url, Environment.SANDBOX)
    await store.close()
    with pytest.raises(errors.InvalidSettings, match=r"shards=32.* 64 shards"):
        await open_store(f"{redis_cluster_url}?shards=32", Environment.SANDBOX)
    same = await open_store(f"{redis_cluster_url}?shards=64", Environment.SANDBOX)
    await same.close()
