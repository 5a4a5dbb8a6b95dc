"""Payloads as large as a topic takes, through a real server: in calls that stay small, and whole."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import emq
import emq_servers as servers
from emq.producer.batcher import CALL_BYTES
from emq.storage.durability import Durability
from emq.storage.slot_store import SlotAdd
from support.waiting import until

LARGEST = 1 << 20
"""The default `max_payload`."""

COUNT = 10


@pytest.mark.parametrize("together", [False, True], ids=["publish_many", "publish"])
@pytest.mark.parametrize("merge", ["content", "key"])
async def test_the_largest_payloads_go_in_calls_of_a_few_megabytes_and_arrive_whole(
    redis_server: servers.RedisServer, tmp_path: Path, merge: str, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    payloads = [b"%d " % i + bytes([i]) * (LARGEST - 2) for i in range(COUNT)]
    keys = [f"key {i}" for i in range(COUNT)] if merge == "key" else None
    arrived: list[bytes] = []
    calls: list[int] = []
    with servers.start_redis() as server:
        app = emq.App(server.url, database=f"sqlite:///{tmp_path}/catalog.db")

        @app.handler("large")
        async def take(m: emq.Message) -> None:
            arrived.append(m.payload)

        async with app:
            slots = app.store.sorted
            add = slots.add

            async def counted(adds: Sequence[SlotAdd], durability: Durability) -> list[Any]:
                calls.append(sum(len(a.member) + len(a.body) + len(a.note) for a in adds))
                return await add(adds, durability)

            monkeypatch.setattr(slots, "add", counted)
            await app.create_topic("large", 1_000, kind="priority", slots=8, merge=merge)
            if together:
                each = zip(payloads, keys or [None] * COUNT, strict=True)
                await asyncio.gather(*(app.publish("large", p, priority=20, merge_key=key) for p, key in each))
            else:
                await app.publish_many("large", payloads, priority=20, merge_keys=keys)
            async with app.running():
                await until(lambda: len(arrived) == COUNT)
    assert sorted(arrived) == payloads
    assert len(calls) < COUNT
    assert LARGEST < max(calls) <= CALL_BYTES < sum(calls)
