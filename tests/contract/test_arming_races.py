"""A put that commits between a read of PostgreSQL and its arming is not missed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

import pytest

from emq.storage.opening import open_store
from emq.storage.store import Batch, Put, Read
from emq.topics.model import Environment
from storage_adapters.sql import log_store


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
