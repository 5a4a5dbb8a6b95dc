"""Many topics hang at once: the others get their places, threads and bytes all the same."""

from __future__ import annotations

import asyncio

import pytest

from emq.host.host import Host
from emq.storage.message import Message
from support.rig import Rig, Seen, starts_per_second
from support.virtual import virtual

pytestmark = virtual

HANDLED_S = 0.05


async def hang_or_work(m: Message) -> None:
    await asyncio.sleep(10_000 if m.topic.startswith("hung") else HANDLED_S)


async def load(r: Rig, topics: list[str], rate_per_s: int, seconds: int) -> None:
    """Publish to each topic `rate_per_s` messages a second, all topics in each tenth of one."""
    for tick in range(seconds * 10):
        for i, name in enumerate(topics):
            due = (tick + 1 + i % 10) * rate_per_s // 10 - (tick + i % 10) * rate_per_s // 10
            if due:
                await r.producer.publish_many(name, [b"x"] * due)
        await asyncio.sleep(0.1)


def late(seen: Seen, topic: str) -> list[float]:
    return [(d.started_us - d.ready_us) / 1e6 for d in seen.of(topic)]


@pytest.mark.parametrize(
    ("hung", "qps", "places"), [(30, 20.0, 1_000), (2, 200.0, 1_000), (250, 1.0, 1_000), (2_500, 0.5, 1_000)]
)
async def test_topics_that_hang_leave_places_to_those_that_do_not(r: Rig, hung: int, qps: float, places: int) -> None:
    sick, healthy = [f"hung.{i}" for i in range(hung)], [f"well.{i}" for i in range(20)]
    for name in sick:
        await r.topic(name, qps, **({"max_in_flight": 1_000} if qps == 200 else {}))
    for name in healthy:
        await r.topic(name, 20)
    seen = Seen(hang_or_work)
    async with r.consuming(seen, drain_s=0.1, max_in_flight=places) as host:
        await asyncio.sleep(2)  # nothing starts in the second in which the host begins
        await load(r, healthy, 10, 2)
        for name in sick:
            await r.producer.publish_many(name, [b"x"] * max(10, int(qps * 8)))
        await load(r, healthy, 10, 10)
        await asyncio.sleep(1)
        assert_the_hung_stay_below(host, places)
    for name in healthy:
        assert len(seen.of(name)) == 120
        assert max(late(seen, name)) < 0.2


def assert_the_hung_stay_below(host: Host, places: int) -> None:
    assert places // 2 - 10 <= host.work.dispatcher.flight.count <= places * 0.92


async def test_a_topic_that_answers_again_gets_its_full_rate_while_the_others_still_hang(r: Rig) -> None:
    sick = {f"hung.{i}" for i in range(40)}

    async def hang(m: Message) -> None:
        await asyncio.sleep(10 if m.topic in sick else HANDLED_S)
        if m.topic in sick:
            raise TimeoutError

    for name in sorted(sick):
        await r.topic(name, 20, backoff_s=(1.0,), max_attempts=100)
        await r.producer.publish_many(name, [b"x"] * 2_000)
    seen = Seen(hang)
    async with r.consuming(seen, drain_s=0.1, max_in_flight=400) as host:
        await asyncio.sleep(60)
        sick.discard("hung.0")
        await asyncio.sleep(30)
        now = int(r.clock.now())
        assert host.work.dispatcher.flight.count <= 400
        counts = starts_per_second(seen.of("hung.0"))
        assert [counts["hung.0", now - i] for i in range(1, 6)] == [20] * 5


async def test_nothing_is_left_on_the_gauge_when_all_is_settled(r: Rig) -> None:
    async def mixed(m: Message) -> None:
        if m.payload[0] % 3 == 0:
            await asyncio.sleep(0.01)
        if m.payload[0] % 4 == 0 and m.attempt == 1:
            raise ValueError
        if m.payload[0] % 5 == 0:
            m.payload = b""

    await r.topic("log", 200, backoff_s=(0.1,), priorities=("only",))
    await r.topic("keyed", 200, backoff_s=(0.1,))
    await r.topic("ranked", 200, kind="priority", backoff_s=(0.1,), retry="backoff")
    for i in range(1, 60):
        await r.producer.publish("log", bytes([i]) * 50)
        await r.producer.publish("keyed", bytes([i]) * 50, key=f"k{i % 3}")
        await r.producer.publish("ranked", bytes([i]) * 50, priority=100)
    seen = Seen(mixed)
    async with r.consuming(seen) as host:
        await asyncio.sleep(20)
        assert len(seen) > 177
        gauge = host.work.gauge
        assert (gauge.messages, gauge.bytes, gauge.flying, host.work.dispatcher.flight.count) == (0, 0, 0, 0)
