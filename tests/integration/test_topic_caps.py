"""A topic keeps its cap in every second as a whole, however many groups or slots share it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable

import pytest

from emq.topics.model import Kind
from support.rig import Delivery, Rig, Seen
from support.virtual import virtual

pytestmark = virtual

BEGIN_S = 8
"""Seconds after which every host has started."""


def by_second(deliveries: Iterable[Delivery]) -> Counter[int]:
    """Starts of all groups together, by aligned second."""
    return Counter(d.started_us // 1_000_000 for d in deliveries)


def busiest_s(deliveries: list[Delivery], span_s: float = 1.0) -> int:
    """Most starts within any `span_s` seconds."""
    times = sorted(d.started_us for d in deliveries)
    return max(sum(1 for t in times[i : i + 500] if t < at + span_s * 1e6) for i, at in enumerate(times))


async def fill(r: Rig, topic: str, count: int) -> None:
    await r.producer.publish_many(topic, [b"%d" % i for i in range(count)])


async def test_a_topic_with_more_slots_than_starts_a_second_keeps_its_cap_in_every_second(r: Rig) -> None:
    await r.topic("slots", 10, kind=Kind.RANGE_MERGE, slots=64, time_range_ms=1)
    seen = Seen()
    await fill(r, "slots", 1_500)
    async with r.consuming(seen, "a"), r.consuming(seen, "b"):
        await asyncio.sleep(40)
    seconds = by_second(seen.deliveries)
    assert max(seconds.values()) <= 10
    steady = sorted(seconds)[BEGIN_S:-1]
    assert sum(seconds[s] for s in steady) >= 0.99 * 10 * len(steady)


@pytest.mark.parametrize(
    ("qps", "hosts", "before", "after", "used"), [(2, "a", 10_000, 0, 0.95), (40, "ab", 2_500, 800, 0.9)]
)
async def test_a_log_topic_that_is_cut_live_keeps_and_uses_the_lower_cap_from_then_on(
    r: Rig, qps: int, hosts: str, before: int, after: int, used: float
) -> None:
    await r.topic("cut", 500)
    seen = Seen()
    await fill(r, "cut", before)
    async with contextlib.AsyncExitStack() as running:
        for host in hosts:
            await running.enter_async_context(r.consuming(seen, host))
        await asyncio.sleep(3.5)
        await r.admin.update("cut", qps=qps)
        await asyncio.sleep(1)
        cut = len(seen)
        await r.producer.refresh()
        await fill(r, "cut", after)
        await asyncio.sleep(30)
    seconds = by_second(seen.deliveries[cut:])
    assert max(seconds.values()) <= qps
    assert sum(seconds.values()) >= used * qps * 30, seconds


@pytest.mark.parametrize(("qps", "groups"), [(12.0, 6), (100.0, 10), (3.0, 8)])
async def test_bursts_of_a_smooth_topic_add_up_to_its_own(r: Rig, qps: float, groups: int) -> None:
    await r.topic("smooth", qps, kind=Kind.RANGE_MERGE, slots=8, time_range_ms=1, pacing="smooth")
    seen = Seen()
    async with r.consuming(seen, "a"), r.consuming(seen, "b"):
        await asyncio.sleep(10)
        await fill(r, "smooth", int(qps * 40))
        await asyncio.sleep(30)
    assert busiest_s(seen.deliveries) <= qps + 1 + qps / 10
    assert len(seen) >= 0.95 * qps * 29
