"""Leaving `async with app:` while `app.run()` is a task of the caller's: the host stops before the store closes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

import pytest

import emq
from support.waiting import until


async def test_leaving_the_app_ends_a_run_of_the_callers_and_repeats_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path}/emq.db"
    seen: list[bytes] = []

    def app() -> emq.App:
        made = emq.App(store=url, database=url)

        @made.handler("orders")
        async def handle(message: emq.Message) -> None:
            seen.append(message.payload)

        return made

    payloads = [b"%d" % n for n in range(100)]
    async with app() as first:
        await first.create_topic("orders", qps=5_000)
        run = asyncio.create_task(first.run())
        await first.publish_many("orders", payloads)
        await until(lambda: len(seen) >= 100)
    assert run.done()
    await run
    async with app() as second, second.running():
        await second.publish("orders", b"last")
        await until(lambda: seen[-1:] == [b"last"])
    assert sorted(seen) == sorted([*payloads, b"last"])
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_run_that_leaves_the_app_itself_waits_for_nobody(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/emq.db"

    async def alone() -> None:
        async with emq.App(store=url, database=url) as app:
            asyncio.get_running_loop().call_later(0.2, app.stop)
            await app.run()

    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait_for(alone(), 20)
