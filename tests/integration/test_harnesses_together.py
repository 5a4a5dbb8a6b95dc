"""Several harnesses in one test, one after the other and at once: they share one virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import time
from collections.abc import Awaitable, Callable

import pytest

import emq
from emq_testing import Harness, NotSettled

START = datetime.datetime(2030, 1, 1, 8, 59, tzinfo=datetime.UTC)
HOUR = datetime.timedelta(hours=1)

Handler = Callable[[emq.Message], Awaitable[object]]


async def ignore(message: emq.Message) -> None:
    pass


def app_with(handler: Handler = ignore) -> emq.App:
    app = emq.App()
    app.family("o.*", qps=50)
    app.handler("o.*")(handler)
    return app


async def test_the_clock_is_one_and_advance_lets_the_messages_of_both_start() -> None:
    async with Harness(app_with(), start=START) as t:
        await t.publish("o.first", "1", delay_ms=3_600_000)
        async with Harness(app_with()) as u:
            assert u.now == t.now
            await u.publish("o.second", "2", at=t.now + HOUR / 2)
            began = t.now
            await u.advance(hours=2)
            assert t.now == u.now >= began + 2 * HOUR
        assert [m.topic for m in t.delivered] == ["o.first"]
        assert [m.topic for m in u.delivered] == ["o.second"]
        assert [p.topic for p in t.published] == ["o.first"]
        await t.publish("o.first", "3", delay_ms=3_600_000)
        await t.advance(hours=1)
        assert [m.payload for m in t.delivered] == [b"1", b"3"]


async def test_no_leap_of_one_passes_over_what_the_other_has_to_do() -> None:
    started: list[datetime.datetime] = []

    async def note(message: emq.Message) -> None:
        started.append(u.now)
        await asyncio.sleep(60)

    async with Harness(app_with(), start=START) as t, Harness(app_with(note)) as u:
        await u.publish("o.slow", "1", delay_ms=1_800_000)
        due = u.now + HOUR / 2
        await t.publish("o.late", "2", delay_ms=7_200_000)
        await t.drained()
        assert len(t.delivered) == len(u.delivered) == 1
        assert due <= started[0] < due + datetime.timedelta(seconds=0.2)


async def test_handlers_of_one_app_publish_through_the_other() -> None:
    billing = app_with()

    async def order(message: emq.Message) -> None:
        await billing.publish("o.bill", message.payload)

    async with Harness(billing, start=START) as of_billing, Harness(app_with(order)) as of_shop:
        before = of_shop.now
        await of_shop.publish("o.order", "17")
        await of_shop.settled()
        await of_billing.settled()
        assert [m.payload for m in of_billing.delivered] == [b"17"]
        assert of_shop.now - before < datetime.timedelta(seconds=3)


async def test_settled_and_drained_are_about_their_own_app() -> None:
    async def hang(message: emq.Message) -> None:
        await asyncio.sleep(1000)

    async with Harness(app_with(hang), start=START) as t, Harness(app_with()) as u:
        await t.publish("o.hang", "1")
        await t.advance(2)
        await u.publish("o.quick", "2")
        await u.settled(within_s=10)
        assert await u.left() == []
        with pytest.raises(NotSettled, match=r"left: o\.hang: 1 in flight"):
            await t.settled(within_s=10)


async def drained_after(hours: int) -> datetime.timedelta:
    """Return how long an app of its own takes to drain a message that is due after these hours."""
    async with Harness(app_with()) as t:
        began = t.now
        await t.publish("o.late", "1", delay_ms=hours * 3_600_000)
        await t.drained()
        assert len(t.delivered) == 1
        return t.now - began


async def test_two_tasks_of_a_test_use_a_harness_each() -> None:
    began_s = time.monotonic()
    spans = await asyncio.gather(drained_after(1), drained_after(3))
    for hours, span in zip((1, 3), spans, strict=True):
        assert hours * HOUR <= span < hours * HOUR + datetime.timedelta(seconds=3)
    assert time.monotonic() - began_s < 8, "neither holds up the leaps of the other"


async def test_no_leap_of_one_goes_beyond_what_another_waits_for() -> None:
    async def ten_minutes() -> datetime.timedelta:
        async with Harness(app_with()) as t:
            began = t.now
            await t.advance(minutes=10)
            return t.now - began

    _, span = await asyncio.gather(drained_after(3), ten_minutes())
    assert 600 <= span.total_seconds() < 602


async def test_the_first_may_end_first_and_the_last_gives_the_time_back() -> None:
    loop = asyncio.get_running_loop()
    first, second = contextlib.AsyncExitStack(), contextlib.AsyncExitStack()
    t = await first.enter_async_context(Harness(app_with(), start=START))
    u = await second.enter_async_context(Harness(app_with()))
    await first.aclose()
    with pytest.raises(RuntimeError, match="the harness is not open"):
        await t.left()
    await u.publish("o.late", "1", delay_ms=3_600_000)
    await u.advance(hours=1)
    assert len(u.delivered) == 1
    await second.aclose()
    began_s, of_loop_s = time.monotonic(), loop.time()
    await asyncio.sleep(0.05)
    assert 0.04 < time.monotonic() - began_s < 5
    assert 0.04 < loop.time() - of_loop_s < 5


async def test_one_after_the_other_each_has_a_time_of_its_own() -> None:
    app = app_with()
    for _ in range(2):
        async with Harness(app, start=START) as t:
            assert START <= t.now < START + datetime.timedelta(seconds=3)
            await t.publish("o.late", "1", delay_ms=3_600_000)
            await t.drained()
            assert len(t.delivered) == 1
    async with Harness(app) as t:
        assert abs(t.now - datetime.datetime.now(datetime.UTC)) < datetime.timedelta(seconds=30)


async def test_a_start_gives_a_harness_a_calendar_of_its_own() -> None:
    async with Harness(app_with(), start=START) as t, Harness(app_with(), start=START + 24 * HOUR) as u:
        apart = u.now - t.now
        assert abs(apart - 24 * HOUR) < datetime.timedelta(seconds=3)
        await t.publish("o.late", "1", delay_ms=3_600_000)
        await u.publish("o.late", "1", delay_ms=3_600_000)
        await t.drained()
        await u.drained()
        assert u.now - t.now == apart
        assert len(t.delivered) == len(u.delivered) == 1


async def test_one_app_is_in_one_harness_at_a_time() -> None:
    app = app_with()
    async with Harness(app) as t:
        with pytest.raises(RuntimeError, match="the app is open already"):
            async with Harness(app):
                raise AssertionError("it opened")
        await t.publish("o.x", "1")
        await t.settled()
        assert len(t.delivered) == 1


async def test_the_more_patient_harness_decides_how_long_threads_are_waited_for() -> None:
    app = emq.App()
    app.family("o.*", qps=50)

    @app.handler("o.*")
    def work(message: emq.Message) -> None:
        time.sleep(0.3)

    async with Harness(app, start=START, patience_s=0.01) as t, Harness(app_with(), patience_s=30) as u:
        await t.publish("o.x", "1")
        await t.settled()
        before = u.now
        await t.publish("o.x", "2")
        await t.settled()
        assert u.now == before
