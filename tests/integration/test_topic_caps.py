"""A topic keeps its cap in every second as a whole, however many groups or slots share it."""

from __future__ import annotations

import asyncio
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


async def test_a_log_topic_that_is_cut_live_keeps_the_lower_cap_in_every_second(r: Rig) -> None:
    await r.topic("cut", 500)
    seen = Seen()
    await fill(r, "cut", 10_000)
    async with r.consuming(seen):
        await asyncio.sleep(5)
        await r.admin.update("cut", qps=2)
        await asyncio.sleep(2)
        cut = len(seen)
        await asyncio.sleep(30)
    seconds = by_second(seen.deliveries[cut:])
    assert max(seconds.values()) <= 2
    assert len(seen) - cut >= 0.95 * 2 * 30


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


async def test_a_shrinking_topic_keeps_both_its_cap_and_its_rate_while_a_backlog_drains(r: Rig) -> None:
    await r.topic("draining", 500)
    seen = Seen()
    await fill(r, "draining", 2_500)
    async with r.consuming(seen, "a"), r.consuming(seen, "b"):
        await asyncio.sleep(3.5)
        await r.admin.update("draining", qps=40)
        await asyncio.sleep(1)
        cut = len(seen)
        await r.producer.refresh()
        await fill(r, "draining", 800)
        await asyncio.sleep(30)
    seconds = by_second(seen.deliveries[cut:])
    assert max(seconds.values()) <= 40
    assert sum(seconds.values()) >= 0.9 * 40 * 30, seconds
