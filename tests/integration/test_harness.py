"""`emq_testing.Harness`: what it promises to the tests of a user's handlers."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import emq
from emq.observe import dead_letters
from emq.producer import Outgoing
from emq.runtime import errors
from emq.topics.model import State
from emq_testing import Harness, NotSettled

START = datetime.datetime(2030, 1, 1, 8, 59, 30, tzinfo=datetime.UTC)


def app_with(handlers: dict[str, Callable[[Any], Any]]) -> emq.App:
    """An app as a user's module has it, with a store that must never be opened, and a family for each `prefix.*`."""
    app = emq.App("sqlite:////nonexistent/directory/emq.db")
    for pattern, function in handlers.items():
        app.handler(pattern)(function)
        if pattern.endswith("*"):
            app.family(pattern, qps=50)
    return app


async def ignore(message: emq.Message) -> None:
    pass


async def fail(message: emq.Message) -> None:
    raise ValueError(f"no {message.payload.decode()}")


async def test_a_message_is_delivered_without_any_time_passing() -> None:
    async with Harness(app_with({"orders.*": ignore}), start=START) as t:
        await t.settled()
        before = t.now
        await t.publish("orders.acme", b"17", key="customer 4", headers={"a": "b"})
        await t.settled()
        [message] = t.delivered
        assert (message.topic, message.payload, message.key, message.attempt) == ("orders.acme", b"17", "customer 4", 1)
        assert t.now - before <= datetime.timedelta(seconds=1.5)  # the host learns of its first topic
        before = t.now
        await t.publish("orders.acme", b"18")
        await t.settled()
        assert [m.payload for m in t.delivered] == [b"17", b"18"]
        assert t.now == before


async def test_time_begins_where_the_test_wants_it() -> None:
    async with Harness(app_with({}), start=START) as t:
        assert START <= t.now <= START + datetime.timedelta(seconds=2)
    async with Harness(app_with({})) as t:
        assert abs((t.now - datetime.datetime.now(datetime.UTC)).total_seconds()) < 10


async def test_retries_of_hours_pass_at_once() -> None:
    began_s = time.monotonic()
    async with Harness(app_with({"bad": fail}), start=START) as t:
        await t.app.create_topic("bad", qps=50)
        await t.publish("bad", b"17")
        await t.drained()
        assert t.now - START > datetime.timedelta(hours=2)
        [letter] = t.dead_letters
        assert [failure.message.attempt for failure in t.failures] == list(range(1, 17))
        assert (letter.message.payload, letter.message.attempt) == (b"17", 16)
        assert letter.reason == "ValueError: no 17"
        assert isinstance(letter.error, ValueError)
        assert letter.again_at is None
        [stored] = [letter async for letter in t.app.dead_letters("bad")]
        assert abs(stored.dead_ms / 1000 - t.now.timestamp()) < 1.0, "it died at another time"
    assert time.monotonic() - began_s < 20


async def test_settled_leaves_retries_and_delays_to_their_time() -> None:
    async with Harness(app_with({"late": ignore, "bad": fail}), start=START) as t:
        await t.app.create_topic("late", qps=50)
        await t.app.create_topic("bad", qps=50)
        await t.publish("late", b"1", delay_ms=60_000)
        await t.publish("bad", b"2")
        await t.settled()
        assert t.now - START < datetime.timedelta(seconds=5)
        assert len(t.failures) == 1
        assert not t.delivered
        assert {left.topic: left.later for left in await t.left()} == {"late": 1, "bad": 1}


async def test_advance_lets_exactly_what_is_due_start() -> None:
    async with Harness(app_with({"late": ignore}), start=START) as t:
        await t.app.create_topic("late", qps=50)
        await t.publish("late", b"now")
        await t.settled()
        before = t.now
        await t.publish("late", b"1", delay_ms=60_000)
        await t.publish("late", b"2", at=t.now + datetime.timedelta(hours=5))
        await t.advance(59.9)
        assert len(t.delivered) == 1
        await t.advance(0.1)
        assert [m.payload for m in t.delivered] == [b"now", b"1"]
        assert before + datetime.timedelta(seconds=60) <= t.now < before + datetime.timedelta(seconds=60.2)
        await t.advance(hours=5)
        assert [m.payload for m in t.delivered] == [b"now", b"1", b"2"]


