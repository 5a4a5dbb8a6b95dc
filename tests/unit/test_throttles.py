"""A handler closes its topic on this host, or slows the topic down: what starts, and when."""

import asyncio
import collections
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import emq
from emq.quota.counter import WindowCounter
from emq.quota.throttle import PROBE_AGAIN_S, Throttle, ThrottledCounter
from emq.runtime import errors
from emq_testing import Harness


def app_with(handler: Callable[[emq.Message], object]) -> emq.App:
    app = emq.App("memory:")
    app.handlers.bind("*", handler)
    return app


async def ignore(message: emq.Message) -> None:
    pass


class Starts:
    """Notes the seconds at which messages start, by topic."""

    def __init__(self) -> None:
        self.at: dict[str, list[float]] = collections.defaultdict(list)

    async def note(self, message: emq.Message) -> None:
        self.at[message.topic].append(message.started_us / 1e6)


@contextlib.asynccontextmanager
async def begun(qps: float = 10.0, **options: Any) -> AsyncIterator[tuple[emq.App, Harness, list[float]]]:
    """An app whose topic `t` has started its first message, and the seconds at which messages of it start."""
    starts = Starts()
    app = app_with(starts.note)
    async with Harness(app) as t:
        await app.create_topic("t", qps=qps, **options)
        await t.publish("t", b"first")
        await t.settled()
        yield app, t, starts.at["t"]


async def test_a_closed_topic_parks_its_messages_and_no_other_topics() -> None:
    starts = Starts()

    async def handle(message: emq.Message) -> None:
        await starts.note(message)
        if message.topic == "sick" and len(starts.at["sick"]) == 1:
            app.throttles.close("sick", 30.0, "the endpoint asked for 30 s")
            raise emq.Retry("503", after_s=1.0)

    app = app_with(handle)
    async with Harness(app) as t:
        for name in ("sick", "well"):
            await app.create_topic(name, qps=5)
        for i in range(20):
            await t.publish("sick", b"%d" % i)
            await t.publish("well", b"%d" % i)
        await t.advance(25)
        assert len(starts.at["well"]) == 20
        assert 1 <= len(starts.at["sick"]) <= 5, "the visit under way may end"
        before = len(starts.at["sick"])

        await t.advance(20)
        assert len(starts.at["sick"]) == before + 1, "a probe, and nothing after it"

        app.throttles.open("sick")
        await t.drained()
        assert sorted(m.payload for m in t.delivered if m.topic == "sick") == sorted(b"%d" % i for i in range(20))
        assert sum(m.attempt for m in t.delivered if m.topic == "sick") == 21, "the wait cost no attempt"


async def test_messages_of_a_closed_topic_start_in_their_order() -> None:
    order: list[bytes] = []

    async def handle(message: emq.Message) -> None:
        if not order:
            app.throttles.close(message.topic, 5.0, "busy")
        order.append(message.payload)

    app = app_with(handle)
    async with Harness(app) as t:
        await app.create_topic("t", qps=10)
        for i in range(30):
            await t.publish("t", b"%02d" % i)
        await t.advance(8)
        app.throttles.open("t")
        await t.settled()
        assert order == sorted(order)
        assert len(order) == 30


async def test_a_limited_topic_starts_at_its_rate_and_never_above_its_quota() -> None:
    starts = Starts()
    app = app_with(starts.note)
    async with Harness(app) as t:
        await app.create_topic("slow", qps=10)
        await app.create_topic("capped", qps=3)
        await t.publish("slow", b"first")
        await t.publish("capped", b"first")
        await t.settled()
        app.throttles.limit("slow", 2.0, "it answers slowly")
        app.throttles.limit("capped", 100.0, "more than its quota")
        for _ in range(60):
            await t.publish("slow", b"")
            await t.publish("capped", b"")
        await t.advance(10)
        assert 19 <= len(starts.at["slow"]) - 1 <= 22
        per_second = collections.Counter(int(at) for at in starts.at["capped"])
        assert max(per_second.values()) == 3

        app.throttles.open("slow")
        await t.advance(4)
        assert len(starts.at["slow"]) == 61


