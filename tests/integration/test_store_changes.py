"""Another store under the same database: its messages are consumed from the first on, and going back goes on."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

import emq
from emq_stores.memory import forget

STORES = ("memory://change-first", "memory://change-second")


async def consumed(store: str, database: str, publish: list[bytes], expected: int) -> list[bytes]:
    """Publish, and be a host until `expected` messages were handled."""
    seen: list[bytes] = []
    all_there = asyncio.Event()
    app = emq.App(store=store, database=database)

    @app.handler("orders")
    async def handle(message: emq.Message) -> None:
        seen.append(message.payload)
        if len(seen) >= expected:
            all_there.set()

    async with app:
        await app.create_topic("orders", qps=150, group_qps=150, priorities=("p",), retention_s=3_600, exist_ok=True)
        await app.publish_many("orders", publish)
        async with app.running():
            await asyncio.wait_for(all_there.wait(), 20)
    return seen


async def test_a_new_store_is_consumed_from_its_first_message_and_the_old_one_from_where_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database = f"sqlite:///{tmp_path}/kept.db"
    first, second = STORES
    try:
        with caplog.at_level(logging.WARNING):
            assert len(await consumed(first, database, [b"%d" % i for i in range(40)], 40)) == 40
            assert sorted(await consumed(second, database, [b"x", b"y"], 2)) == [b"x", b"y"]
            assert await consumed(first, database, [b"z"], 1) == [b"z"]
            assert await consumed(second, database, [b"w"], 1) == [b"w"]
    finally:
        for store in STORES:
            forget(store.removeprefix("memory://"))
    told = [record.getMessage() for record in caplog.records if "identity" in record.getMessage()]
    assert len(told) == 3
    assert not [record for record in caplog.records if "came back from a crash" in record.getMessage()]