async def test_a_failure_tells_what_was_raised_and_when_it_is_tried_again() -> None:
    async def flaky(message: emq.Message) -> None:
        if message.attempt == 1:
            raise emq.Retry(after_s=3600)

    async with Harness(app_with({"flaky": flaky}), start=START) as t:
        await t.app.create_topic("flaky", qps=50)
        await t.publish("flaky", b"1")
        await t.settled()
        [failure] = t.failures
        assert isinstance(failure.error, emq.Retry)
        assert failure.error.__traceback__ is not None
        assert failure.again_at is not None
        assert abs((failure.again_at - t.now).total_seconds() - 3600) < 0.1
        assert failure.message.attempt == 1
        await t.advance(3601)
        assert [m.attempt for m in t.delivered] == [2]
        assert len(t.failures) == 1


async def test_a_rejected_message_dies_at_once_and_can_be_replayed() -> None:
    refusing = True

    async def picky(message: emq.Message) -> None:
        if refusing:
            raise emq.Reject("not today")

    app = app_with({"picky": picky})
    async with Harness(app, start=START) as t:
        await app.create_topic("picky", qps=50)
        await t.publish("picky", b"1")
        await t.settled()
        [letter] = t.dead_letters
        assert isinstance(letter.error, emq.Reject)
        assert len(t.failures) == 1
        refusing = False
        assert await dead_letters.replay(app.store, await app.catalog.get("picky"), clock=app.clock) == 1
        await t.settled()
        assert [m.payload for m in t.delivered] == [b"1"]


async def test_handlers_see_virtual_time() -> None:
    took: list[float] = []

    async def slow(message: emq.Message) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(7200)
        took.append(loop.time() - began)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        took.append(loop.time() - began)

    began_s = time.monotonic()
    async with Harness(app_with({"slow": slow}), start=START) as t:
        await t.app.create_topic("slow", qps=50)
        await t.publish("slow", b"1")
        await t.settled(within_s=10_000)
        assert took == [pytest.approx(7200), pytest.approx(7230)]
        assert len(t.delivered) == 1
    assert time.monotonic() - began_s < 30


async def test_sleeping_in_the_test_lets_virtual_time_pass() -> None:
    async with Harness(app_with({"late": ignore}), start=START) as t:
        await t.app.create_topic("late", qps=50)
        await t.publish("late", b"1", delay_ms=20_000)
        before = t.now
        await asyncio.sleep(30)
        assert t.now - before == pytest.approx(datetime.timedelta(seconds=30), abs=datetime.timedelta(milliseconds=1))
        assert len(t.delivered) == 1


async def test_a_timer_of_the_test_is_not_leapt_over() -> None:
    async with Harness(app_with({"bad": fail}), start=START) as t:
        await t.app.create_topic("bad", qps=50)
        seen: list[float] = []

        async def ticking() -> None:
            while True:
                await asyncio.sleep(100)
                seen.append((t.now - START).total_seconds())

        task = asyncio.create_task(ticking())
        await t.publish("bad", b"1")
        await t.advance(1000)
        task.cancel()
        assert [round(b - a, 3) for a, b in itertools.pairwise(seen)] == [100.0] * (len(seen) - 1)
        assert len(seen) >= 9


async def test_a_task_that_a_handler_started_is_not_leapt_over() -> None:
    woke: list[float] = []
    tasks: list[asyncio.Task[None]] = []

    async def later() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(1000)
        woke.append(loop.time() - began)

    async def starting(message: emq.Message) -> None:
        tasks.append(asyncio.create_task(later()))

    async with Harness(app_with({"starting": starting}), start=START) as t:
        await t.app.create_topic("starting", qps=50)
        await t.publish("starting", b"1")
        await t.settled()
        await t.advance(hours=2)
        assert woke == [pytest.approx(1000)]


async def test_the_cap_holds_and_time_passes_as_the_quota_needs() -> None:
    app = app_with({"slow": ignore})
    async with Harness(app, start=START) as t:
        await app.create_topic("slow", qps=10)
        await app.publish_many("slow", [b"%d" % i for i in range(100)])
        await t.settled()
        starts = [message.started_us / 1e6 for message in t.delivered]
        assert len(starts) == 100
        assert 8.0 < max(starts) - min(starts) <= 10.0, "the first second may be only a part of one"
        assert max(Counter(map(int, starts)).values()) <= 10


async def test_an_expired_message_is_a_dead_letter_without_an_error() -> None:
    app = app_with({"short": ignore})
    async with Harness(app, start=START) as t:
        await app.create_topic("short", qps=10)
        await app.admin.update("short", state=State.PAUSED)
        await t.publish("short", b"1", ttl_s=60)
        await t.settled()
        [left] = await t.left()
        assert (left.ready, left.why) == (1, "paused")
        await t.advance(58)
        assert not t.dead_letters
        await t.advance(5)
        assert not t.delivered
        assert not t.failures
        [letter] = t.dead_letters
        assert (letter.reason, letter.error) == ("expired", None)