async def test_a_paused_topic_that_is_resumed_keeps_its_throttle() -> None:
    async with begun() as (app, t, starts):
        app.throttles.close("t", 60.0, "closed")
        await app.update_topic("t", qps=20)
        for _ in range(5):
            await t.publish("t", b"")
        await t.advance(30)
        assert len(starts) == 1
        [(name, throttle)] = app.throttles
        assert (name, throttle.reason) == ("t", "closed")
        app.throttles.open("t")
        await t.settled()
        assert len(starts) == 6
        assert not list(app.throttles)


async def test_a_sorted_topic_that_is_closed_leaves_its_members_where_they_merge() -> None:
    starts = Starts()
    app = app_with(starts.note)
    async with Harness(app) as t:
        await app.create_topic("prices", qps=10, kind="priority", slots=1)
        await t.publish("prices", b"first", priority=20)
        await t.settled()
        app.throttles.close("prices", 60.0, "closed")
        for _ in range(3):
            await t.publish("prices", b"same", priority=20)
        await t.advance(30)
        assert len(starts.at["prices"]) == 1
        app.throttles.open("prices")
        await t.settled()
        assert [m.payload for m in t.delivered] == [b"first", b"same"]


async def test_the_topic_of_a_host_that_is_not_here_is_ignored() -> None:
    app = app_with(ignore)
    async with Harness(app):
        app.throttles.close("elsewhere", 5.0, "")
        app.throttles.limit("elsewhere", 5.0, "")
        app.throttles.open("elsewhere")
        assert app.throttles.of("elsewhere") is None
        assert app.throttles.quota("elsewhere") == 0.0
        for wrong in (-1.0, float("nan"), 1e12):
            with pytest.raises(errors.InvalidSettings, match="cannot be closed"):
                app.throttles.close("elsewhere", wrong, "")
        for wrong in (0.0, float("nan"), float("inf")):
            with pytest.raises(errors.InvalidSettings, match="cannot be limited"):
                app.throttles.limit("elsewhere", wrong, "")


async def test_an_app_without_a_host_says_so() -> None:
    async with emq.App("memory:") as app:
        with pytest.raises(errors.InvalidSettings, match="runs no host"):
            app.throttles  # noqa: B018


def test_a_probe_that_nobody_speaks_of_is_followed_by_another_one() -> None:
    throttle = Throttle()
    throttle.close(110.0, "", 100.0)
    counter = ThrottledCounter(WindowCounter(10, 90.0), throttle)
    assert counter.reserve(5, 109.9) == 0
    assert counter.next_at(109.9) == 110.0
    assert counter.reserve(5, 110.0) == 1
    assert counter.reserve(5, 110.0) == 0
    assert counter.next_at(110.5) == 110.0 + PROBE_AGAIN_S
    counter.release(1, 110.0)  # the grant found no message
    assert counter.reserve(5, 111.0) == 1
    counter.release(1, 110.0)  # a grant from before that probe
    assert counter.reserve(5, 111.5) == 0


def test_a_limit_below_one_a_second_starts_one_now_and_then() -> None:
    throttle = Throttle()
    throttle.limit(0.25, "", 100.0)
    counter = ThrottledCounter(WindowCounter(10, 90.0), throttle)
    at = [now / 10 for now in range(1000, 1400) if counter.reserve(5, now / 10)]
    assert len(at) in (9, 10)
    assert all(later - earlier >= 3.9 for earlier, later in itertools.pairwise(at))


def test_two_groups_share_one_throttle() -> None:
    throttle = Throttle()
    throttle.limit(10.0, "", 100.0)
    one, two = (ThrottledCounter(WindowCounter(50, 90.0), throttle) for _ in range(2))
    started = sum(c.reserve(50, 100 + i / 100) for i in range(1000) for c in (one, two))
    assert 99 <= started <= 101


