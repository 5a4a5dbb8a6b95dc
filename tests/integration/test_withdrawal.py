"""Messages that a handler's `withdraws` ends: they never start, and hold up no others; on every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import emq
from support.store_apps import STORES, app_on
from support.waiting import until


@pytest.fixture(params=STORES)
async def app(request: pytest.FixtureRequest, tmp_path: Path, names: str) -> AsyncIterator[emq.App]:
    async with app_on(request, tmp_path, names) as app:
        yield app


async def test_withdrawn_messages_use_up_no_quota_and_never_start(app: emq.App, names: str) -> None:
    number, begun = 400, list[bytes]()  # at the topic's rate, these would take 250 s
    told: list[bytes] = []
    await app.create_topic(names, qps=2)

    async def handle(m: emq.Message) -> None:
        begun.append(m.payload)

    def withdraws(m: emq.Message) -> bool:
        told.append(m.payload)
        return m.payload == b"not wanted"

    app.handler(names, withdraws=withdraws)(handle)
    await app.publish_many(names, [b"not wanted"] * number, key="k")
    await app.publish_many(names, [b"not wanted"] * 100, delay_ms=100)
    await app.publish(names, b"wanted", key="k")
    await app.publish(names, b"wanted later", delay_ms=200)
    async with app.running():
        await until(lambda: len(begun) == 2, 30)
    assert sorted(begun) == [b"wanted", b"wanted later"]
    assert len(told) == number + 102
    async with app.running():  # they are gone for good, from queue and lane
        await app.publish(names, b"last")
        await until(lambda: begun[-1] == b"last")
    assert [m for m in told[number + 102 :] if m != b"last"] == []
    assert [letter.id async for letter in app.dead_letters(names)] == []
    topic = await app.catalog.get(names)
    assert sum(lag.unfinished for lag in await app.admin.lag([topic])) == 0
    assert [(lane.ready, lane.delayed, lane.claimed) for lane in await app.admin.slot_lag([topic])] == [(0, 0, 0)]


@pytest.mark.parametrize("fault", [ValueError("planted"), asyncio.CancelledError("planted")])
async def test_a_message_is_kept_if_nobody_can_tell_whether_it_is_withdrawn(
    fault: BaseException, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begun: list[bytes] = []

    async def handle(m: emq.Message) -> None:
        begun.append(m.payload)

    def withdraws(m: emq.Message) -> bool:
        raise fault

    async with emq.App(f"sqlite:///{tmp_path}/emq.db") as app:
        await app.create_topic("t", qps=100)
        app.handler("t", withdraws=withdraws)(handle)
        await app.publish_many("t", [b"x"] * 20)
        async with app.running():
            await until(lambda: len(begun) == 20)
    assert caplog.text.count("`withdraws` of topic 't' failed") == 1
