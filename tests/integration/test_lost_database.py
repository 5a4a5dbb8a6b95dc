"""The catalog's database may be lost while the store survives: what is queued is still delivered (promise L)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import emq


async def deliver_one(database: Path, payload: bytes) -> set[bytes]:
    """Publish one message to the shared store and consume until it, at least, was seen."""
    seen: set[bytes] = set()
    app = emq.App("memory://lost-database", database=f"sqlite:///{database}")

    @app.handler("*")
    async def handle(message: emq.Message) -> None:
        seen.add(message.payload)
        if message.payload == payload:
            app.stop()

    async with app:
        await app.create_topic("orders", qps=100, exist_ok=True)
        await app.publish("orders", payload)
        async with asyncio.timeout(10):
            await app.run()
    return seen


async def test_a_host_with_a_new_database_is_not_fenced_off_by_the_epochs_of_the_old_one(tmp_path: Path) -> None:
    for _ in range(3):
        await deliver_one(tmp_path / "first.db", b"before")
    await asyncio.sleep(1.1)  # epochs are at least the time of day in seconds
    assert b"after" in await deliver_one(tmp_path / "second.db", b"after")