async def test_a_closed_topic_of_many_groups_costs_nothing_while_it_waits() -> None:
    async with begun(500.0, group_qps=5.0) as (app, t, _):
        app.throttles.close("t", 3600.0, "closed")
        for _ in range(200):
            await t.publish("t", b"")
        assert app.host is not None
        await t.advance(10)
        reserved = sum(group.counter.reserved for group in app.host.ownership.groups.values())
        await t.advance(600)
        assert reserved == sum(group.counter.reserved for group in app.host.ownership.groups.values()) == 1
        assert len(app.host.work.dispatcher.parking) == 100
        app.throttles.open("t")
        await t.settled()
        assert len(t.delivered) == 201


async def test_the_snapshot_names_closed_and_limited_topics() -> None:
    async def handle(message: emq.Message) -> None:
        if message.topic == "a":
            app.throttles.close("a", 60.0, "HTTP 503")
        elif message.topic == "b":
            app.throttles.limit("b", 2.5, "slow")

    app = app_with(handle)
    async with Harness(app) as t:
        for name in "abc":
            await app.create_topic(name, qps=10)
            for _ in range(12):
                await t.publish(name, b"")
        await t.advance(3)
        assert app.host is not None
        found = app.host.statistics()
        assert (found.closed, found.limited) == (1, 1)
        told = {topic.name: topic for topic in found.throttled}
        assert (told["a"].rate, told["a"].reason) == (None, "HTTP 503")
        assert (told["b"].rate, told["b"].reason) == (2.5, "slow")
        assert told["a"].until - told["a"].since == pytest.approx(60.0)


@pytest.mark.parametrize(("way", "batch_size"), [("close", 1), ("limit", 1), ("close", 5)])
async def test_a_closed_topic_starts_nothing_more_of_the_visit_under_way(way: str, batch_size: int) -> None:
    calls = 0

    async def handle(_: object) -> None:
        nonlocal calls
        calls += 1
        if way == "close":
            app.throttles.close("t", 30.0, "no more")
        else:
            app.throttles.limit("t", 0.01, "hardly any more")

    app = emq.App("memory:")
    app.handlers.bind("t", handle, batch_size=batch_size)
    async with Harness(app) as t:
        await app.create_topic("t", qps=100, group_qps=100.0)
        await app.publish_many("t", [b""] * 50)
        await t.advance(20)
        assert calls == 1


async def test_a_closed_topic_starts_nothing_more_of_the_volley_under_way() -> None:
    starts = Starts()
    waits = True

    async def handle(message: emq.Message) -> None:
        await starts.note(message)
        if waits:
            await asyncio.sleep(0.01)
        else:
            app.throttles.close("t", 30.0, "no more")

    app = app_with(handle)
    async with Harness(app) as t:
        await app.create_topic("t", qps=100, group_qps=100.0)
        await app.publish_many("t", [b""] * 50)
        await t.settled()
        waits = False
        await app.publish_many("t", [b""] * 50)
        await t.advance(20)
        assert len(starts.at["t"]) == 51


async def test_a_limit_that_rises_counts_at_once() -> None:
    async with begun() as (app, t, starts):
        for least in (1e-9, 5e-324):
            before = len(starts)
            app.throttles.limit("t", least, "nearly nothing")
            await app.publish_many("t", [b""] * 10)
            await t.advance(5)
            assert len(starts) <= before + 1, "a start that the former limit allowed"
            app.throttles.limit("t", 5.0, "some")
            await t.advance(5)
            assert len(starts) == before + 10


async def test_a_group_below_a_throttle_uses_what_others_leave() -> None:
    async with begun(20.0, group_qps=5.0) as (app, t, starts):
        app.throttles.limit("t", 15.0, "a little less")
        await app.publish_many("t", [b""] * 200, keys=["one"] * 200)
        await t.advance(2)
        before = len(starts)
        await t.advance(5)
        assert len(starts) - before >= 0.8 * 15 * 5


