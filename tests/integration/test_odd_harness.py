"""The harness with odd apps and odd tests: it ends, and says in words what is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math

import pytest

import emq
import emq_testing
from emq_testing import harness as of_harness


@dataclasses.dataclass
class Shop:
    """A handler that cannot be hashed."""

    sold: list[bytes]

    async def __call__(self, message: emq.Message) -> None:
        self.sold.append(message.payload)


async def test_a_handler_may_be_an_object_that_cannot_be_hashed() -> None:
    app, shop = emq.App(), Shop([])
    app.handler("o")(shop)
    async with emq_testing.Harness(app) as t:
        await app.create_topic("o", qps=50)
        await t.publish("o", "1")
        await t.settled()
    assert shop.sold == [b"1"]


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
async def test_time_goes_on_by_a_finite_number_of_seconds_only(seconds: float) -> None:
    async with emq_testing.Harness(emq.App()) as t:
        before = t.now
        with pytest.raises(ValueError, match="time cannot advance by"):
            await t.advance(seconds)
        assert t.now == before


@pytest.mark.parametrize("fails", [False, True])
async def test_drained_ends_although_a_handler_makes_work_for_ever(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_harness, "DRAIN_STARTS", 20)
    monkeypatch.setattr(of_harness, "ATTEMPTS", 5)
    app, runs = emq.App(), 0

    @app.handler("o")
    async def handle(message: emq.Message) -> None:
        nonlocal runs
        runs += 1
        if fails and runs < 1_000:
            raise ValueError("again")
        if runs < 1_000:
            await app.publish("o", "next", delay_ms=500)

    async with emq_testing.Harness(app) as t:
        await app.create_topic("o", qps=100, max_attempts=1_000_000, backoff_s=(0.5,))
        await t.publish("o", "first", delay_ms=500)
        with pytest.raises(
            emq_testing.NotSettled, match=r"after more than 20 starts; left: o: 1 to come later; does a"
        ):
            await t.drained()
    assert 25 <= runs < 40


async def test_a_handler_that_catches_its_cancellation_does_not_keep_a_host_from_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app, ended, tries = emq.App(), asyncio.Event(), 0

    @app.handler("o")
    async def handle(message: emq.Message) -> None:
        nonlocal tries
        while not ended.is_set() and tries < 500:
            tries += 1
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1)

    async with emq_testing.Harness(app) as t:
        await app.create_topic("o", qps=50)
        await t.publish("o", "1")
        with pytest.raises(emq_testing.NotSettled):
            await t.settled(within_s=3)
    ended.set()
    assert tries < 50
    assert "calls of handlers that go on 4 s after they were cancelled: 1; does a handler catch" in caplog.text
    await asyncio.sleep(1)


async def test_a_harness_outside_of_its_block_is_refused_in_words() -> None:
    app = emq.App()
    app.handler("o")(Shop([]))
    t = emq_testing.Harness(app)
    for _ in range(2):
        for call in (t.publish("o", "1"), t.settled(), t.drained(), t.advance(1), t.left()):
            with pytest.raises(RuntimeError, match="the harness is not open"):
                await call
        async with t:
            await app.create_topic("o", qps=50)
            await t.publish("o", "1")
