"""A host names the topics in trouble with their causes, and measures each second what somebody looks at."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

import emq
from emq.database import host_stats, watches
from emq.host import troubled_topics
from emq.host.options import LAG_S
from emq.host.statistics import HostStatistics
from emq.host.watched_topics import WatchedTopics
from emq.observe import snapshots
from emq.quota.counter import WindowCounter
from emq.storage.message import Message
from emq.topics.model import State
from support.rig import Rig, Seen, bound, rig
from support.virtual import virtual

pytestmark = virtual

WEEK = 7 * 86_400


async def handle(message: Message) -> None:
    if message.payload == b"dead":
        raise emq.Reject("no such order")


async def saved(r: Rig) -> HostStatistics:
    """What readers find in the database."""
    [(_, text, _)] = await host_stats.load(r.db, "online")
    return snapshots.statistics.decode(text)


@pytest.mark.services
async def test_each_topic_in_trouble_is_named_with_its_cause_and_drain(r: Rig) -> None:
    for name in ("well", "dead", "paused", "closed", "limited"):
        await r.topic(name, 100)
    await r.topic("behind", 2)
    await r.topic("disabled", 0.001)
    async with r.consuming(Seen(then=handle)) as host:
        await r.admin.update("paused", state=State.PAUSED)
        await r.admin.update("disabled", attributes={"push.url": "http://a/", "push.disabled": "it is gone: HTTP 410"})
        await asyncio.sleep(1)
        host.throttles.close("closed", WEEK, "out of order: 500")
        host.throttles.limit("limited", 1.0, "429")
        for name, n in (
            ("disabled", 2),
            ("paused", 3),
            ("closed", 4),
            ("limited", 90),
            ("behind", 400),
            ("well", 50),
        ):
            await r.producer.publish_many(name, [b"x"] * n)
        await r.producer.publish("dead", b"dead")
        await asyncio.sleep(2 * LAG_S + 3)
        seen = await saved(r)
    found = {topic.name: topic for topic in seen.troubled}
    assert {name: topic.cause for name, topic in found.items()} == {
        "closed": "closed",
        "limited": "limited",
        "behind": "backlog",
        "paused": "paused",
        "disabled": "paused",
        "dead": "dead",
    }
    assert [topic.name for topic in seen.troubled] == [
        *("closed", "limited", "behind", "paused", "disabled", "dead")
    ], "worst first"
    assert seen.in_trouble == 6
    assert found["disabled"].reason == "its endpoint is disabled: it is gone: HTTP 410"
    assert found["closed"].reason == "out of order: 500"
    assert (found["closed"].waiting, found["closed"].drain_s, found["paused"].drain_s) == (4, None, None)
    assert found["dead"].dead == 1
    behind = found["behind"]
    assert behind.drain_s is not None
    assert abs(behind.drain_s - behind.waiting / 2) < 5, "two a second"
    assert seen.lag["dead"] == 1
    assert seen.lag["parked"] == 7
    assert seen.lag_at is not None


async def test_a_host_reports_no_more_topics_than_readers_can_use(r: Rig) -> None:
    names = [f"t{i}" for i in range(troubled_topics.MOST + 20)]
    for name in names:
        await r.topic(name, 100)
    async with r.consuming(bound({})) as host:
        for i, name in enumerate(names):
            await r.producer.publish_many(name, [b"x"] * (i + 1))
        await asyncio.sleep(LAG_S + 3)
        await host.lag.look()
        seen = host.statistics()
    assert len(seen.troubled) == troubled_topics.MOST
    assert seen.in_trouble == len(names)
    assert seen.troubled[0].waiting == len(names), "those with the most messages"
    assert {topic.cause for topic in seen.troubled} == {"no_handler"}


async def test_a_quiet_host_without_metrics_looks_once_a_minute(r: Rig) -> None:
    await r.topic("t", 100)
    async with r.consuming(Seen()) as host:
        await asyncio.sleep(LAG_S + 5)
        at, sampled = host.lag.sampled_at, 0
        for _ in range(600):
            await asyncio.sleep(1)
            sampled += host.lag.sampled_at != at
            at = host.lag.sampled_at
        assert 8 <= sampled <= 11


async def test_what_somebody_looks_at_is_measured_each_second_and_nothing_else(r: Rig) -> None:
    for name, qps in (("shop.ep_1", 20), ("shop.ep_2", 5), ("shop.f", 5), ("other.ep_1", 10)):
        await r.topic(name, qps)
        await r.producer.publish_many(name, [b"x"] * 2_000)
    async with r.consuming(Seen()) as host:
        await asyncio.sleep(5)
        assert host.statistics().watched == ()
        await watches.note(
            r.db, "online", ["shop.ep_*", "shop", "sho", "other.ep_1*"], int(r.clock.now() * 1000), 15_000
        )
        await asyncio.sleep(10)
        shop, other = sorted((await saved(r)).watched, key=lambda watched: -max(watched.starts))
        assert (shop.name, other.name, max(other.starts)) == ("shop.ep_*", "other.ep_1*", 10)
        assert abs(shop.second - r.clock.now()) <= 4
        assert len(shop.starts) >= 6
        assert set(shop.starts[1:]) == {25}, "the caps of its two endpoints, exactly"
        await asyncio.sleep(20)
        assert host.statistics().watched == (), "nobody looks any more"


class Clock:
    """Stands where a test sets it."""

    at = 1_000.5

    def now(self) -> float:
        return self.at


async def test_whenever_a_busy_host_looks_each_second_has_its_own_starts_and_none_exceeds_the_quota() -> None:
    clock, counter = Clock(), WindowCounter(20, 1_000.5)
    owner = SimpleNamespace(groups={0: SimpleNamespace(counter=counter)}, counter=counter)
    watched = WatchedTopics({"shop": owner}, clock)  # type: ignore[dict-item, arg-type]
    watched.watch(frozenset(["shop"]))

    def at(second: float, starts: int = 0) -> None:
        clock.at = second
        assert counter.reserve(starts, second) == starts
        if not starts:
            watched.look()

    at(1_001.3, 20)
    at(1_001.5)
    at(1_002.1)  # before the starts of this second
    at(1_002.3, 15)
    at(1_003.0, 20)
    at(1_003.9)  # after those of this one
    at(1_004.2, 6)
    at(1_004.3)
    at(1_004.4, 7)
    at(1_004.5)  # twice in one
    at(1_005.1, 20)
    at(1_006.1, 20)
    at(1_007.1)  # missed two seconds: each has its part
    [shop] = watched.latest()
    assert (shop.second, shop.starts) == (1_006, (20, 15, 20, 17, 17, 19))


async def test_a_watch_is_written_again_only_when_half_of_its_time_is_over() -> None:
    async with rig() as r:
        written = []
        real = r.db.run

        async def run(fn: object, **how: object) -> object:
            written.append(not how.get("read_only"))
            return await real(fn, **how)

        r.db.run = run
        for now_ms in (0, 1_000, 6_000, 8_000):
            await watches.note(r.db, "online", ["shop"], now_ms, 15_000)
    assert sum(written) == 2