async def test_schedules_fire_and_do_not_keep_the_app_from_rest() -> None:
    app = app_with({"daily": ignore})
    async with Harness(app, start=START) as t:
        await app.create_topic("daily", qps=10)
        await app.schedule("daily", b"report", cron="0 9 * * *")
        await t.drained()
        assert not t.delivered
        await t.advance(60)
        assert len(t.delivered) == 1
        await t.advance(days=3)
        assert len(t.delivered) == 4


@pytest.mark.parametrize("kind", ["range_merge", "priority", "fixed_time"])
async def test_sorted_topics_work(kind: str) -> None:
    app = app_with({"sorted": ignore})
    options: dict[str, Any] = {"range_merge": {"time_range_ms": 60_000}, "priority": {"priority": 20}}.get(kind, {})
    if kind == "fixed_time":
        options = {"delay_ms": 60_000}
    async with Harness(app, start=START) as t:
        await app.create_topic("sorted", qps=10, kind=kind, slots=1)
        await app.pause("sorted")
        for payload in (b"1", b"1", b"2"):
            await t.publish("sorted", payload, **options)
        await app.resume("sorted")
        await t.settled()
        if kind != "priority":
            assert not t.delivered
            await t.advance(62)
        assert sorted(m.payload for m in t.delivered) == [b"1", b"2"]
        assert not await t.left()


async def test_a_sorted_topic_that_backs_off_is_drained() -> None:
    began_s = time.monotonic()
    app = app_with({"sorted": fail})
    async with Harness(app, start=START) as t:
        await app.create_topic("sorted", qps=10, kind="priority", slots=1, retry="backoff")
        await t.publish("sorted", b"1", priority=20)
        await t.drained()
        assert [failure.message.attempt for failure in t.failures] == list(range(1, 17))
        assert len(t.dead_letters) == 1
    assert time.monotonic() - began_s < 20


async def test_what_handlers_publish_is_seen_also_where_nobody_consumes_it() -> None:
    app = app_with({})

    @app.family("orders.*", qps=50).handler
    async def pass_on(message: emq.Message) -> None:
        await app.publish("orders.next" if message.payload == b"1" else "audit", message.payload + b"!", key="k")

    async with Harness(app, start=START) as t:
        await app.create_topic("audit", qps=10)
        await t.publish("orders.first", b"1")
        await t.settled()
        assert [(p.topic, p.payload, dict(p.options)) for p in t.published] == [
            ("orders.first", b"1", {}),
            ("orders.next", b"1!", {"key": "k"}),
            ("audit", b"1!!", {"key": "k"}),
        ]
        [left] = await t.left()
        assert (left.topic, left.ready, left.why) == ("audit", 1, "without a handler")


async def test_a_publish_to_a_topic_that_production_would_not_have_is_refused_as_there(tmp_path: Path) -> None:
    app, production = emq.App("memory:"), emq.App(f"sqlite:///{tmp_path / 'emq.db'}")
    for each in (app, production):
        each.handler("orders.*")(ignore)
    async with production:
        as_there = [await refusal(call) for call in publishes(production)]
    async with Harness(app, start=START) as t:
        as_here = [await refusal(call) for call in publishes(app)]
        assert [place_left_out(one) for one in as_here] == [place_left_out(one) for one in as_there]
        with pytest.raises(errors.UnknownTopic) as raised:
            await t.publish("orders.acme", b"1")
        [note] = raised.value.__notes__
        assert "declare a family in the app" in note
        assert "create the topic in the test" in note
        assert t.published == []
        assert await app.catalog.list() == []


def publishes(app: emq.App) -> list[Callable[[], Awaitable[object]]]:
    """Every way by which an app publishes to `orders.acme`."""

    async def sent() -> object:
        [outcome] = await app.send([Outgoing("orders.acme", b"1")])
        assert isinstance(outcome, errors.EMQError)
        raise outcome

    return [
        lambda: app.publish("orders.acme", b"1"),
        lambda: app.publish("orders.acme", b"1", delay_ms=1000),
        lambda: app.publish_many("orders.acme", [b"1"]),
        lambda: app.schedule("orders.acme", b"1", every_s=10),
        sent,
    ]


async def refusal(call: Callable[[], Awaitable[object]]) -> str:
    with pytest.raises(errors.UnknownTopic) as raised:
        await call()
    return str(raised.value)


def place_left_out(text: str) -> str:
    return re.sub(r" \(store .*?\)", "", text)