async def test_other_attributes_end_the_throttle_of_a_topic() -> None:
    async with begun(attributes={"url": "wrong"}) as (app, t, starts):
        app.throttles.close("t", 3600.0, "nobody there")
        await t.publish("t", b"second")
        await app.update_topic("t", attributes={"url": "right"})
        await t.advance(5)
        assert len(starts) == 2
        assert not list(app.throttles)


async def test_throttles_may_change_while_they_are_listed() -> None:
    app = app_with(ignore)
    async with Harness(app) as t:
        for name in ("a", "b"):
            await app.create_topic(name, qps=10)
            await t.publish(name, b"")
        await t.settled()
        app.throttles.close("a", 60.0, "")
        app.throttles.close("b", 60.0, "")
        for name, _ in app.throttles:
            app.throttles.open(name)
            await app.admin.delete(name, force=True)
            await t.advance(5)
        assert not list(app.throttles)


def test_starts_taken_back_from_before_the_throttle_make_no_burst() -> None:
    own = WindowCounter(100, 90.0)
    assert own.reserve(50, 100.0) == 50
    throttle = Throttle()
    throttle.limit(1.0, "", 100.0)
    counter = ThrottledCounter(own, throttle)
    counter.release(50, 100.0)
    assert counter.reserve(50, 100.0) <= 1
    throttle.limit(0.1, "", 101.0)
    throttle.close(102.0, "", 101.5)
    throttle.limit(0.1, "", 102.0)
    counter.release(1, 101.0)
    assert counter.reserve(50, 109.0) == 0


async def test_a_topic_that_is_closed_for_a_day_again_and_again_takes_no_memory() -> None:
    async with begun() as (app, t, _):
        app.throttles.close("t", 86_400.0, "closed")
        await t.publish("t", b"second")
        await t.advance(1)
        for i in range(500):
            app.throttles.close("t", 86_400.0 - i, "closed again")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert app.host is not None
        parking = app.host.work.dispatcher.parking
        assert len(parking) == 1
        assert len(parking._groups) == 1
        assert len(parking._deadlines) <= 100
        app.throttles.open("t")
        await t.settled()
        assert len(t.delivered) == 2


async def test_a_topic_that_was_paused_goes_on_as_before() -> None:
    starts = Starts()
    app = app_with(starts.note)
    async with Harness(app) as t:
        for name in ("free", "limited", "closed"):
            await app.create_topic(name, qps=10)
            await app.publish_many(name, [b""] * 300)
        await t.advance(2)
        app.throttles.limit("limited", 2.0, "slow answers")
        app.throttles.close("closed", 60.0, "closed")
        begin = t.now.timestamp()
        for name in ("free", "limited", "closed"):
            app.throttles.pause(name, 10.0, "no files")
        assert {name: throttle.reason for name, throttle in app.throttles} == {
            "free": "no files",
            "limited": "no files",
            "closed": "closed",
        }
        await t.advance(9.5)
        assert [name for name, at in starts.at.items() if max(at) > begin] == []
        await t.advance(20.5)
        after = {name: sum(at > begin for at in found) for name, found in starts.at.items()}
        assert after["free"] >= 180
        assert 35 <= after["limited"] <= 42
        assert after["closed"] == 0
        assert {name: throttle.reason for name, throttle in app.throttles} == {
            "limited": "slow answers",
            "closed": "closed",
        }


async def test_a_probe_that_is_given_back_counts_as_not_made() -> None:
    gives_back = True

    async def handle(message: emq.Message) -> None:
        if gives_back:
            raise emq.GiveBack("no files", pause_s=2.0)

    app = app_with(handle)
    async with Harness(app) as t:
        await app.create_topic("t", qps=10)
        await t.advance(1)
        app.throttles.close("t", 5.0, "out of order")
        await app.publish_many("t", [b""] * 20)
        await t.advance(6)
        gives_back = False
        await t.advance(3)
        assert [m.attempt for m in t.delivered] == [1], "the next probe came after the pause, not a minute later"
        assert not t.failures
