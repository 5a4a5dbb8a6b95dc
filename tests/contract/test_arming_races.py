"""What commits between a read of PostgreSQL and its arming: a put is not missed, and a newer owner stays armed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

import pytest
from target import watching

from emq.runtime.environment import Environment
from emq.storage.log_store import Batch, Put, Read
from emq.storage.opening import open_store
from emq_stores.sql import log_store


async def test_a_read_that_found_nothing_is_not_exhausted_if_something_came_meanwhile(
    monkeypatch: pytest.MonkeyPatch, postgres_url: str
) -> None:
    """Else the queue would be armed after the put that should have woken its reader."""
    queue = f"race{os.getpid()}/0/p"
    reader, producer = [await open_store(postgres_url, Environment.ONLINE) for _ in range(2)]
    try:
        [first] = await reader.log.read([Read(queue, 1, 10, 1)])
        assert isinstance(first, Batch)
        assert first.exhausted
        await producer.log.put([Put(queue, [b"a"])])  # disarms it
        loop, fetch = asyncio.get_running_loop(), log_store._fetch

        def fetch_and_put(*args: Any) -> Sequence[Batch]:
            """Runs on the reader's thread, in its transaction."""
            monkeypatch.setattr(log_store, "_fetch", fetch)
            found = fetch(*args)
            asyncio.run_coroutine_threadsafe(producer.log.put([Put(queue, [b"b"])]), loop).result(10)
            return found

        monkeypatch.setattr(log_store, "_fetch", fetch_and_put)
        [batch] = await reader.log.read([Read(queue, 1, 10, 1)])
        assert isinstance(batch, Batch)
        assert (list(batch.bodies), batch.exhausted) == ([b"a"], False)
        [batch] = await reader.log.read([Read(queue, batch.next, 10, 1)])
        assert isinstance(batch, Batch)
        assert (list(batch.bodies), batch.exhausted) == ([b"b"], True)
    finally:
        for store in (reader, producer):
            await store.close()


async def test_a_stale_owner_does_not_arm_over_the_newer_one_that_came_meanwhile(
    monkeypatch: pytest.MonkeyPatch, postgres_url: str
) -> None:
    """Else the wake-up for the next put would go to the stale owner, and the newer one would wait for its sweep."""
    queue, canary = f"stale{os.getpid()}/0/p", f"stale{os.getpid()}/9/p"
    stale, newer = [await open_store(postgres_url, Environment.ONLINE) for _ in range(2)]
    try:
        [first] = await stale.log.read([Read(queue, 1, 10, 1)])
        assert isinstance(first, Batch)
        await newer.log.put([Put(queue, [b"a"])])  # disarms it
        loop, fetch = asyncio.get_running_loop(), log_store._fetch

        def fetch_and_own(*args: Any) -> Sequence[Batch]:
            """Runs on the stale owner's thread, in its transaction."""
            monkeypatch.setattr(log_store, "_fetch", fetch)
            found = fetch(*args)
            asyncio.run_coroutine_threadsafe(newer.log.read([Read(queue, 2, 10, 2)]), loop).result(10)
            return found

        async with watching(newer, canary) as watcher:
            monkeypatch.setattr(log_store, "_fetch", fetch_and_own)
            [batch] = await stale.log.read([Read(queue, 1, 10, 1)])
            assert isinstance(batch, Batch)
            assert not batch.exhausted
            await newer.log.put([Put(queue, [b"b"])])
            await watcher.wakes(queue)
    finally:
        for store in (stale, newer):
            await store.close()
