"""Topics of families on every store and database: the first publish makes them, and they sleep."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from family_place import NAMES, Interrupted, Place

from emq.offsets.sleep import put_to_sleep
from emq.runtime import errors
from emq.runtime.clock import SystemClock
from emq.storage.answers import served
from emq.storage.lane_store import LaneAdd
from emq.storage.log_store import Put
from emq.topics.families import Bounds
from emq.topics.model import Kind, State


async def test_first_publishes_of_many_producers_at_once_make_one_topic_of_each_name(place: Place) -> None:
    await place.create(priorities=("high", "low"))
    names = [place.prefix + name for name in NAMES]
    producers = place.producers(4)
    await asyncio.gather(*(p.publish(name, f"{i} {name}") for i, p in enumerate(producers) for name in names))
    topics = await place.families.topics(place.family)
    assert [topic.name for topic in topics] == sorted(names)
    assert {(topic.qps, topic.priorities, topic.family, topic.own) for topic in topics} == {
        (50.0, ("high", "low"), place.family, ())
    }
    assert await place.live() == len(names)
    assert [await place.unfinished(name) for name in names] == [4] * len(names)


async def test_a_family_has_at_most_max_topics_whoever_publishes(place: Place) -> None:
    await place.create(bounds=Bounds(max_topics=7))
    publishes = [p.publish(f"{place.prefix}{i}-{n}", b"") for i, p in enumerate(place.producers(3)) for n in range(5)]
    found = await asyncio.gather(*publishes, return_exceptions=True)
    refused = [one for one in found if isinstance(one, errors.FamilyFull)]
    assert (len(found) - len(refused), await place.live()) == (7, 7)
    assert f"family {place.family!r} has 7 topics, as many as it may have at a time" in str(refused[0])
    assert "raise the bound" in str(refused[0])
    made = (await place.families.topics(place.family))[0].name
    await place.producer.publish(made, b"the bound is for new ones only")


async def test_a_topic_that_slept_is_made_again_and_its_offsets_go_on(place: Place, sealed: None) -> None:
    await place.create(priorities=("only",))
    name = f"{place.prefix}a"
    for payload in (b"1", b"2"):
        await place.producer.publish(name, payload)
    assert await place.sleep(name) == set()  # two wait
    before = await place.finish(name)
    assert (await place.sleep(name), await place.live()) == ({name}, 0)
    assert await place.checkpoints.load(list(before)) == {}
    with pytest.raises(errors.UnknownTopic):
        await place.catalog.get(name)
    await place.producer.publish(name, b"3")
    [queue] = before
    [bounds] = served(await place.store.log.bounds([queue]))
    assert bounds.tail - bounds.head == 1
    assert bounds.head >= before[queue]
    assert await place.live() == 1


@pytest.mark.parametrize("way", ["waiting", "delayed", "dead", "scheduled"])
async def test_a_topic_that_holds_something_does_not_sleep(place: Place, sealed: None, way: str) -> None:
    await place.create()
    name = f"{place.prefix}a"
    match way:
        case "waiting":
            await place.producer.publish(name, b"x")
        case "delayed":
            await place.producer.publish(name, b"x", delay_ms=3_600_000)
        case "scheduled":
            await place.producer.schedule(name, b"x", every_s=3600)
        case "dead":
            topic = await place.producer.topic(name)
            await place.store.lanes.add([LaneAdd(topic.group(0), "id", b"x", 0, reason="it failed", epoch=1)])
    assert await place.sleep(name) == set()
    await place.producer.publish(name, b"it is open")


async def test_a_sorted_topic_with_bodies_apart_sleeps(place: Place, sealed: None) -> None:
    await place.create(kind=Kind.FIXED_TIME, merge="key")
    name = f"{place.prefix}a"
    await place.producer.topic(name)
    assert await place.sleep(name) == {name}
    await place.producer.publish(name, b"x", merge_key=b"k", delay_ms=3_600_000)
    assert await place.sleep(name) == set()


async def test_a_topic_that_retains_consumed_messages_does_not_sleep(place: Place, sealed: None) -> None:
    await place.create(retention_s=3600.0)
    name = f"{place.prefix}a"
    await place.producer.publish(name, b"x")
    await place.finish(name)
    assert await place.sleep(name) == set()


@pytest.mark.parametrize("way", ["queue", "lane", "schedule", "own"])
async def test_a_put_at_the_moment_of_sleep_is_stored_and_the_topic_is_there(
    place: Place, sealed: None, way: str
) -> None:
    """The put comes before each call of the sleep in turn, and after the last one."""
    await place.create(priorities=("only",))
    at, is_over = 0, False
    while not is_over:
        at += 1
        name = f"{place.prefix}{at}"
        await place.producer.publish(name, b"before")
        await place.finish(name)
        if way == "own":
            await place.admin.update(name, max_attempts=3)
        topic = await place.catalog.get(name)

        async def put(name: str = name) -> None:
            if way in ("queue", "own"):
                await place.producer.publish(name, b"x")
            elif way == "lane":
                await place.producer.publish(name, b"x", delay_ms=3_600_000)
            else:
                await place.producer.schedule(name, b"x", every_s=3600)

        calls: list[str] = []
        parts = [Interrupted(part, calls, at, put) for part in (place.store, place.catalog, place.checkpoints)]
        slept = await put_to_sleep(parts[0], parts[1], parts[2], [topic], 0)  # type: ignore[arg-type]
        is_over = len(calls) < at
        if is_over:
            assert slept == {name}
            await put()
        there = await place.catalog.get(name)
        [held] = await place.admin.slot_lag([there])
        assert (await place.unfinished(name), held.delayed) == ((1, 0) if way in ("queue", "own") else (0, 1)), calls[
            :at
        ]
        await place.producer.publish(name, b"it is open")
    assert at > 8


async def test_a_put_at_the_moment_of_a_deletion_by_hand_is_stored_and_the_topic_is_there(
    place: Place, sealed: None
) -> None:
    await place.create(priorities=("only",))
    name, calls = f"{place.prefix}a", list[str]()
    await place.producer.publish(name, b"before")
    await place.finish(name)

    async def put() -> None:
        await place.producer.publish(name, b"x")

    forget = place.catalog.families.forget
    place.catalog.families.forget = Interrupted(  # type: ignore[method-assign]
        place.catalog.families, calls, 1, put
    ).forget
    with pytest.raises(errors.StillConsumed, match="has just got a message; delete it again, or with force"):
        await place.admin.delete(name)
    assert await place.unfinished(name) == 1
    place.catalog.families.forget = forget  # type: ignore[method-assign]
    await place.finish(name)
    await place.admin.delete(name)
    assert await place.live() == 0


async def test_a_publish_opens_a_topic_whose_host_died_before_the_catalog_forgot_it(place: Place, sealed: None) -> None:
    await place.create(priorities=("only",))
    name = f"{place.prefix}a"
    await place.producer.publish(name, b"1")
    await place.finish(name)

    class Died(Exception):
        pass

    async def die() -> None:
        raise Died

    topic, calls = await place.catalog.get(name), list[str]()
    catalog: Any = Interrupted(place.catalog, calls, 3, die)
    with pytest.raises(Died):
        await put_to_sleep(place.store, catalog, place.checkpoints, [topic], 0)
    assert calls == ["versions", "some", "sleep"]
    [answer] = await place.store.log.put([Put(topic.queue(0, 0), [b"x"])])
    assert isinstance(answer, errors.QueueSealed)
    await place.producer.publish(name, b"2")
    assert await place.unfinished(name) == 1


async def test_a_family_changes_its_topics_but_not_in_what_is_their_own(place: Place) -> None:
    await place.create()
    a, b = (f"{place.prefix}{name}" for name in "ab")
    for name in (a, b):
        await place.producer.publish(name, b"")
    await place.admin.update(a, qps=500.0, max_attempts=3)
    changed = await place.families.set(place.family, {"qps": 120.0, "max_attempts": 9}, {"max_topics": 9})
    assert [topic.name for topic in changed.after] == [b]
    one, other = [await place.catalog.get(name) for name in (a, b)]
    assert (one.qps, one.options.max_attempts, one.own) == (500.0, 3, ("qps", "max_attempts"))
    assert (other.qps, other.active_groups, other.options.max_attempts, other.own) == (120.0, 3, 9, ())
    assert len(other.divisions) == 2  # in force once every host knows, as a change of one topic
    one = await place.admin.inherit(a, ["qps"])
    assert (one.qps, one.active_groups, one.own) == (120.0, 3, ("max_attempts",))
    for name in (a, b):
        await place.producer.publish(name, b"", key="k")


async def test_pausing_a_family_leaves_a_topic_paused_by_itself_paused_when_it_resumes(place: Place) -> None:
    await place.create()
    a, b = (f"{place.prefix}{name}" for name in "ab")
    for name in (a, b):
        await place.producer.publish(name, b"")
    await place.admin.update(a, state=State.PAUSED)

    async def states() -> list[tuple[State, tuple[str, ...]]]:
        return [(t.state, t.own) for t in await place.families.topics(place.family)]

    await place.families.set(place.family, {"state": State.PAUSED})
    assert await states() == [(State.PAUSED, ("state",)), (State.PAUSED, ())]
    await place.families.set(place.family, {"state": State.ACTIVE})
    assert await states() == [(State.PAUSED, ("state",)), (State.ACTIVE, ())]
    await place.admin.update(a, state=State.ACTIVE)
    assert await states() == [(State.ACTIVE, ()), (State.ACTIVE, ())]
    await place.families.set(place.family, {"state": State.DRAINING})
    with pytest.raises(errors.TopicClosed, match="is draining"):
        await place.producer.publish(f"{place.prefix}new", b"")
    assert await place.live() == 2


async def test_a_topic_wakes_with_the_settings_that_its_family_got_while_it_slept(place: Place, sealed: None) -> None:
    await place.create(priorities=("only",))
    a, b = (f"{place.prefix}{name}" for name in "ab")
    for name in (a, b):
        await place.producer.publish(name, b"")
        await place.finish(name)
    assert await place.sleep(a) == {a}
    await place.families.set(place.family, {"qps": 120.0})
    await place.producer.publish(a, b"")
    assert await place.sleep(b) == {b}
    await place.producer.publish(b, b"")
    topics = await place.families.topics(place.family)
    assert [(t.qps, t.active_groups) for t in topics] == [(120.0, 3), (120.0, 3)]


async def test_a_family_is_deleted_with_its_topics_and_made_again(place: Place) -> None:
    await place.create(qps=50.0)
    name = f"{place.prefix}a"
    await place.producer.publish(name, b"lost with the family")
    with pytest.raises(errors.StillConsumed, match="has 1 topic; wait until they are empty and idle"):
        await place.families.delete(place.family)
    assert await place.families.delete(place.family, force=True) == (1, 1)
    with pytest.raises(errors.UnknownTopic):
        await place.producer.publish(name, b"x")
    await place.create(qps=10.0)
    await place.producer.publish(name, b"kept")
    assert (await place.catalog.get(name)).qps == 10.0
    assert (await place.unfinished(name), await place.live()) == (1, 1)


async def test_rows_of_topics_that_slept_go_and_who_follows_the_catalog_slowly_reads_all(
    place: Place, sealed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.create(priorities=("only",))
    names = [place.prefix + name for name in NAMES]
    await asyncio.gather(*(place.producer.topic(name) for name in names))
    version = await place.catalog.version()
    for name in names:
        await place.finish(name)
    assert await place.sleep(*names) == set(names)
    changes = await place.catalog.changed_names(version)
    assert (sorted(changes.deleted), changes.all) == (sorted(names), False)
    now_s = SystemClock().now()
    assert await place.catalog.families.buried(now_s) == {}
    slept = await place.catalog.version()
    monkeypatch.setattr("emq.topics.family_catalog.BURIED_S", -3600.0)
    assert (await place.catalog.families.buried(now_s)).keys() == set(names)
    await place.catalog.families.drop_buried(now_s, names)
    assert await place.catalog.families.buried(now_s) == {}
    assert (await place.catalog.changed_names(version)).all
    assert (await place.catalog.changes_since(version)).all
    assert not (await place.catalog.changes_since(0)).all
    assert not (await place.catalog.changed_names(slept)).all  # who has seen the deletions has missed nothing


async def test_a_topic_that_wakes_at_once_starts_nothing_until_every_host_knows(place: Place, sealed: None) -> None:
    await place.create(priorities=("only",))
    name = f"{place.prefix}a"
    await place.producer.publish(name, b"")
    await place.finish(name)
    before_s = SystemClock().now()
    assert await place.sleep(name) == {name}
    await place.producer.publish(name, b"")
    first, then = (await place.catalog.get(name)).timeline
    assert (first.qps, then.qps) == (0.0, 50.0)
    assert then.since_s >= before_s + 1