async def test_a_topic_that_the_test_creates_takes_the_next_message_of_each_kind() -> None:
    app = emq.App("memory:")
    async with Harness(app, start=START):
        for number, call in enumerate(publishes(app)):
            await refusal(call)
            await app.create_topic("orders.acme", qps=10)
            if number < 4:
                await call()
            else:
                [outcome] = await app.send([Outgoing("orders.acme", b"1")])
                assert isinstance(outcome, str)
            await app.delete("orders.acme", force=True)


async def test_several_publishes_that_are_refused_together_have_one_note() -> None:
    app = emq.App("memory:")
    async with Harness(app, start=START):
        found = await asyncio.gather(*(app.publish("x", b"1") for _ in range(5)), return_exceptions=True)
        assert {len(one.__notes__) for one in found if isinstance(one, errors.UnknownTopic)} == {1}


async def test_a_change_of_a_topic_counts_at_once() -> None:
    app = app_with({"work": ignore})
    async with Harness(app, start=START) as t:
        await app.create_topic("work", qps=10)
        await t.publish("work", b"1")
        await app.admin.update("work", state=State.DRAINING)
        with pytest.raises(errors.TopicClosed):
            await t.publish("work", b"2")


async def test_an_app_that_does_not_come_to_rest_is_told_what_is_left() -> None:
    app = app_with({})

    @app.handler("endless")
    async def endless(message: emq.Message) -> None:
        await app.publish("endless", b"again")

    @app.handler("stuck")
    async def stuck(message: emq.Message) -> None:
        await asyncio.Event().wait()

    async with Harness(app, start=START) as t:
        await app.create_topic("endless", qps=50)
        await app.create_topic("stuck", qps=50)
        await t.publish("endless", b"1")
        with pytest.raises(
            NotSettled, match=r"not at rest after 5 s of virtual time; left: endless: 1 (ready|in flight)"
        ):
            await t.settled(within_s=5)
        await app.admin.update("endless", state=State.PAUSED)
        await t.publish("stuck", b"1")
        await t.advance(1)
        with pytest.raises(NotSettled, match="stuck: 1 in flight"):
            await t.settled(within_s=5)


async def test_a_test_is_exactly_repeatable() -> None:
    async def sometimes(message: emq.Message) -> None:
        await asyncio.sleep(0.123)
        if (message.attempt + len(message.payload)) % 3:
            raise ValueError("no")

    async def story() -> list[object]:
        app = app_with({"a": sometimes, "b": sometimes})
        async with Harness(app, start=START) as t:
            await app.create_topic("a", qps=50)
            await app.create_topic("b", qps=50)
            for i in range(20):
                await t.publish("ab"[i % 2], b"x" * i)
                await asyncio.sleep(0.01)
            await t.drained()
            failures = [(f.message.payload, f.message.attempt, f.again_at, f.message.started_us) for f in t.failures]
            return [t.now, *failures, *((m.payload, m.started_us) for m in t.delivered)]

    first = await story()
    assert len(first) > 40
    assert await story() == first


async def test_the_app_is_left_as_it_was() -> None:
    app = app_with({"orders.*": ignore})
    parts = {name: getattr(app, name) for name in ("settings", "clock", "trail", "_open_database")}
    for _ in range(2):
        async with Harness(app, start=START) as t:
            await t.publish("orders.acme", b"1")
            await t.settled()
            assert len(t.delivered) == 1
    assert {name: getattr(app, name) for name in parts} == parts
    assert "find" not in vars(app.handlers)
    loop: Any = asyncio.get_running_loop()
    assert "select" not in vars(loop._selector)
    began, began_s = loop.time(), time.monotonic()
    await asyncio.sleep(0.05)
    assert loop.time() - began == pytest.approx(time.monotonic() - began_s, abs=0.02), "time is still virtual"


async def test_an_open_app_is_refused() -> None:
    app = emq.App("memory:")
    async with app:
        with pytest.raises(RuntimeError, match="the app is open already"):
            async with Harness(app):
                pass


async def test_a_handler_that_takes_too_long_is_a_failure() -> None:
    async def hang(message: emq.Message) -> None:
        await asyncio.sleep(3600)

    app = app_with({"hang": hang})
    async with Harness(app, start=START) as t:
        await app.create_topic("hang", qps=10, handler_timeout_s=30, max_attempts=1)
        await t.publish("hang", b"1")
        await t.settled()
        assert t.now - START < datetime.timedelta(seconds=35)
        [letter] = t.dead_letters
        assert letter.reason == "the handler took longer than 30 s"
