"""Handlers that fail, hang, and misbehave, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import math
import zlib
from collections import Counter

import pytest

from emq.observe import dead_letters
from emq.observe.dead_letters import Letter
from emq.runtime import errors
from emq.storage import message
from emq.storage.lane_store import LaneState
from emq.storage.message import Message
from support.rig import Rig, Seen, bound, rig, starts_per_second
from support.virtual import virtual
from support.waiting import until

pytestmark = virtual


async def letters(r: Rig, topic: str) -> list[Letter]:
    return [letter async for letter in dead_letters.find(r.store, await r.catalog.get(topic))]


async def test_a_failed_message_is_tried_again_by_the_schedule_with_its_last_error(r: Rig) -> None:
    async def fail(m: Message) -> None:
        if m.attempt < 4:
            raise ValueError(f"attempt {m.attempt}")

    await r.topic("orders", 50, backoff_s=(1.0, 3.0, 10.0), jitter=0.0)
    await r.producer.publish("orders", b"x", priority="high")
    seen = Seen(fail)
    async with r.consuming(seen):
        await until(lambda: len(seen) == 4)
        await asyncio.sleep(60)
    assert [d.attempt for d in seen.deliveries] == [1, 2, 3, 4]
    assert [d.error for d in seen.deliveries] == [None, *(f"ValueError: attempt {n}" for n in (1, 2, 3))]
    assert len(set(seen.ids)) == 1
    assert {d.priority for d in seen.deliveries} == {0}
    starts = [d.started_us / 1e6 for d in seen.deliveries]
    waits = [b - a for a, b in itertools.pairwise(starts)]
    assert waits == [pytest.approx(w, abs=0.05) for w in (1.0, 3.0, 10.0)]
    assert await r.lag("orders") == 0
    [slot] = await r.store.lanes.inspect(["orders/0"])
    assert slot == LaneState(0, 0, 0, None)


async def test_a_message_that_used_up_its_attempts_is_a_dead_letter_exactly_once_with_its_reason(r: Rig) -> None:
    async def fail(m: Message) -> None:
        raise ConnectionError("no route to host")

    await r.topic("orders", 50, max_attempts=3, backoff_s=(0.1,))
    [id_] = await r.producer.publish_many("orders", [b"poison"], priority="low")
    seen = Seen(fail)
    async with r.consuming(seen):
        await until(lambda: len(seen) == 3)
        await asyncio.sleep(5)
    assert len(seen) == 3
    [letter] = await letters(r, "orders")
    assert letter.id == id_
    assert letter.payload == b"poison"
    assert letter.priority == "low"
    assert letter.attempts == 3
    assert letter.reason == "ConnectionError: no route to host"
    assert await r.lag("orders") == 0


async def test_a_dead_letter_can_be_replayed_and_is_then_delivered_at_its_own_priority(r: Rig) -> None:
    broken = True

    async def fail_while_broken(m: Message) -> None:
        if broken:
            raise errors.Reject("broken")

    topic = await r.topic("orders", 50)
    await r.producer.publish("orders", b"x", priority="high")
    seen = Seen(fail_while_broken)
    async with r.consuming(seen):
        await until(lambda: len(seen) == 1)
        await asyncio.sleep(0.1)
        broken = False
        assert await dead_letters.replay(r.store, topic, clock=r.clock) == 1
        await until(lambda: len(seen) == 2)
    assert seen.deliveries[1][:1] == seen.deliveries[0][:1]
    assert seen.deliveries[1].attempt == 1
    assert seen.deliveries[1].priority == 0
    assert await letters(r, "orders") == []


async def test_whatever_comes_to_wait_in_a_lane_ranks_by_its_own_priority() -> None:
    async def fail(m: Message) -> None:
        raise ValueError("always")

    ranks: dict[str, set[tuple[int, int]]] = {}

    def look() -> None:
        for slot in r.world.lanes.values():
            for rank, heap in slot.waiting.items():
                for _, id_ in heap:
                    m = message.decode(slot.bodies[id_])
                    ranks.setdefault(m.payload.decode(), set()).add((rank, m.attempt))

    async with rig() as r:
        topic = await r.topic("orders", 1_000, backoff_s=(0.1, 0.1), max_attempts=3)
        await r.producer.publish("orders", b"failed", priority="low")
        await r.producer.publish("orders", b"delayed", priority="low", delay_ms=100)
        await r.producer.schedule("orders", b"planned", priority="low", every_s=0.2, repeat=3, delay_ms=100)
        async with r.consuming(Seen(fail)):
            for _ in range(300):
                look()
                await asyncio.sleep(0.01)
            assert await dead_letters.replay(r.store, topic, clock=r.clock) == 6
            look()
    assert ranks == {
        "failed": {(2, 1), (2, 2), (2, 3)},
        "delayed": {(2, 1), (2, 2), (2, 3)},
        "planned": {(2, 1), (2, 2), (2, 3)},
    }


async def test_the_handler_may_say_when_to_try_again_and_that_there_is_no_hope(r: Rig) -> None:
    async def judge(m: Message) -> None:
        if m.payload == b"hopeless":
            raise errors.Reject("unknown customer")
        if m.attempt == 1:
            raise errors.Retry("busy", after_s=7.5)

    await r.topic("orders", 50, backoff_s=(0.1,))
    await r.producer.publish_many("orders", [b"hopeless", b"later"])
    seen = Seen(judge)
    async with r.consuming(seen):
        await until(lambda: len(seen) == 3)
    later = [d for d in seen.deliveries if d.payload == b"later"]
    assert (later[1].started_us - later[0].started_us) / 1e6 == pytest.approx(7.5, abs=0.05)
    assert later[1].error == "busy"
    [letter] = await letters(r, "orders")
    assert (letter.payload, letter.reason, letter.attempts) == (b"hopeless", "rejected: unknown customer", 1)


async def test_a_batch_handler_may_fail_some_of_its_messages_only(r: Rig) -> None:
    batches: list[list[bytes]] = []

    async def handle(batch: list[Message]) -> None:
        batches.append([m.payload for m in batch])
        bad: dict[str, Exception] = {m.id: errors.Reject("bad") for m in batch if m.payload == b"reject"}
        bad |= {m.id: errors.Retry("again") for m in batch if m.payload == b"retry" and m.attempt == 1}
        if bad:
            raise errors.PartialFailure(bad)

    await r.topic("orders", 50, backoff_s=(0.5,))
    await r.producer.publish_many("orders", [b"good", b"reject", b"retry", b"good"])
    async with r.consuming(bound({"orders": handle}, batch_size=10)):
        await until(lambda: sum(map(len, batches)) == 5)
        await asyncio.sleep(0.5)
    assert batches == [[b"good", b"reject", b"retry", b"good"], [b"retry"]]
    assert [letter.reason for letter in await letters(r, "orders")] == ["rejected: bad"]
    assert await r.lag("orders") == 0


async def test_batches_stay_under_the_cap_and_the_batch_size(r: Rig) -> None:
    sizes: list[int] = []
    seen = Seen()

    async def handle(batch: list[Message]) -> None:
        sizes.append(len(batch))
        for m in batch:
            await seen.take(m)
        await asyncio.sleep(0.01)

    await r.topic("orders", 25)
    await r.producer.publish_many("orders", [b"x"] * 100)
    async with r.consuming(bound({"orders": handle}, batch_size=10)):
        await until(lambda: len(seen) == 100)
    assert max(sizes) == 10
    assert set(starts_per_second(seen.deliveries).values()) == {25}


async def test_a_batch_that_fails_as_a_whole_is_retried_message_by_message(r: Rig) -> None:
    seen = Seen()

    async def handle(batch: list[Message]) -> None:
        for m in batch:
            await seen.take(m)
        if batch[0].attempt == 1:
            raise RuntimeError("all of it")

    await r.topic("orders", 50, backoff_s=(0.5,))
    sent = await r.producer.publish_many("orders", [b"x"] * 7)
    async with r.consuming(bound({"orders": handle}, batch_size=10)):
        await until(lambda: len(seen) == 14)
    assert sorted(seen.ids[7:]) == sorted(sent)


async def test_a_handler_that_raises_cancelled_error_itself_has_failed(r: Rig) -> None:
    async def cancelled(m: Message) -> None:
        if m.attempt == 1:
            raise asyncio.CancelledError
        if m.attempt == 2:
            await asyncio.sleep(0.01)
            raise asyncio.CancelledError("after a wait")

    await r.topic("orders", 50, backoff_s=(0.1,))
    await r.producer.publish("orders", b"x")
    seen = Seen(cancelled)
    async with r.consuming(seen):
        await until(lambda: len(seen) == 3)
    assert await r.lag("orders") == 0


async def test_a_handler_that_awaits_a_cancelled_task_has_failed(r: Rig) -> None:
    async def waits(m: Message) -> None:
        inner = asyncio.ensure_future(asyncio.sleep(10))
        asyncio.get_running_loop().call_later(0.01, inner.cancel)
        if m.attempt == 1:
            await inner

    await r.topic("orders", 50, backoff_s=(0.1,))
    await r.producer.publish("orders", b"x")
    seen = Seen(waits)
    async with r.consuming(seen):
        await until(lambda: len(seen) == 2)
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("suspend", [False, True])
async def test_a_handler_that_cancels_its_own_task_has_failed_and_harms_nobody(r: Rig, suspend: bool) -> None:
    async def suicidal(m: Message) -> None:
        if m.payload == b"suicidal" and m.attempt == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            if suspend:
                await asyncio.sleep(1)
            raise asyncio.CancelledError

    await r.topic("orders", 50, backoff_s=(0.1,))
    await r.producer.publish_many("orders", [b"x", b"suicidal", b"x", b"x"])
    seen = Seen(suicidal)
    async with r.consuming(seen):
        await until(lambda: len(seen) == 5)
        await asyncio.sleep(0.1)
    assert await r.lag("orders") == 0


async def test_timeouts_inside_a_handler_mean_what_they_say(r: Rig) -> None:
    outcomes: list[str] = []

    async def impatient(m: Message) -> None:
        try:
            async with asyncio.timeout(0.05):
                await asyncio.sleep(10)
        except TimeoutError:
            outcomes.append("timed out")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(10), 0.05)

    await r.topic("orders", 50)
    await r.producer.publish_many("orders", [b"x"] * 20)
    async with r.consuming(Seen(impatient)) as host:
        await until(lambda: host.work.endings.succeeded == 20)
    assert outcomes == ["timed out"] * 20
    assert host.work.endings.failed == 0


async def test_a_timeout_of_the_handlers_own_that_escapes_is_a_failure_not_a_cancellation(r: Rig) -> None:
    async def gives_up(m: Message) -> None:
        async with asyncio.timeout(0.05):
            await asyncio.sleep(10)

    await r.topic("orders", 50, max_attempts=1)
    await r.producer.publish("orders", b"x")
    async with r.consuming(Seen(gives_up)) as host:
        await until(lambda: host.work.settler.dead == 1)
    assert [letter.reason for letter in await letters(r, "orders")] == ["TimeoutError"]


async def test_a_handler_past_its_timeout_is_cancelled_and_the_attempt_has_failed(r: Rig) -> None:
    cancelled: list[bytes] = []

    async def slow_at_first(m: Message) -> None:
        try:
            await asyncio.sleep(100 if m.attempt == 1 else 0.01)
        except asyncio.CancelledError:
            cancelled.append(m.payload)
            raise

    await r.topic("orders", 50, handler_timeout_s=0.5, backoff_s=(0.1,))
    await r.producer.publish("orders", b"x")
    seen = Seen(slow_at_first)
    async with r.consuming(seen):
        await until(lambda: len(seen) == 2)
    assert cancelled == [b"x"]
    assert seen.deliveries[1].error == "the handler took longer than 0.5 s"


async def test_a_topic_whose_handler_hangs_fills_its_own_room_only(r: Rig) -> None:
    async def hang(m: Message) -> None:
        if m.topic == "bad":
            await asyncio.sleep(10_000)

    await r.topic("bad", 500, max_in_flight=20)
    await r.topic("good", 20)
    await r.producer.publish_many("bad", [b"x"] * 1_000)
    await r.producer.publish_many("good", [b"x"] * 100)
    seen = Seen(hang)
    async with r.consuming(seen, drain_s=0.1) as host:
        await until(lambda: len(seen.of("good")) == 100)
        assert len(seen.of("bad")) == 20
        assert host.work.dispatcher.flight.count == 20
    assert set(starts_per_second(seen.of("good")).values()) == {20}
    assert await r.lag("bad") == 1_000
    assert await r.lag("good") == 0


async def test_at_most_max_in_flight_handlers_of_a_topic_run_and_the_host_has_a_bound_too(r: Rig) -> None:
    async def slow(m: Message) -> None:
        await asyncio.sleep(0.05)

    await r.topic("orders", 500, max_in_flight=7)
    await r.producer.publish_many("orders", [b"x"] * 300)
    seen = Seen(slow)
    async with r.consuming(seen):
        await until(lambda: len(seen) == 300)
    assert seen.most_running == 7

    for i in range(5):
        await r.topic(f"other.{i}", 500)
        await r.producer.publish_many(f"other.{i}", [b"x"] * 50)
    seen = Seen(slow)
    async with r.consuming(seen, max_in_flight=11):
        await until(lambda: len(seen) == 250)
    assert seen.most_running == 11


async def test_a_group_that_is_out_of_quota_does_not_keep_the_room_from_its_sister(r: Rig) -> None:
    async def slow(m: Message) -> None:
        await asyncio.sleep(0.01)

    await r.topic("orders", 40, group_qps=20, max_in_flight=1)
    first, second = "a", next(k for k in "bcdefgh" if zlib.crc32(k.encode()) % 2 != zlib.crc32(b"a") % 2)
    seen = Seen(slow)
    async with r.consuming(seen):
        await asyncio.sleep(2 - r.clock.now() % 1)
        now = int(r.clock.now())
        await r.producer.publish_many("orders", [b"x"] * 15, key=first)
        await until(lambda: len(seen) == 15)
        await r.producer.publish_many("orders", [b"x"] * 40, key=first)
        await r.producer.publish_many("orders", [b"x"] * 40, key=second)
        await until(lambda: len(seen) == 95)
    by_group = Counter(d.group for d in seen.deliveries if d.started_us // 1_000_000 == now)
    assert by_group.total() == 40
    assert min(by_group[0], by_group[1]) >= 12


async def test_a_failing_topic_does_not_delay_another(r: Rig) -> None:
    async def fail(m: Message) -> None:
        if m.topic == "bad":
            raise ValueError("no")

    await r.topic("bad", 500, backoff_s=(0.05,), max_attempts=50)
    await r.topic("good", 20)
    await r.producer.publish_many("bad", [b"x"] * 500)
    seen = Seen(fail)
    async with r.consuming(seen):
        await asyncio.sleep(2)
        for _ in range(20):
            published = r.clock.now()
            await r.producer.publish("good", b"x")
            have = len(seen.of("good"))
            await until(lambda have=have: len(seen.of("good")) > have)  # type: ignore[misc]
            assert seen.of("good")[-1].started_us / 1e6 - published < 0.02
            await asyncio.sleep(0.1)


async def test_a_retry_keeps_its_key_serial(r: Rig) -> None:
    running = 0

    async def slow(m: Message) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0.03)
        running -= 1
        if m.attempt == 1 and int(m.payload) % 3 == 0:
            raise ValueError("later")

    await r.topic("orders", 50, backoff_s=(0.05,))
    await r.producer.publish_many("orders", [b"%d" % i for i in range(30)], key="k")
    seen = Seen(slow)
    async with r.consuming(seen):
        await until(lambda: len(seen) == 40)
    firsts = [int(d.payload) for d in seen.deliveries if d.attempt == 1]
    assert firsts == sorted(firsts)
    assert not any("AssertionError" in (d.error or "") for d in seen.deliveries)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("kind", ["log", "range_merge"])
@pytest.mark.parametrize(
    "failure",
    [Unspeakable(), ValueError("\udc80 of a file's name"), errors.Reject("\udc80"), errors.Retry(after_s=math.inf)],
    ids=["unspeakable", "surrogate", "reject", "never"],
)
async def test_a_failure_of_any_kind_is_the_messages_own(
    r: Rig, failure: Exception, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(m: Message) -> None:
        if m.payload == b"bad":
            raise failure

    await r.topic("t", 20, kind=kind, **({} if kind == "log" else {"time_range_ms": 10}))
    seen = Seen(fails)
    async with r.consuming(seen) as host:
        await r.producer.publish("t", "bad")
        await until(lambda: len(seen) >= 1)
        await r.producer.publish("t", "good")
        await until(lambda: b"good" in seen.payloads)
        await until(lambda: host.work.dispatcher.flight.count == 0)
    assert caplog.text.encode(), "a log file takes it"


@pytest.mark.parametrize("failures", [None, ["x"]])
async def test_a_batch_handler_that_says_nonsense_of_its_messages_has_failed_them_all(r: Rig, failures: object) -> None:
    seen: list[bytes] = []

    async def handle(batch: list[Message]) -> None:
        seen.extend(m.payload for m in batch)
        raise errors.PartialFailure(failures)  # type: ignore[arg-type]

    await r.topic("t", 20, backoff_s=(0.5,), max_attempts=2)
    await r.producer.publish("t", "x")
    async with r.consuming(bound({"*": handle}, batch_size=3)):
        await until(lambda: len(seen) == 2)
        await asyncio.sleep(1)
    assert len(await letters(r, "t")) == 1
