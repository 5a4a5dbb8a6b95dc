"""Wake-ups of Redis come both ways: at once by a published message, and by the store's sweep if nobody heard that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio.client import PubSub

from emq.storage.lane_store import LaneAdd, LaneClaim
from emq.storage.slot_store import Keep, SlotClaim, SlotKind
from emq.storage.slot_store import SlotAdd as Member
from emq.storage.store import Store
from emq_stores.redis import cluster_wakeups, wakeups
from emq_testing.contract.target import Target, Watcher, put_one, read_one

NOW = 1_700_000_000_000


@asynccontextmanager
async def subscribed(store: Store) -> AsyncIterator[Watcher]:
    """A watcher whose subscriptions to all shards stand."""
    watcher = Watcher(store)
    task = asyncio.create_task(watcher.run())
    try:
        await watcher.until(lambda: watcher.sweeps > 0, "the subscription")
        yield watcher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def arm(store: Store, target: Target) -> None:
    """Have a queue, a lane and a slot wake this instance for whatever comes."""
    assert (await read_one(store.log, target.queue(), store.log.first_offset)).exhausted
    await store.lanes.claim([LaneClaim(target.slot(1), 1, 1)], NOW)
    await store.sorted.claim([SlotClaim(target.sorted_slot(SlotKind.PRIORITY, group=2), 1, 1, NOW)], NOW)


@pytest.mark.parametrize("target", ["redis", "redis_cluster", "redis_servers"], indirect=True)
async def test_wake_ups_do_not_wait_for_a_sweep(store: Store, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = target.sorted_slot(SlotKind.PRIORITY, group=2)
    for module in (wakeups, cluster_wakeups):
        monkeypatch.setattr(module, "SWEEP_S", 3600.0)
    async with subscribed(store) as watcher:
        await arm(store, target)
        await put_one(store.log, target.queue(), b"a")
        await watcher.wakes(target.queue())
        await store.lanes.add([LaneAdd(target.slot(1), "x", b"", NOW)])
        await watcher.wakes(target.slot(1))
        await store.sorted.add([Member(slot, b"m", 5.0, Keep.LAST)])
        await watcher.wakes(slot.address)


@pytest.mark.parametrize("target", ["redis_cluster"], indirect=True)
async def test_subscriptions_go_on_after_an_error_that_nobody_expects(
    store: Store, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, failures = cluster_wakeups.Ears._wanted, [KeyError()]

    def failing(self: cluster_wakeups.Ears) -> dict[str, set[str]]:
        while failures:
            raise failures.pop()
        return wanted(self)

    monkeypatch.setattr(cluster_wakeups.Ears, "_wanted", failing)
    async with subscribed(store) as watcher:
        await arm(store, target)
        await put_one(store.log, target.queue(), b"a")
        await watcher.wakes(target.queue())


@pytest.mark.parametrize("target", ["redis"], indirect=True)
async def test_a_wake_up_that_nobody_heard_is_found_by_the_sweep(
    store: Store, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hears_nothing(self: PubSub, **_: Any) -> None:
        await asyncio.sleep(0.05)

    monkeypatch.setattr(PubSub, "get_message", hears_nothing)
    monkeypatch.setattr(wakeups, "SWEEP_S", 0.1)
    async with subscribed(store) as watcher:
        await arm(store, target)
        await put_one(store.log, target.queue(), b"a")
        await store.lanes.add([LaneAdd(target.slot(1), "x", b"", NOW)])
        await watcher.wakes(target.queue(), target.slot(1))
