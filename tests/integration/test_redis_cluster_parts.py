"""One master of a real Redis cluster is killed, or stopped so that it accepts and never answers: the others go on."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import emq
from emq.runtime import errors
from emq_stores.redis.cluster import hash_slot
from emq_stores.redis.keys import SlotKeys, cluster_shards, shard_of
from emq_stores.redis.opening import CLUSTER_SHARDS
from emq_stores.redis.server_patience import LEAST_S, Patience
from support.redis_servers.cluster import RedisCluster, start_redis_cluster
from support.waiting import until

LOG_GROUPS = 12
SLOTS = 8
GAP_S = 4.0
"""A deadline is one second; the rest is for a busy machine. Without deadlines of that kind it was half a minute."""


def address(cluster: RedisCluster, topic: str, group: int) -> str:
    """The node that serves a group."""
    if topic == "sorted":
        return cluster.master_of(hash_slot(SlotKeys("online", f"sorted/{group}").store)).address
    shards = cluster_shards("online", CLUSTER_SHARDS)
    return cluster.master_of(hash_slot(shards[shard_of(f"{topic}/{group}", CLUSTER_SHARDS)].head)).address


class Load:
    """Publishes to two topics of many groups, and notes each start by its group."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url, self.directory = url, directory
        self.app = self.new_app()
        self.starts: dict[tuple[str, int], list[float]] = {}
        self.handled: Counter[str] = Counter()
        self.known: set[str] = set()
        self.failed: Counter[str] = Counter()

    def new_app(self) -> emq.App:
        app = emq.App(self.url, database=f"sqlite:///{self.directory}/catalog.db")
        app.handler("*")(self._handle)
        return app

    async def _handle(self, m: emq.Message) -> None:
        self.starts.setdefault((m.topic, m.group), []).append(time.monotonic())
        self.handled[m.payload.decode()] += 1

    async def _send(self, topic: str, name: str) -> None:
        try:
            await self.app.publish(topic, name)
            self.known.add(name)
        except errors.StoreUnavailable as exc:
            self.failed[type(exc).__name__] += 1

    async def publish(self) -> None:
        """Publish all the time. Ends by cancellation."""
        number = 0
        async with asyncio.TaskGroup() as sending:
            while True:
                for topic, count in (("log", 6), ("sorted", 6)):
                    for _ in range(count):
                        number += 1
                        sending.create_task(self._send(topic, f"{topic}-{number}"))
                await asyncio.sleep(0.05)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self.app:
            await self.app.create_topic("log", 50.0 * LOG_GROUPS, group_qps=50)
            await self.app.create_topic("sorted", 400.0, kind="range_merge", slots=SLOTS, time_range_ms=20)
            host, publishing = asyncio.create_task(self.app.run()), asyncio.create_task(self.publish())
            try:
                yield
            finally:
                publishing.cancel()
                await asyncio.gather(publishing, return_exceptions=True)
                with contextlib.suppress(AssertionError):  # what a killed master had not written is lost
                    await until(lambda: self.known <= set(self.handled), 5.0)
                self.app.stop()
                await host

    def gap_s(self, place: tuple[str, int], since: float) -> float:
        """The longest time without a start of a group."""
        times = [since, *(at for at in self.starts.get(place, ()) if at >= since), time.monotonic()]
        return max(after - before for before, after in itertools.pairwise(times))


@pytest.mark.parametrize("killed", [True, False])
async def test_a_master_that_is_down_or_silent_costs_its_own_groups_only(
    killed: bool, redis_cluster: RedisCluster, tmp_path: Path
) -> None:
    options = ("--cluster-require-full-coverage", "no")
    with start_redis_cluster(replicas=0, extra_args=options, appendonly=True) as cluster:
        places = [*(("log", g) for g in range(LOG_GROUPS)), *(("sorted", g) for g in range(SLOTS))]
        lost = cluster.masters()[1]
        theirs = {place for place in places if address(cluster, *place) == lost.address}
        healthy = set(places) - theirs
        assert theirs
        assert healthy
        load = Load(cluster.url, tmp_path)
        async with load.running():
            await until(lambda: all(len(load.starts.get(place, ())) > 3 for place in places))
            if killed:
                await asyncio.to_thread(lost.kill)
            else:
                lost.pause()
            since = time.monotonic()
            await asyncio.sleep(6)
            gaps = {place: load.gap_s(place, since) for place in healthy}
            # On a busy machine answers are slow, and the deadlines follow them.
            longer_s = max(each.deadline_s for each in gc.get_objects() if isinstance(each, Patience)) - LEAST_S
            assert max(gaps.values()) < GAP_S + longer_s, gaps
            await until(
                lambda: load.failed, 15
            )  # or no publish met the dead master: it takes a deadline of 10 s at most
            if killed:
                await asyncio.to_thread(lost.restart)
            else:
                lost.resume()
            since = time.monotonic()
            await until(lambda: all(any(at > since for at in load.starts.get(place, ())) for place in theirs))
        assert load.known <= set(load.handled) or killed


async def test_a_host_that_starts_beside_a_silent_master_acquires_the_groups_of_the_others(
    redis_cluster: RedisCluster, tmp_path: Path
) -> None:
    options = ("--cluster-require-full-coverage", "no")
    with start_redis_cluster(replicas=0, extra_args=options) as cluster:
        places = [("log", g) for g in range(LOG_GROUPS)]
        lost = cluster.masters()[0]
        theirs = {place for place in places if address(cluster, *place) == lost.address}
        load = Load(cluster.url, tmp_path)
        async with load.app as app:
            await app.create_topic("log", 50.0 * LOG_GROUPS, group_qps=50)
            for n in range(10 * LOG_GROUPS):
                await app.publish("log", str(n))
            lost.pause()
            host = asyncio.create_task(app.run())
            try:
                await until(lambda: set(load.starts) == set(places) - theirs, 8)
                lost.resume()
                await until(lambda: len(load.handled) == 10 * LOG_GROUPS)
            finally:
                app.stop()
                await host
