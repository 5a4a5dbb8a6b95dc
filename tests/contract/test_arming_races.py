"""What commits between a read of PostgreSQL and its arming: a put is not missed, and a newer owner stays armed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

import pytest

from emq.runtime.environment import Environment
from emq.storage.log_store import Batch, Put, Read
from emq.storage.opening import open_store
from emq.storage.store import Store
from emq_stores.sql import log_store
from emq_testing.contract.target import read_one, watching

NAME = f"race{os.getpid()}"


@pytest.fixture
async def stores(postgres_url: str) -> AsyncIterator[tuple[Store, Store]]:
    """Of one who reads, and of somebody else."""
    one, other = [await open_store(postgres_url, Environment.ONLINE) for _ in range(2)]
    yield one, other
    for store in (one, other):
        await store.close()


async def armed_and_put(one: Store, other: Store, queue: str) -> None:
    """Let the first store arm the queue, and a put of the other one disarm it."""
    assert (await read_one(one.log, queue, 1)).exhausted
    await other.log.put([Put(queue, [b"a"])])


def commits_meanwhile(monkeypatch: pytest.MonkeyPatch, call: Coroutine[Any, Any, object]) -> None:
    """Let a call commit after the next read has found its messages, while its transaction is open."""
    loop, fetch = asyncio.get_running_loop(), log_store._fetch

    def fetch_and_call(*args: Any) -> Sequence[Batch]:
        """Runs on the reader's thread."""
        monkeypatch.setattr(log_store, "_fetch", fetch)
        found = fetch(*args)
        asyncio.run_coroutine_threadsafe(call, loop).result(10)
        return found

    monkeypatch.setattr(log_store, "_fetch", fetch_and_call)


async def test_a_read_that_found_nothing_is_not_exhausted_if_something_came_meanwhile(
    monkeypatch: pytest.MonkeyPatch, stores: tuple[Store, Store]
) -> None:
    """Else the queue would be armed after the put that should have woken its reader."""
    queue, (reader, producer) = f"{NAME}/0/p", stores
    await armed_and_put(reader, producer, queue)
    commits_meanwhile(monkeypatch, producer.log.put([Put(queue, [b"b"])]))
    batch = await read_one(reader.log, queue, 1)
    assert (list(batch.bodies), batch.exhausted) == ([b"a"], False)
    batch = await read_one(reader.log, queue, batch.next)
    assert (list(batch.bodies), batch.exhausted) == ([b"b"], True)


async def test_a_stale_owner_does_not_arm_over_the_newer_one_that_came_meanwhile(
    monkeypatch: pytest.MonkeyPatch, stores: tuple[Store, Store]
) -> None:
    """Else the wake-up for the next put would go to the stale owner, and the newer one would wait for its sweep."""
    queue, (stale, newer) = f"{NAME}/1/p", stores
    await armed_and_put(stale, newer, queue)
    async with watching(newer, f"{NAME}/9/p") as watcher:
        commits_meanwhile(monkeypatch, newer.log.read([Read(queue, 2, 10, 2)]))
        assert not (await read_one(stale.log, queue, 1)).exhausted
        await newer.log.put([Put(queue, [b"b"])])
        await watcher.wakes(queue)
