"""Wake-ups that other processes leave in the database reach this one, whatever went wrong before."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from emq.runtime import errors
from emq.runtime.environment import Environment
from emq.storage.log_store import Put, Read
from emq_stores.sql import SqlStore, listen, open_store
from support.waiting import until


@pytest.fixture
async def pair(sql_url: str) -> AsyncIterator[tuple[SqlStore, SqlStore]]:
    """A store that listens, and one of another process."""
    stores = await open_store(sql_url, Environment.ONLINE), await open_store(sql_url, Environment.ONLINE)
    yield stores
    for store in stores:
        await store.close()


TROUBLES = (errors.StoreFull("no room left"), errors.OutcomeUnknown("broke"), ZeroDivisionError("a bug"))


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: type(trouble).__name__)
async def test_no_error_ends_the_wake_ups_and_everything_is_looked_at_afterwards(
    pair: tuple[SqlStore, SqlStore],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    trouble: Exception,
) -> None:
    listening, publishing = pair
    monkeypatch.setattr(listen, "SWEEP_S", 0.1)
    take, failures = listen.take, 3

    async def troubled(backend: object) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise trouble
        await take(backend)  # type: ignore[arg-type]

    monkeypatch.setattr(listen, "take", troubled)
    woken: list[str | None] = []

    async def watch() -> None:
        async for names in listening.watch():
            woken.extend([None] if names is None else names)

    queue = f"{id(pair):x}/0/high"
    await listening.log.read([Read(queue, 1, 1, 1)])
    await publishing.log.put([Put(queue, [b"x"])])
    watching = asyncio.create_task(watch())
    with caplog.at_level(logging.WARNING):
        await until(lambda: None in woken and queue in woken)
    assert failures == 0
    assert len([r for r in caplog.records if r.name == listen.__name__]) == 1, "said once, not at each attempt"
    assert woken.count(None) == 1
    watching.cancel()
