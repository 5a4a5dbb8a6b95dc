"""A topic uses its whole quota wherever its backlog is, within three seconds of any change of its qps."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from emq.topics.model import Kind
from support.rig import Delivery, Rig, Seen
from support.virtual import virtual

pytestmark = virtual

SETTLED_S = 3
"""Seconds after a change within which the new quota is used."""

CHANGES = [(40, 80), (50, 60), (50, 51), (1, 1_000), (120, 121), (200, 55), (100, 40)]


def by_second(deliveries: list[Delivery]) -> Counter[int]:
    return Counter(d.started_us // 1_000_000 for d in deliveries)


@pytest.mark.parametrize("pacing", ["window", "smooth"])
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize(("before", "after"), CHANGES)
async def test_a_backlog_uses_the_old_quota_until_the_new_one_counts_and_the_new_one_from_then_on(
    r: Rig, before: int, after: int, keyed: bool, pacing: str
) -> None:
    await r.topic("orders", before, pacing=pacing)
    n = 5 * before + 9 * after
    await r.producer.publish_many("orders", [b"x"] * n, keys=["one"] * n if keyed else None)
    seen = Seen()
    async with r.consuming(seen):
        await asyncio.sleep(3)
        changed_s = r.clock.now()
        await r.admin.update("orders", qps=after)
        await asyncio.sleep(SETTLED_S + 4)
    seconds, least = by_second(seen.deliveries), min(before, after)
    for second in range(int(changed_s) + 1, int(changed_s) + SETTLED_S + 1):
        assert seconds[second] >= 0.89 * least, seconds  # a new pace begins without a burst
    for second in range(int(changed_s) + SETTLED_S + 1, int(changed_s) + SETTLED_S + 4):
        assert seconds[second] >= 0.99 * after - (pacing == "smooth"), seconds


@pytest.mark.parametrize("slots", [1, 8, 64])
async def test_one_slot_with_a_backlog_uses_the_whole_quota(r: Rig, slots: int) -> None:
    await r.topic("ranks", 64, kind=Kind.PRIORITY, slots=slots, ordering="none")
    members = [b"%d" % i for i in range(20_000)]
    await r.producer.publish_many("ranks", members, priority=20)
    seen = Seen()
    async with r.consuming(seen):
        await asyncio.sleep(8)
    seconds = by_second(seen.deliveries)
    assert [seconds[s] for s in sorted(seconds)[2:-1]] == [64] * (len(seconds) - 3)


@pytest.mark.parametrize("begins_ms", [0.0, 5.0, 20.0])
async def test_an_endpoint_that_counts_by_a_clock_of_its_own_sees_no_two_quotas_in_one_second(
    r: Rig, begins_ms: float
) -> None:
    """Unless its clock differs by more than the seconds begin late."""

    await r.topic("orders", 10)
    await r.producer.publish_many("orders", [b"x"] * 60)
    seen = Seen()
    async with r.consuming(seen, window_begins_ms=begins_ms):
        await asyncio.sleep(7)
    assert len(seen) == 60
    for skew_us in (0, 1_000, 4_999):
        shifted = [d.started_us - (skew_us if d.started_us // 1_000_000 % 2 else 0) for d in seen.deliveries]
        most = max(Counter(us // 1_000_000 for us in shifted).values())
        assert most == (10 if begins_ms or not skew_us else 20)


@pytest.mark.parametrize("pacing", ["window", "smooth"])
async def test_a_raise_slows_down_no_backlog_whose_new_groups_are_on_another_host(r: Rig, pacing: str) -> None:
    """What came before the raise lies in the former group, which keeps its share until that is worked off."""

    await r.topic("orders", 50, pacing=pacing)
    await r.producer.publish_many("orders", [b"x"] * 800)
    seen = Seen()
    async with r.consuming(seen, "a"), r.consuming(seen, "b"):
        await asyncio.sleep(5)
        await r.admin.update("orders", qps=60)
        await asyncio.sleep(6)
        owners = {(await r.catalog.get("orders")).division.quota(group) for group in range(2)}
        await asyncio.sleep(10)
        after = (await r.catalog.get("orders")).division
    seconds = by_second(seen.deliveries)
    steady = sorted(seconds)[4:-1]
    assert min(seconds[s] for s in steady) >= (50 if pacing == "window" else 44), seconds  # see above
    assert sum(seconds[s] for s in steady) >= 0.99 * 50 * len(steady)
    assert max(seconds.values()) <= 60
    assert owners == {50.0, 10.0}
    assert [after.quota(group) for group in range(2)] == [30.0, 30.0]
