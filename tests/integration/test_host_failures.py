"""Handlers that fail, hang, and misbehave, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from emq.observe import dead_letters
from emq.observe.dead_letters import Letter
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


async def raise_cancelled() -> None:
    raise asyncio.CancelledError


async def wait_and_raise_cancelled() -> None:
    await asyncio.sleep(0.01)
    raise asyncio.CancelledError("after a wait")


async def await_a_cancelled_task() -> None:
    inner = asyncio.ensure_future(asyncio.sleep(10))
    asyncio.get_running_loop().call_later(0.01, inner.cancel)
    await inner


async def cancel_its_own_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    raise asyncio.CancelledError


async def cancel_its_own_task_and_wait() -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await cancel_its_own_task()
    await asyncio.sleep(1)


@pytest.mark.parametrize(
    "how",
    [
        raise_cancelled,
        wait_and_raise_cancelled,
        await_a_cancelled_task,
        cancel_its_own_task,
        cancel_its_own_task_and_wait,
    ],
)
async def test_a_handler_that_ends_as_if_cancelled_has_failed_and_harms_nobody(
    r: Rig, how: Callable[[], Awaitable[None]]
) -> None:
    async def handle(m: Message) -> None:
        if m.payload == b"cancelled" and m.attempt == 1:
            await how()

    await r.topic("orders", 50, backoff_s=(0.1,))
    await r.producer.publish_many("orders", [b"x", b"cancelled", b"x", b"x"])
    seen = Seen(handle)
    async with r.consuming(seen):
        await until(lambda: len(seen) == 5)
        await asyncio.sleep(0.1)
    assert await r.lag("orders") == 0


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
