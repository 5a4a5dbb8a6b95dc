"""Every batched call, on a real Redis cluster with a master that is down or silent: each entry has its answer."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

import emq_servers as servers
from emq.runtime.environment import Environment
from emq.storage import slot_store
from emq.storage.answers import FAILURES
from emq.storage.lane_store import LaneAdd, LaneClaim, LaneSettle, LaneVerdict
from emq.storage.log_store import Put, Read, Trim
from emq.storage.opening import open_store
from emq.storage.slot_store import Slot, SlotKind
from emq.storage.store import Store
from emq_stores.redis.cluster import hash_slot
from emq_stores.redis.keys import SlotKeys, cluster_shards, shard_of
from emq_stores.redis.opening import CLUSTER_SHARDS
from support.redis_servers.cluster import RedisCluster, start_redis_cluster

GROUPS = [f"t/{n}" for n in range(24)]
SLOTS = [Slot(f"s/{n}", SlotKind.PRIORITY) for n in range(24)]
QUEUES = [f"{group}/high" for group in GROUPS]

CALLS: dict[str, Callable[[Store], Awaitable[Sequence[Any]]]] = {
    "put": lambda s: s.log.put([Put(q, [b"x"]) for q in QUEUES]),
    "read": lambda s: s.log.read([Read(q, 1, 10, 7) for q in QUEUES]),
    "bounds": lambda s: s.log.bounds(QUEUES),
    "trim": lambda s: s.log.trim([Trim(q, 1, 7) for q in QUEUES]),
    "lane add": lambda s: s.lanes.add([LaneAdd(g, "a", b"x", 1, epoch=7) for g in GROUPS]),
    "lane claim": lambda s: s.lanes.claim([LaneClaim(g, 5, 7) for g in GROUPS], 10),
    "lane settle": lambda s: s.lanes.settle([LaneSettle(g, "a", LaneVerdict.ACK, 7) for g in GROUPS]),
    "lane recover": lambda s: s.lanes.recover([(g, 7) for g in GROUPS]),
    "lane inspect": lambda s: s.lanes.inspect(GROUPS),
    "slot add": lambda s: s.sorted.add([slot_store.SlotAdd(p, b"m", 20, slot_store.Keep.LAST) for p in SLOTS]),
    "slot claim": lambda s: s.sorted.claim([slot_store.SlotClaim(p, 5, 7, 1) for p in SLOTS], 1_700_000_000_000),
    "slot settle": lambda s: s.sorted.settle(
        [slot_store.SlotSettle(p, b"m", slot_store.SlotVerdict.ACK, 1, 7) for p in SLOTS]
    ),
    "slot recover": lambda s: s.sorted.recover([slot_store.Recover(p, 7) for p in SLOTS], 1_700_000_000_000),
    "slot inspect": lambda s: s.sorted.inspect(SLOTS, 1),
}


def served_by(cluster: RedisCluster) -> tuple[list[str], list[str]]:
    """The addresses of the nodes that serve the groups, and the slots."""
    shards = cluster_shards("online", CLUSTER_SHARDS)
    of_groups = [hash_slot(shards[shard_of(group, CLUSTER_SHARDS)].head) for group in GROUPS]
    of_slots = [hash_slot(SlotKeys("online", slot.name).store) for slot in SLOTS]
    return [cluster.master_of(n).address for n in of_groups], [cluster.master_of(n).address for n in of_slots]


@pytest.mark.parametrize("lose", [servers.Server.kill, servers.Server.pause])
async def test_entries_of_a_master_that_is_down_fail_and_the_others_are_served_in_every_call(
    lose: Callable[[servers.Server], None], redis_cluster: RedisCluster
) -> None:
    options = ("--cluster-require-full-coverage", "no")
    with start_redis_cluster(replicas=0, extra_args=options) as cluster:
        of_groups, of_slots = served_by(cluster)
        lost = cluster.masters()[2]
        assert 0 < of_groups.count(lost.address) < len(GROUPS)
        assert 0 < of_slots.count(lost.address) < len(SLOTS)
        store = await open_store(cluster.url, Environment.ONLINE)
        try:
            for call in CALLS.values():
                assert not any(isinstance(answer, FAILURES) for answer in await call(store))
            lose(lost)
            began = time.monotonic()
            for name, call in CALLS.items():
                answers = await call(store)
                failed = [isinstance(answer, FAILURES) for answer in answers]
                served = of_slots if name.startswith("slot") else of_groups
                assert failed == [address == lost.address for address in served], name
            assert time.monotonic() - began < 10, "each call waited for the silent master, not the first alone"
        finally:
            if lost.running:
                lost.resume()
            await store.close()
