"""What a host says about itself: right, bounded, and free of charge while it is idle."""

from __future__ import annotations

import asyncio

import pytest

from emq.database import Database, host_stats
from emq.host import recorder, statistics
from emq.host.host import Host
from emq.host.statistics import HostStatistics
from emq.runtime import errors
from support.rig import ENVIRONMENT, Rig, Seen, rig
from support.virtual import virtual

pytestmark = virtual


async def saved(r: Rig) -> list[HostStatistics]:
    return [statistics.decode(text) for _, text, _ in await host_stats.load(r.db, ENVIRONMENT)]


def saves(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times at which snapshots are saved from now on."""
    times: list[float] = []
    real = host_stats.save

    async def save(database: Database, environment: str, host: str, text: str, now_ms: int) -> frozenset[str]:
        times.append(now_ms / 1000)
        return await real(database, environment, host, text, now_ms)

    monkeypatch.setattr(host_stats, "save", save)
    return times


async def test_a_busy_hosts_snapshot_says_how_fast_each_topic_goes(r: Rig) -> None:
    await r.topic("fast", 120)
    await r.topic("slow", 5)
    for topic in ("fast", "slow"):
        await r.producer.publish_many(topic, [b"x"] * 1000, priority="low")
    async with r.consuming(Seen()):
        await asyncio.sleep(5.5)
        [snapshot] = await saved(r)
    assert snapshot.host == "host-1"
    assert (snapshot.topics, snapshot.groups, snapshot.queues) == (2, 4, 12)
    assert [(t.name, round(t.started_per_s)) for t in snapshot.busiest] == [("fast", 120), ("slow", 5)]
    assert round(snapshot.rates.started) == 125
    assert snapshot.totals.started == snapshot.totals.succeeded > 500
    assert snapshot.busiest[0].buffered["low"] > 0
    assert snapshot.busiest[0].buffered["high"] == 0
    assert snapshot.buffered_messages == sum(sum(t.buffered.values()) for t in snapshot.busiest)


async def test_rates_fall_to_zero_when_nothing_is_left_to_do(r: Rig) -> None:
    await r.topic("t", 100)
    await r.producer.publish_many("t", [b"x"] * 50)
    async with r.consuming(Seen()):
        await asyncio.sleep(8)
        [snapshot] = await saved(r)
    assert snapshot.totals.started == 50
    assert snapshot.rates.started == 0
    assert [t.started_per_s for t in snapshot.busiest] == [0]


async def test_an_idle_host_looks_at_no_topic_and_saves_a_sign_of_life_every_five_seconds() -> None:
    with pytest.MonkeyPatch.context() as patch:
        async with rig() as r:
            for i in range(20):
                await r.topic(f"t{i}")
            async with r.consuming(Seen()) as host:
                await asyncio.sleep(10)
                looks: list[float] = []
                patch.setattr(host.recorder, "_look", lambda now: looks.append(now) or iter(()))
                times = saves(patch)
                await asyncio.sleep(60)
    assert looks == []
    assert len(times) == 12


async def test_a_snapshot_has_at_most_a_hundred_topics_the_busiest_of_them(r: Rig) -> None:
    for i in range(150):
        await r.topic(f"idle-{i}")
    await r.topic("zz-busy", 50)
    await r.producer.publish_many("zz-busy", [b"x"] * 500)
    async with r.consuming(Seen()):
        await asyncio.sleep(3)
        [snapshot] = await saved(r)
    assert len(snapshot.busiest) == recorder.BUSIEST
    assert snapshot.busiest[0].name == "zz-busy"
    assert snapshot.topics == 151


async def test_a_look_at_many_groups_lets_others_run_in_between(r: Rig) -> None:
    await r.topic("big", 30_000, group_qps=10)
    async with r.consuming(Seen()) as host:
        slices = len(list(host.recorder._look(r.clock.now())))
    assert slices == 2 * 3_000 // recorder.SLICE_GROUPS  # to find the busiest topics, and to tell of those


async def test_a_clean_stop_takes_the_snapshot_out_of_sight(r: Rig) -> None:
    await r.topic("t")
    async with r.consuming(Seen()):
        await asyncio.sleep(1.5)
        assert len(await saved(r)) == 1
    assert await saved(r) == []


async def test_statistics_are_lost_in_an_outage_of_the_database_and_consuming_goes_on(r: Rig) -> None:
    await r.topic("t", 100)
    seen = Seen()
    async with r.consuming(seen) as host:
        await asyncio.sleep(1)
        await r.producer.publish_many("t", [b"x"] * 200)
        r.db.down = True
        await asyncio.sleep(5)
        assert len(seen) == 200
        assert host.statistics().database_unreachable is not None
        r.db.down = False
        await asyncio.sleep(6)
        [snapshot] = await saved(r)
    assert snapshot.totals.started == 200
    assert snapshot.database_unreachable is None


async def test_a_host_answers_for_itself_at_any_moment(r: Rig) -> None:
    await r.topic("t", 1_000)
    await r.producer.publish_many("t", [b"x"] * 10)

    async def fail(_: object) -> None:
        raise errors.Reject("no")

    host: Host
    async with r.consuming(Seen(fail)) as host:
        await asyncio.sleep(1.5)
        totals = host.statistics().totals
    assert (totals.started, totals.failed, totals.dead) == (10, 10, 10)
