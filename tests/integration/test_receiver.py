"""Long poll: `receive` waits until enough is there or its time is up, under the quota, and settles one by one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from emq import App
from emq.groups.events import HostEvents
from emq.groups.receiver import Receiver
from emq.host.handlers import Handlers
from emq.host.host import Host
from emq.runtime import errors
from emq.topics.model import Topic
from support.rig import Rig
from support.virtual import virtual
from support.waiting import until


@contextlib.asynccontextmanager
async def polling(r: Rig, visibility_s: float = 30.0) -> AsyncIterator[tuple[Receiver, Host]]:
    """A host whose topics all go to one receiver."""
    receiver, handlers = Receiver(visibility_s), Handlers()
    handlers.bind_receiver("*", receiver)
    async with r.consuming(handlers) as host:
        receiver.on_wanted.append(host.work.dispatcher.wanted)
        yield receiver, host


@virtual
async def test_enough_messages_answer_at_once_and_too_few_when_the_time_is_up(r: Rig) -> None:
    await r.topic("t", 1000)
    async with polling(r) as (receiver, host):
        await asyncio.sleep(2)
        begin = r.clock.now()
        assert await receiver.receive(timeout_s=5) == []
        assert r.clock.now() - begin == pytest.approx(5, abs=0.01)
        await r.producer.publish_many("t", ["a", "b"])
        begin = r.clock.now()
        two = await receiver.receive(min_messages=3, timeout_s=2)
        assert sorted(d.payload for d in two) == [b"a", b"b"]
        assert r.clock.now() - begin == pytest.approx(2, abs=0.01)
        asking = asyncio.create_task(receiver.receive(min_messages=3, timeout_s=60))
        await asyncio.sleep(1)
        assert not asking.done()
        begin = r.clock.now()
        await r.producer.publish_many("t", ["c", "d", "e"])
        three = await asking
        assert r.clock.now() - begin < 0.1
        assert len(three) == 3
        assert all(d.ack() for d in [*two, *three])
        await asyncio.sleep(2)
        assert host.work.dispatcher.flight.count == 0
        assert host.work.endings.succeeded == 5
    assert await r.lag("t") == 0


@virtual
async def test_nothing_is_started_that_nobody_waits_for(r: Rig) -> None:
    await r.topic("t", 1000)
    await r.producer.publish_many("t", [b"%d" % i for i in range(50)])
    async with polling(r) as (receiver, host):
        await asyncio.sleep(3)
        assert host.work.dispatcher.started == 0
        got = await receiver.receive(max_messages=10, timeout_s=1)
        assert 1 <= len(got) <= 10
        await asyncio.sleep(1)
        assert host.work.dispatcher.started == len(got)
        for delivery in got:
            delivery.ack()


@virtual
async def test_over_quota_a_request_waits_for_the_quota(r: Rig) -> None:
    await r.topic("t", 5)
    await r.producer.publish_many("t", [b"%d" % i for i in range(12)])
    async with polling(r) as (receiver, _host):
        await asyncio.sleep(1.5)
        begin = r.clock.now()
        got = await receiver.receive(min_messages=12, timeout_s=30)
        assert len(got) == 12
        assert 1.0 < r.clock.now() - begin < 3.1
        per_second: dict[int, int] = {}
        for delivery in got:
            second = delivery.message.started_us // 1_000_000
            per_second[second] = per_second.get(second, 0) + 1
            delivery.ack()
        assert max(per_second.values()) <= 5


@virtual
async def test_what_is_not_settled_in_time_is_delivered_again_and_its_late_ack_changes_nothing(r: Rig) -> None:
    await r.topic("t", 100, backoff_s=(0.0,))
    await r.producer.publish("t", "x")
    async with polling(r, visibility_s=5.0) as (receiver, host):
        [first] = await receiver.receive(timeout_s=5)
        assert first.extend(8.0)
        begin = r.clock.now()
        [again] = await receiver.receive(timeout_s=30)
        assert r.clock.now() - begin == pytest.approx(8.0, abs=0.1)
        assert (again.payload, again.message.attempt) == (b"x", 2)
        assert not first.ack()
        assert not first.extend()
        assert again.ack()
        await asyncio.sleep(1)
        assert host.work.dispatcher.flight.count == 0


@virtual
async def test_nack_tries_again_when_asked_to_or_buries(r: Rig) -> None:
    await r.topic("t", 100, kind="priority", slots=1, ordering="none")
    await r.producer.publish_many("t", ["again", "bad"], scores=[20, 19])
    async with polling(r) as (receiver, _host):
        first, second = await receiver.receive(min_messages=2, timeout_s=5)
        assert first.nack("busy", after_s=4.0)
        assert second.nack("malformed", dead=True)
        begin = r.clock.now()
        [third] = await receiver.receive(timeout_s=30)
        assert r.clock.now() - begin == pytest.approx(4.0, abs=0.1)
        assert third.payload == b"again"
        third.ack()
        await asyncio.sleep(0.5)
    [lag] = await r.admin.slot_lag([await r.catalog.get("t")])
    assert (lag.ready, lag.delayed, lag.claimed, lag.dead) == (0, 0, 0, 1)


@virtual
async def test_a_cancelled_request_leaves_what_it_gathered_to_the_next(r: Rig) -> None:
    await r.topic("t", 100)
    async with polling(r) as (receiver, host):
        asking = asyncio.create_task(receiver.receive(min_messages=5, timeout_s=60))
        await r.producer.publish_many("t", ["a", "b"])
        await until(lambda: host.work.dispatcher.started == 2)
        asking.cancel()
        await asyncio.sleep(0)
        got = await receiver.receive(min_messages=2, timeout_s=1)
        assert sorted(d.payload for d in got) == [b"a", b"b"]
        assert receiver.wanted == 0
        for delivery in got:
            delivery.ack()


async def test_an_app_that_is_no_host_becomes_one_when_it_first_receives() -> None:
    async with App("memory:", database="sqlite://") as app:
        await app.create_topic("t", 100)
        await app.publish("t", "hello")
        [delivery] = await app.receive("t", min_messages=1, timeout_s=5)
        assert delivery.payload == b"hello"
        delivery.ack()
        with pytest.raises(errors.UnknownTopic):
            await app.receive("nope", timeout_s=1)
        with pytest.raises(errors.InvalidSettings):
            await app.receive("t", min_messages=0)


async def test_the_first_receives_may_come_at_the_same_time() -> None:
    async with App("memory:", database="sqlite://") as app:
        await app.create_topic("t", 100)
        await app.publish("t", "hello")
        answers = await asyncio.gather(*(app.receive("t", timeout_s=1.5) for _ in range(3)))
        assert [d.payload for answer in answers for d in answer] == [b"hello"]
        assert all(d.ack() for answer in answers for d in answer)


async def test_whoever_receives_hears_that_the_host_has_ended() -> None:
    async with App("memory:", database="sqlite://") as app:
        await app.create_topic("t", 100)
        await app.receive("t", timeout_s=0)
        assert app.host is not None

        def taken(*_: object) -> None:
            raise errors.HostConflict("another host has this store")

        app.host.reports.ready = taken  # type: ignore[method-assign]
        app.host.reports.broken = lambda loop, group, failure: HostEvents().broken(
            loop, group, failure
        )  # its loop meets it
        await app.publish("t", "hello")
        await asyncio.sleep(0.1)
        with pytest.raises(errors.HostConflict, match="another host"):
            await app.receive("t", timeout_s=1)


async def test_an_app_that_closes_or_is_closed_becomes_no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answered = asyncio.Event(), asyncio.Event()
    async with asyncio.timeout(60):
        async with App(store="memory:") as app:
            await app.create_topic("t", qps=100)
            get = app.catalog.get

            async def slow(topic: str) -> Topic:
                found = await get(topic)
                asked.set()
                await answered.wait()
                return found

            @app.on_shutdown
            async def answer() -> None:
                answered.set()
                await asyncio.wait([receiving])

            monkeypatch.setattr(app.catalog, "get", slow)
            receiving = asyncio.create_task(app.receive("t", timeout_s=1))
            await asked.wait()
        for late in (receiving, app.receive("t", timeout_s=1), app.run()):
            with pytest.raises(errors.WrongState, match="the App is not open"):
                await late
        async with app, app.running() as host:
            assert app.host is host, "it may be opened again"


@virtual
async def test_the_time_to_settle_runs_from_when_a_message_is_received(r: Rig) -> None:
    await r.topic("t", 100, backoff_s=(0.0,))
    async with polling(r, visibility_s=5.0) as (receiver, _host):
        await r.producer.publish_many("t", ["a", "b"])
        got = await receiver.receive(min_messages=4, timeout_s=60)  # gathers two for a minute
        assert sorted(d.payload for d in got) == [b"a", b"b"]
        assert {d.message.attempt for d in got} == {1}
        await asyncio.sleep(4.9)
        assert got[0].ack()
        await asyncio.sleep(0.2)
        assert not got[1].ack()
        [again] = await receiver.receive(timeout_s=5)
        assert again.message.attempt == 2
        again.ack()


@virtual
async def test_a_cancelled_request_gives_what_it_gathered_to_others_who_wait(r: Rig) -> None:
    await r.topic("t", 100)
    async with polling(r) as (receiver, host):
        first = asyncio.create_task(receiver.receive(min_messages=5, timeout_s=60))
        await asyncio.sleep(0)
        second = asyncio.create_task(receiver.receive(timeout_s=20))
        await r.producer.publish_many("t", ["a", "b"])
        await until(lambda: host.work.dispatcher.started == 2)
        first.cancel()
        begin = r.clock.now()
        got = await second
        assert sorted(d.payload for d in got) == [b"a", b"b"]
        assert r.clock.now() - begin < 0.1
        assert receiver.wanted == 0
        assert all(d.ack() for d in got)


@virtual
async def test_what_timed_out_before_anybody_received_it_is_not_handed_out(r: Rig) -> None:
    await r.topic("t", 100, handler_timeout_s=3.0, backoff_s=(4.0,), jitter=0.0)
    async with polling(r) as (receiver, host):
        await r.producer.publish("t", "x")
        asking = asyncio.create_task(receiver.receive(min_messages=2, max_messages=5, timeout_s=5))
        await until(lambda: host.work.dispatcher.started == 1)
        assert receiver.wanted == 4
        await asyncio.sleep(3.5)
        assert receiver.wanted == 5
        assert await asking == []
        assert receiver.wanted == 0
        [again] = await receiver.receive(timeout_s=10)
        assert again.message.attempt == 2
        assert again.ack()


@virtual
async def test_what_a_cancelled_request_left_is_not_late_while_the_next_one_gathers(r: Rig) -> None:
    await r.topic("t", 100, backoff_s=(0.0,))
    async with polling(r, visibility_s=5.0) as (receiver, host):
        asking = asyncio.create_task(receiver.receive(min_messages=5, timeout_s=60))
        await r.producer.publish("t", "x")
        await until(lambda: host.work.dispatcher.started == 1)
        asking.cancel()
        await asyncio.sleep(1)
        [delivery] = await receiver.receive(min_messages=2, timeout_s=20)
        assert delivery.message.attempt == 1
        assert delivery.ack()
