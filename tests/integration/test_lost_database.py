"""The catalog's database may be lost while the store survives: what is queued is still delivered (promise L)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import sqlalchemy as sa

import emq
from emq.database import tables
from support import meeting
from support.waiting import until


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


async def test_hosts_that_meet_in_a_database_share_the_groups_again_after_it_came_back_empty(
    fresh_postgres: str, caplog: pytest.LogCaptureFixture
) -> None:
    shared = meeting.on_postgres(fresh_postgres)
    starts, topics = shared.starts, shared.topics(6)
    async with shared.app("a") as a, shared.app("b") as b, a.running() as first, b.running() as second:

        async def bring_topics() -> list[str]:
            sent = []
            for topic in topics:
                await a.create_topic(topic, 100, exist_ok=True)
                sent += await a.publish_many(topic, [b"x"] * 150)
            return sent

        def shared_out() -> bool:
            return len(first.ownership.groups) == len(second.ownership.groups) == 6

        sent = await bring_topics()
        await until(shared_out)
        await until(lambda: set(starts.ids) >= set(sent))
        await a.database.run(lambda c: [c.execute(sa.delete(table)) for table in tables.metadata.sorted_tables])
        sent += await bring_topics()
        await until(lambda: set(starts.ids) >= set(sent))
        await until(shared_out)
        names = [list(host.ownership.groups) for host in (first, second)]
        assert len({name for each in names for name in each}) == 12
    assert "the same `database`" not in caplog.text
    assert starts.most_in_a_second <= 100
