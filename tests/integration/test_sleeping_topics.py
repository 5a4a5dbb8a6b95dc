"""A host lets idle topics of families sleep, and they wake with all promises kept."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

import emq
from emq.allocation.membership import LoneMembership
from emq.database import tables
from emq.fetcher.readiness import SWEEP_S
from emq.host import forgetting, sleeping
from emq.observe.families import Families
from emq.producer import Producer
from emq.runtime import errors
from emq.storage import message
from emq.storage.lane_store import LaneSettle, LaneVerdict
from emq.storage.log_store import Put, Trim
from emq.storage.message import Message
from emq.storage.store import Ended
from emq.topics.families import Family
from emq.topics.family_catalog import BURIED_S
from emq.topics.model import Kind, State, Topic, TopicOptions
from emq.trail import events
from emq_stores.memory import MemoryStore
from support.rig import Rig, Seen, starts_per_second
from support.virtual import virtual

pytestmark = virtual

IDLE_S = 10.0
SOON_S = IDLE_S + 3 * sleeping.PASS_S
"""Seconds in which an idle topic has surely gone to sleep."""


async def family(r: Rig, qps: float = 50.0, idle_s: float | None = IDLE_S, **settings: Any) -> Families:
    families = Families(r.catalog, r.admin)
    topic = Topic("f.*", qps, priorities=("high", "low"), options=TopicOptions(idle_s=idle_s, **settings))
    await families.create(Family(topic))
    return families


async def names(r: Rig) -> list[str]:
    """Return the names of the topics that are awake."""
    return [topic.name for topic in await r.catalog.list("f.*") if not topic.asleep_s]


WAYS = ["bare", "own", "plain"]
"""A topic of a family, one with a setting of its own, and one of no family: the rows of the latter two stay."""


async def make(r: Rig, way: str, qps: float, idle_s: float = IDLE_S, **settings: Any) -> None:
    """Make the topic f.x."""
    if way != "plain":
        await family(r, qps if way == "bare" else 50.0, idle_s, **settings)
    if way != "bare":
        options = TopicOptions(idle_s=idle_s, max_attempts=3, **settings)
        await r.admin.create([Topic("f.x", qps, priorities=("high", "low"), options=options)])


async def test_topics_that_are_empty_and_idle_go_and_what_differs_or_holds_something_stays(r: Rig) -> None:
    families = await family(r)
    await r.topic("plain")
    seen = Seen()
    async with r.consuming(seen) as host:
        for i in range(40):
            await r.producer.publish(f"f.{i}", b"")
        await r.producer.publish("f.own", b"")
        await r.producer.publish("f.schedule", b"", delay_ms=3_600_000)
        await r.admin.update("f.own", max_attempts=3)
        await asyncio.sleep(SOON_S)
        assert await names(r) == ["f.schedule"]
        assert await r.catalog.names("f.*") == ["f.own", "f.schedule"]
        assert len(seen) == 41
        assert host.sleeping.slept == 41
        assert {*host.ownership.topics} == {"plain", "f.schedule"}
        assert (await families.get("f.*")).live == 1
        saved = await r.checkpoints.load_all()
        assert {name.split("/")[0] for name in saved} <= {"f.schedule"}
        await r.producer.publish("f.own", b"again")
        for i in range(40):
            await r.producer.publish(f"f.{i}", b"again")
        await asyncio.sleep(5)
        assert Counter(seen.payloads) == {b"": 41, b"again": 41}


async def test_the_first_message_of_a_new_topic_starts_within_a_tenth_of_a_second(r: Rig) -> None:
    """No host had the topic before, so its host need not leave out the second in which it takes the topic."""
    await family(r)
    seen, r.catalog.written = Seen(), asyncio.Event()
    async with r.consuming(seen, membership=LoneMembership("host-1", r.next_epoch), catalog_poll_s=10.0):
        await asyncio.sleep(5.4)
        for i in range(20):
            began_us = int(r.clock.now() * 1e6)
            await r.producer.publish_many(f"f.{i}", [b""] * 120)
            await asyncio.sleep(3.05)
            started = sorted(d.started_us for d in seen.deliveries if d.topic == f"f.{i}")
            assert started[0] < began_us + 100_000
            assert len(started) == 120
    assert set(starts_per_second(seen.deliveries).values()) <= {50, 20}


async def test_a_busy_topic_does_not_sleep_however_it_is_busy(r: Rig) -> None:
    """By its queues, or by delayed messages alone, of which none waits when the host looks."""
    await family(r)
    async with r.consuming(Seen()) as host:
        for _ in range(12):
            await r.producer.publish("f.queue", b"")
            await r.producer.publish("f.lane", b"", delay_ms=1_000)
            await asyncio.sleep(IDLE_S - 2)
        assert host.sleeping.slept == 0
        await asyncio.sleep(SOON_S)
        assert host.sleeping.slept == 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pacing", ["window", "smooth"])
async def test_the_cap_holds_in_every_second_while_a_topic_sleeps_and_wakes(r: Rig, pacing: str, way: str) -> None:
    qps = 7
    await make(r, way, qps, 5.0, pacing=pacing)
    seen = Seen()
    async with r.consuming(seen, "a"), r.consuming(seen, "b", catalog_poll_s=0.4):
        count = 0
        for _ in range(6):
            await r.producer.publish_many("f.x", [b""] * 3 * qps)
            count += 3 * qps
            while await names(r):
                await asyncio.sleep(0.01)
        await r.producer.publish_many("f.x", [b""] * 3 * qps)
        await asyncio.sleep(8)
    assert len(seen) == count + 3 * qps
    assert max(starts_per_second(seen.deliveries).values()) <= (qps if pacing == "window" else qps + 2)


async def test_a_topic_that_remembers_ids_sleeps_only_when_it_has_forgotten_them(r: Rig) -> None:
    await family(r, dedupe_s=60.0)
    seen = Seen()
    async with r.consuming(seen):
        await r.producer.publish("f.x", b"", message_id="one")
        await asyncio.sleep(50)
        await r.producer.publish("f.x", b"", message_id="one")
        await asyncio.sleep(5)
        assert len(seen) == 1
        await asyncio.sleep(60 + SOON_S)
        assert await names(r) == []


async def test_a_topic_remembers_the_id_of_a_delayed_message_that_was_recalled(r: Rig) -> None:
    await family(r, dedupe_s=60.0)
    async with r.consuming(Seen()):
        await r.producer.publish("f.x", b"", message_id="first")
        await asyncio.sleep(50)
        await r.producer.publish("f.x", b"", message_id="one", delay_ms=3_600_000)
        await asyncio.sleep(1)
        assert await r.admin.recall("f.x", ["one"]) == {"one"}
        await asyncio.sleep(50)
        assert isinstance(await r.producer.publish("f.x", b"", message_id="one"), emq.Repeated)
        await asyncio.sleep(60 + SOON_S)
        assert await names(r) == []


@pytest.mark.parametrize("way", WAYS)
async def test_a_topic_with_less_than_a_start_a_second_keeps_its_rate_while_it_sleeps_and_wakes(
    r: Rig, way: str
) -> None:
    await make(r, way, 0.01)
    seen = Seen()
    async with r.consuming(seen) as host:
        for count in range(1, 4):
            await r.producer.publish("f.x", b"")
            while len(seen) < count or await names(r):
                await asyncio.sleep(1)
        assert host.sleeping.slept == 3
    started = [d.started_us for d in seen.deliveries]
    assert min(then - first for first, then in itertools.pairwise(started)) >= 99_000_000


async def test_a_family_of_a_newer_version_keeps_no_topics_of_others_awake(r: Rig) -> None:
    await family(r)
    await Families(r.catalog, r.admin).create(Family(Topic("newer.*", 5.0)))
    damaged = sa.update(tables.families).where(tables.families.c.name == "newer.*").values(body="[]")
    await r.db.run(lambda c: c.execute(damaged))
    await r.producer.publish("f.x", b"")
    async with r.consuming(Seen()):
        await asyncio.sleep(SOON_S)
        assert await names(r) == []


async def test_topics_sleep_although_the_database_was_away_at_the_first_look(r: Rig) -> None:
    await family(r)
    versions, fails = r.catalog.families.versions, [errors.DatabaseUnavailable("the database is away")]

    async def fail_once(names: Collection[str]) -> dict[str, int]:
        if fails:
            raise fails.pop()
        return await versions(names)

    async with r.consuming(Seen()):
        await r.producer.publish("f.x", b"")
        r.catalog.families.versions = fail_once  # type: ignore[method-assign,assignment]
        await asyncio.sleep(2 * SOON_S)
        assert (fails, await names(r)) == ([], [])


@pytest.mark.parametrize("way", ["own", "plain"])
async def test_a_topic_that_somebody_paused_by_itself_does_not_sleep(r: Rig, way: str) -> None:
    await make(r, way, 50.0)
    await r.admin.update("f.x", state=State.PAUSED)
    async with r.consuming(Seen()):
        await asyncio.sleep(3 * SOON_S)
        assert await names(r) == ["f.x"]
        await r.admin.update("f.x", state=State.ACTIVE)
        await asyncio.sleep(SOON_S)
        assert await names(r) == []


@pytest.mark.parametrize("way", ["own", "plain"])
async def test_a_topic_of_which_the_database_forgets_that_it_woke_is_woken_again(r: Rig, way: str) -> None:
    await make(r, way, 50.0)
    seen = Seen()
    async with r.consuming(seen) as host:
        await asyncio.sleep(SOON_S)
        slept = await r.catalog.get("f.x")
        assert slept.asleep_s
        await r.producer.publish("f.x", b"confirmed")
        await r.catalog.change("f.x", lambda woken: slept)
        host.orphans._store = MemoryStore(r.world)  # the store of the rig does not tell what it holds
        host.orphans.soon()  # as a host does that finds changes lost
        await asyncio.sleep(30)
        assert seen.payloads == [b"confirmed"]


async def test_a_message_to_a_name_that_the_catalog_does_not_know_makes_its_topic(r: Rig) -> None:
    """As of a producer that could not reach the database for long, and published to a name that was forgotten."""
    await family(r)
    seen = Seen()
    async with r.consuming(seen) as host:
        producer = Producer(r.store, r.catalog, clock=r.clock)
        await producer.publish("f.x", b"1")
        route = await producer._router.route("f.x")
        await asyncio.sleep(SOON_S + BURIED_S + 2 * forgetting.LOOK_S)
        assert (left(r), await rows(r)) == ({}, 0)
        await MemoryStore(r.world).log.put([Put(route.queues[0][0], [message.encode("2", b"2", None, 0, None)])])
        host.orphans._store = MemoryStore(r.world)  # the store of the rig does not tell what it holds
        host.orphans.soon()
        await asyncio.sleep(10)
        assert seen.payloads == [b"1", b"2"]


async def test_the_host_that_sealed_retired_groups_opens_none_of_a_topic_that_sleeps(r: Rig) -> None:
    await make(r, "plain", 100.0, 60.0)
    await r.admin.update("f.x", qps=50.0)
    async with r.consuming(Seen()) as host:
        while (await r.catalog.get("f.x")).groups > 1:
            await asyncio.sleep(1)
        assert host.retirement._has_sealed
        while not (await r.catalog.get("f.x")).asleep_s:
            await asyncio.sleep(0.01)
        await r.admin.update("f.x", qps=100.0)
        topic = await r.catalog.get("f.x")
        assert (topic.asleep_s > 0, topic.active_groups) == (True, 2)
        await asyncio.sleep(60)
        [answer] = await MemoryStore(r.world).log.put([Put(topic.queue(1, 0), [b"it is sealed"])])
        assert isinstance(answer, errors.QueueSealed)
        await r.producer.publish_many("f.x", [b""] * 4)


async def test_a_topic_of_a_family_that_is_a_budget_does_not_sleep(r: Rig) -> None:
    await family(r)
    await r.producer.publish("f.budget", b"")
    await r.topic("below", budget="f.budget")
    async with r.consuming(Seen()):
        await asyncio.sleep(3 * SOON_S)
        assert await names(r) == ["f.budget"]
    with pytest.raises(errors.StillNamed):
        await r.admin.delete("f.budget")


async def test_with_idle_s_none_no_topic_goes(r: Rig) -> None:
    await family(r, idle_s=None)
    await r.producer.publish("f.x", b"")
    async with r.consuming(Seen()) as host:
        await asyncio.sleep(600)
        assert (host.sleeping.slept, await names(r)) == (0, ["f.x"])


async def test_a_host_drops_the_rows_of_topics_that_slept_and_then_does_nothing(r: Rig) -> None:
    await family(r)
    async with r.consuming(Seen()) as host:
        for i in range(5):
            await r.producer.publish(f"f.{i}", b"")
        await asyncio.sleep(SOON_S)
        assert host.sleeping.slept == 5
        assert await rows(r) == 5
        await asyncio.sleep(BURIED_S + 2 * forgetting.LOOK_S)
        assert await rows(r) == 0
        version = await r.catalog.version()
        await asyncio.sleep(2 * BURIED_S)
        assert await r.catalog.version() == version


async def test_no_host_reads_the_whole_catalog_because_the_rows_of_topics_that_slept_long_ago_are_dropped(
    r: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    await family(r)
    async with r.consuming(Seen(), "a"), r.consuming(Seen(), "b"):
        await r.producer.publish("f.x", b"")
        await asyncio.sleep(SOON_S + BURIED_S + 2 * forgetting.LOOK_S)
        assert await rows(r) == 0
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_topic_that_gets_a_slow_message_as_it_falls_asleep_holds_up_no_other(
    r: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, looks = sleeping.empty_ones, list[int]()

    await family(r)
    for name in ("f.x", "f.y"):
        await r.producer.topic(name)

    async def look_and_publish(*args: Any) -> list[Topic]:
        found = await look(*args)
        looks.append(len(found))
        if len(looks) == 1:
            await r.producer.publish("f.x", b"slow")
            while not len(seen):
                await asyncio.sleep(0.01)
        return found

    async def take(m: Message) -> None:
        if m.payload == b"slow":
            await asyncio.sleep(300)

    monkeypatch.setattr(sleeping, "empty_ones", look_and_publish)
    seen = Seen(take)
    async with r.consuming(seen, drain_s=60.0) as host:
        while host.sleeping.slept == 0:
            await asyncio.sleep(0.1)
        assert looks == [2]
        assert await names(r) == ["f.x"]
        await r.producer.publish("f.y", b"")
        await asyncio.sleep(5)
        assert seen.payloads == [b"slow", b""]
        await asyncio.sleep(300 + SOON_S)
    assert seen.payloads == [b"slow", b""]


async def test_a_host_starts_nothing_of_a_topics_next_life_before_it_knows_of_it(r: Rig) -> None:
    """The topic wakes before its host hears that it slept; else its next owner would start the message again."""
    await family(r)
    sleep, begun = r.catalog.families.sleep, list[int]()

    async def sleep_and_publish(*args: Any) -> set[str]:
        gone = await sleep(*args)
        if gone and not begun:
            await r.producer.publish("f.x", b"2")
            begun.append((await r.catalog.get("f.x")).division.since_s)
            await asyncio.sleep(0.4)
        return gone

    r.catalog.families.sleep = sleep_and_publish  # type: ignore[method-assign]
    seen = Seen()
    async with r.consuming(seen, catalog_poll_s=0.5):
        await r.producer.publish("f.x", b"1")
        await asyncio.sleep(SOON_S)
    assert seen.payloads == [b"1", b"2"]
    assert seen.deliveries[1].started_us >= begun[0] * 1_000_000


def left(r: Rig) -> dict[str, set[str]]:
    """Return the names below the family that the store still knows, by place."""
    found = {place: {name for name in value if name.startswith("f.")} for place, value in r.world._stored().items()}
    return {place: names for place, names in found.items() if names}


@pytest.mark.parametrize("kind", ["log", "priority"])
async def test_a_name_that_slept_leaves_nothing_and_comes_again_as_a_new_one(
    r: Rig, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    options = TopicOptions(idle_s=IDLE_S, merge="content" if kind == "log" else "key")
    await Families(r.catalog, r.admin).create(Family(Topic("f.*", 120.0, kind=Kind(kind), options=options)))
    seen, names = Seen(), [f"f.{i}" for i in range(5)]
    idle = Producer(r.store, r.catalog, clock=r.clock)  # does not hear for long that the topics ended
    expected: list[bytes] = []
    async with r.consuming(seen):
        for life in range(3):
            for n, producer in enumerate((idle, r.producer)):
                for name in names:
                    for i in range(3):
                        body = f"{name} {life} {n} {i}"
                        key, priority = (None, None) if kind == "log" else (body, 20)
                        await producer.publish(name, body.encode(), merge_key=key, priority=priority)
                        expected.append(body.encode())
            await asyncio.sleep(SOON_S)
            assert left(r)
            await asyncio.sleep(BURIED_S + 2 * forgetting.LOOK_S)
            assert (left(r), await rows(r)) == ({}, 0)
    assert sorted(seen.payloads) == sorted(expected)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert idle.shrunk == 0


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("awaits", [True, False])
async def test_a_name_that_comes_again_while_it_is_forgotten_loses_nothing(
    r: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, at: int, awaits: bool
) -> None:
    """Before and between the steps of `emq.host.forgetting`; with or without a host that has it by the next step."""
    monkeypatch.setattr("emq.topics.family_catalog.BURIED_S", 30.0)
    monkeypatch.setattr(forgetting, "LOOK_S", 10.0)
    monkeypatch.setattr("emq.producer.router._now_s", asyncio.get_running_loop().time)
    await family(r)
    seen, calls = Seen(), list[str]()
    async with r.consuming(seen) as host:

        def interrupted(whole: Any, name: str) -> None:
            found = getattr(whole, name)

            async def call(*args: Any) -> Any:
                calls.append(name)
                if len(calls) == at + 1:
                    await r.producer.refresh()  # as each publish does by real time, once it has not looked for a second
                    await r.producer.topic("f.x")
                    if awaits:
                        await asyncio.sleep(2)
                        await r.producer.publish_many("f.x", [b"1"] * 10)
                        await asyncio.sleep(2)
                return await found(*args)

            setattr(whole, name, call)

        await r.producer.publish_many("f.x", [b"0"] * 3)
        await asyncio.sleep(SOON_S)
        assert await names(r) == []
        for name in ("buried", "drop_buried"):
            interrupted(r.catalog.families, name)
        interrupted(host.forgetting._store, "forget")
        while len(calls) <= at:
            await asyncio.sleep(1)
        await r.producer.refresh()
        await r.producer.publish_many("f.x", [b"2"] * 10)
        await asyncio.sleep(3)
        assert Counter(seen.payloads) == {b"0": 3, b"2": 10} | ({b"1": 10} if awaits else {})
        await asyncio.sleep(SOON_S + 30.0 + 4 * forgetting.LOOK_S)
        assert left(r) == {}
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_host_that_has_a_queue_which_is_forgotten_after_all_reads_it_from_its_beginning(r: Rig) -> None:
    """No host has such a queue; but should one have it, its place in the queue is wrong, and it reads all again."""
    await family(r, idle_s=None)
    seen = Seen()
    async with r.consuming(seen):
        await r.producer.publish_many("f.x", [b"0"] * 4)
        await asyncio.sleep(2)
        topic = await r.catalog.get("f.x")
        store = MemoryStore(r.world)
        await store.log.trim([Trim(queue, 99, None, seal=True) for queue in topic.all_queues()])
        await store.lanes.settle([LaneSettle("f.x/0", "", LaneVerdict.SEAL)])
        for _ in range(2):
            answers = await store.forget([Ended("f.x/0", topic.queues(0), None, -7)])
        assert answers[0] is not None
        await Producer(r.store, r.catalog, clock=r.clock).publish_many("f.x", [b"1"] * 10)
        await asyncio.sleep(2 * SWEEP_S)
    assert Counter(seen.payloads) == {b"0": 4, b"1": 10}


async def test_the_leader_forgets_topics_that_were_deleted_those_of_no_family_an_hour_later(
    r: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emq.topics.catalog_rows.HOUR_MS", 300_000)
    topic = await r.topic("f.plain", 120.0, priorities=("family", "low"))  # a word of the rows of families
    async with r.consuming(Seen()):
        await r.producer.publish_many("f.plain", [b""] * 9)
        await asyncio.sleep(5)
        await r.admin.delete("f.plain", force=True)
        await asyncio.sleep(BURIED_S + 2 * forgetting.LOOK_S)
        assert left(r)["queues"] == {*topic.all_queues()}
        await asyncio.sleep(300)
        assert (left(r), await rows(r)) == ({}, 0)


async def test_what_a_store_forgot_is_recorded_although_it_could_not_serve_the_rest(
    r: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the store is silent at the second call. The names of that part go at the next look."""
    await family(r)
    recorded, calls, silent = list[events.Record](), list[int](), errors.StoreUnavailable("silent")
    async with r.consuming(Seen()) as host:
        forget = host.forgetting._store.forget  # type: ignore[attr-defined]

        async def half(ended: Sequence[Ended]) -> Sequence[Any]:
            calls.append(len(ended))
            if len(calls) != 2:
                return [*await forget(ended)]
            return [*await forget(ended[:1]), *[silent] * (len(ended) - 1)]

        monkeypatch.setattr(host.forgetting, "_store", SimpleNamespace(log=r.store.log, forget=half))
        monkeypatch.setattr(host.forgetting, "_trail", SimpleNamespace(enabled=True, record=recorded.append))
        await r.producer.publish("f.x", b"")
        await r.producer.publish("f.y", b"")
        await asyncio.sleep(SOON_S)
        before_us = r.clock.now_us()
        await asyncio.sleep(BURIED_S + 3 * forgetting.LOOK_S)
        assert (left(r), await rows(r)) == ({}, 0)
    found = [one for one in recorded if isinstance(one, events.Forgotten)]
    assert sorted((one.topic, one.priority, one.offset, one.until) for one in found) == [
        ("f.x", 1, 1, 2),
        ("f.y", 1, 1, 2),
    ]
    assert all(one.time_us > before_us for one in found)


async def rows(r: Rig) -> int:
    return await r.db.run(lambda c: int(c.execute(sa.text("SELECT count(*) FROM emq_topics")).scalar_one()))
