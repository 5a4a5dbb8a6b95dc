"""Topics that share a budget keep its cap in every second, on whatever hosts, while topics and hosts come and go."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

import pytest

from emq.storage.message import Message
from emq.topics.model import Kind, Topic, TopicOptions
from support.assigned import Assigned
from support.rig import Delivery, Rig, Seen
from support.virtual import virtual

pytestmark = virtual

BEGIN_S = 3
"""Seconds after which the hosts have started."""


def by_second(deliveries: Iterable[Delivery]) -> Counter[int]:
    return Counter(d.started_us // 1_000_000 for d in deliveries)


def below(budget: str, name: str, qps: float = 1_000.0, **options: object) -> Topic:
    return Topic(name, qps, options=TopicOptions(budget=budget, **options))  # type: ignore[arg-type]


async def fill(r: Rig, topics: Iterable[str], count: int) -> None:
    for topic in topics:
        await r.producer.publish_many(topic, [b"%d" % i for i in range(count)])


def judge(deliveries: list[Delivery], qps: float, usage: float = 0.99) -> None:
    seconds = by_second(deliveries)
    assert max(seconds.values()) <= qps, seconds
    steady = range(min(seconds) + BEGIN_S, max(seconds))
    assert sum(seconds[s] for s in steady) >= usage * qps * len(steady), seconds


async def test_a_budget_moves_as_a_whole_and_its_new_owner_starts_nothing_in_its_first_second(r: Rig) -> None:
    names = [f"{tenant}.{i}" for tenant in ("t1", "t2", "t3") for i in range(4)]
    await r.admin.create([*(Topic(t, 50) for t in ("t1", "t2", "t3")), *(below(n[:2], n, 50) for n in names)])
    seen = Seen()
    await fill(r, names, 600)
    async with r.consuming(seen, "a"):
        await asyncio.sleep(5)
        async with r.consuming(seen, "b"):
            await asyncio.sleep(15)
    for tenant in ("t1", "t2", "t3"):
        its = [d for d in seen.deliveries if d.topic.startswith(tenant)]
        assert max(by_second(its).values()) <= 50
        hosts = {second: {d.host for d in its if d.started_us // 1_000_000 == second} for second in by_second(its)}
        assert all(len(found) == 1 for found in hosts.values()), "in one second, one host starts"
    assert {d.host for d in seen.deliveries} == {"a", "b"}


async def test_a_topic_that_becomes_a_budget_while_it_works_keeps_its_cap(r: Rig) -> None:
    """Its groups are on two hosts, which learn of its first topic one by one."""
    await r.topic("tenant", 400)
    seen = Seen()
    await fill(r, ["tenant"], 12_000)
    async with r.consuming(seen, "a", catalog_poll_s=0.05), r.consuming(seen, "b", catalog_poll_s=1.5):
        await asyncio.sleep(5.2)
        await r.admin.create([below("tenant", "endpoint", 400)])
        await r.producer.refresh()
        await fill(r, ["endpoint"], 4_000)
        await asyncio.sleep(15)
    seconds = by_second(seen.deliveries)
    assert {d.host for d in seen.deliveries[:2_000]} == {"a", "b"}
    assert max(seconds.values()) <= 400, seconds
    late = [d for d in seen.deliveries if d.started_us // 1_000_000 >= max(seconds) - 6]
    judge(late, 400)
    assert len({d.host for d in late}) == 1
    assert {d.topic for d in late} == {"tenant", "endpoint"}


async def test_a_budget_that_is_changed_live_keeps_the_lower_cap_at_once(r: Rig) -> None:
    names = ["tenant.1", "tenant.2"]
    await r.admin.create([Topic("tenant", 200), *(below("tenant", name) for name in names)])
    seen = Seen()
    await fill(r, names, 3_000)
    async with r.consuming(seen):
        await asyncio.sleep(5)
        await r.admin.update("tenant", qps=20)
        await asyncio.sleep(1)
        cut = len(seen)
        await asyncio.sleep(10)
        judge(seen.deliveries[cut:], 20)
        await r.admin.update("tenant", qps=300)
        await asyncio.sleep(10)
    seconds = by_second(seen.deliveries[cut:])
    assert set(seconds.values()) == {20, 300}, seconds
    assert sum(n == 300 for n in seconds.values()) >= 6


async def test_shares_are_followed_live(r: Rig) -> None:
    await r.admin.create([Topic("tenant", 100), below("tenant", "a"), below("tenant", "b")])
    seen = Seen()
    await fill(r, "ab", 3_000)
    async with r.consuming(seen):
        await asyncio.sleep(5)
        await r.admin.update("b", share=4)
        await asyncio.sleep(2)
        cut = len(seen)
        await asyncio.sleep(10)
    topics = Counter(d.topic for d in seen.deliveries[cut:])
    assert topics["b"] == pytest.approx(4 * topics["a"], rel=0.02)


async def test_topics_of_all_kinds_and_paces_share_a_budget(r: Rig) -> None:
    options = {"budget": "tenant"}
    await r.topic("tenant", 60)
    await r.topic("log", 100, **options)
    await r.topic("smooth", 100, pacing="smooth", **options)
    await r.topic("wide", 100, group_qps=10, **options)
    await r.topic("slots", 100, kind=Kind.RANGE_MERGE, time_range_ms=1, ordering="none", **options)
    names = ["log", "smooth", "wide", "slots", "tenant"]
    seen = Seen()
    await fill(r, names, 1_000)
    async with r.consuming(seen):
        await asyncio.sleep(25)
    judge(seen.deliveries, 60)
    per_topic = Counter(d.topic for d in seen.deliveries)
    assert all(per_topic[name] >= 0.85 * len(seen) / 5 for name in names), per_topic


async def test_a_slow_endpoint_parks_its_own_messages_only(r: Rig) -> None:
    async def then(m: Message) -> None:
        await asyncio.sleep(1_000 if m.topic == "slow" else 0.01)

    await r.admin.create([Topic("tenant", 50), below("tenant", "slow", max_in_flight=10), below("tenant", "fast")])
    seen = Seen(then)
    await fill(r, ["slow", "fast"], 1_000)
    async with r.consuming(seen, drain_s=0.1):
        await asyncio.sleep(15)
        assert len(seen.of("slow")) == 10
        judge(seen.of("fast"), 50)


async def test_a_topic_created_again_below_another_budget_is_charged_to_that(r: Rig) -> None:
    await r.admin.create([Topic("t1", 10), Topic("t2", 30), below("t1", "endpoint"), below("t2", "other")])
    seen = Seen()
    await fill(r, ["endpoint"], 200)
    async with r.consuming(seen):
        await asyncio.sleep(5)
        assert max(by_second(seen.deliveries).values()) == 10
        await r.admin.delete("endpoint", force=True)
        await r.admin.create([below("t2", "endpoint")])
        await r.producer.refresh()
        cut = len(seen)
        await fill(r, ["endpoint", "other"], 300)
        await asyncio.sleep(15)
    judge(seen.deliveries[cut:], 30, usage=0.8)
    assert Counter(d.topic for d in seen.deliveries[cut:])["endpoint"] >= 150


async def test_the_statistics_of_a_host_say_which_topics_their_budget_holds(r: Rig) -> None:
    await r.admin.create([Topic("tenant", 10), below("tenant", "held"), below("tenant", "quiet"), Topic("free", 5)])
    seen = Seen()
    await fill(r, ["held", "free"], 200)
    await fill(r, ["quiet"], 1)
    async with r.consuming(seen) as host:
        await asyncio.sleep(6)
        held = {topic.name: topic.held_by for topic in host.statistics().busiest}
    assert held == {"held": "tenant", "quiet": "", "free": "", "tenant": ""}


async def test_groups_of_a_unit_on_another_host_than_its_first_group_start_nothing(r: Rig) -> None:
    """Whatever a plan says: also groups of the budget itself, and of a budget within it."""
    topics = [Topic("tenant", 100), below("tenant", "channel", 40), below("channel", "sender", 40)]
    await r.admin.create(topics)
    names = [topic.name for topic in topics]
    first, second = "tenant/0", "tenant/1"
    seen = Seen()
    await fill(r, names, 2_000)
    one, other = Assigned(r, "one"), Assigned(r, "other")
    rest = [second, "channel/0", "sender/0"]
    await one.give([first])
    await other.give(rest)
    async with r.consuming(seen, "one", membership=one), r.consuming(seen, "other", membership=other):
        await asyncio.sleep(6)
        assert {(d.host, d.topic, d.group) for d in seen.deliveries} == {("one", "tenant", 0)}
        await other.give([])
        await asyncio.sleep(1)
        await one.give([first, *rest])
        await asyncio.sleep(6)
        assert Counter(d.host for d in seen.deliveries) == {"one": len(seen)}
        await one.give(rest)  # the first group goes ahead of the others
        await asyncio.sleep(1)
        await other.give([first])
        cut = len(seen)
        await asyncio.sleep(6)
        assert {(d.host, d.topic) for d in seen.deliveries[cut:]} == {("other", "tenant")}
    assert max(by_second(seen.deliveries).values()) <= 100
    assert max(by_second(d for d in seen.deliveries if d.topic != "tenant").values()) <= 40
    assert {d.topic for d in seen.deliveries} == set(names)
