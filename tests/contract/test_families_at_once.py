"""Families on every store and database while much happens at once: floods of names, changes, deletions and sleep."""

from __future__ import annotations

import asyncio

import pytest
from family_place import NAMES, Interrupted, Place

from emq.runtime import errors
from emq.topics.families import Bounds
from emq.topics.model import Kind, Topic, TopicOptions


async def test_a_family_that_cannot_be_deleted_keeps_what_must_stay(place: Place) -> None:
    """A topic outside of it has one of its topics as budget; another budget is one within it only."""
    await place.create(bounds=Bounds(max_topics=50))
    outer, inner, below = (f"{place.prefix}{name}" for name in ("outer", "inner", "below"))
    for name in (outer, inner):
        await place.producer.publish(name, b"x")
    outside = f"outside{place.prefix}"
    await place.catalog.create(Topic(outside, 5.0, options=TopicOptions(budget=outer)))
    await place.catalog.create_many([Topic(below, 5.0, options=TopicOptions(budget=inner), own=("qps", "budget"))])
    with pytest.raises(errors.StillNamed, match=f"is the budget of 1 topic \\('{outside}'\\)"):
        await place.families.delete(place.family, force=True)
    assert await place.unfinished(outer) == 1
    assert (await place.families.get(place.family)).family.bounds == Bounds(max_topics=50)
    await place.producer.publish(f"{place.prefix}new", b"x")
    await place.catalog.delete(outside)
    await place.families.delete(place.family, force=True)
    with pytest.raises(errors.UnknownTopic):
        await place.families.get(place.family)


async def test_a_family_whose_deletion_fails_half_way_makes_topics_as_before(place: Place) -> None:
    await place.create(priorities=("only",), bounds=Bounds(max_topics=50))
    await place.producer.publish(f"{place.prefix}a", b"x")

    async def fail() -> None:
        raise errors.StoreUnavailable("the store is away")

    place.admin.delete_all = Interrupted(place.admin, [], 1, fail).delete_all  # type: ignore[method-assign]
    with pytest.raises(errors.StoreUnavailable, match="the store is away"):
        await place.families.delete(place.family, force=True)
    assert (await place.families.get(place.family)).family.bounds == Bounds(max_topics=50)
    await place.producer.publish(f"{place.prefix}b", b"x")


async def test_a_family_is_deleted_while_its_topics_go_to_sleep(place: Place, sealed: None) -> None:
    await place.create(priorities=("only",))
    a, b = (f"{place.prefix}{name}" for name in "ab")
    for name in (a, b):
        await place.producer.publish(name, b"x")
    await place.finish(a)
    delete, calls = place.admin.delete_all, list[str]()

    async def sleep() -> None:
        assert await place.sleep(a) == {a}

    place.admin.delete_all = Interrupted(place.admin, calls, 1, sleep).delete_all  # type: ignore[method-assign]
    await place.families.delete(place.family, force=True)
    place.admin.delete_all = delete  # type: ignore[method-assign]
    assert calls
    with pytest.raises(errors.UnknownTopic):
        await place.families.get(place.family)


async def test_places_of_a_full_family_are_free_again_when_topics_sleep(place: Place, sealed: None) -> None:
    await place.create(priorities=("only",), bounds=Bounds(max_topics=2))
    for name in "ab":
        await place.producer.publish(place.prefix + name, b"x")
        await place.finish(place.prefix + name)
    with pytest.raises(errors.FamilyFull):
        await place.producer.publish(f"{place.prefix}c", b"x")
    assert await place.sleep(f"{place.prefix}a") == {f"{place.prefix}a"}
    found = await asyncio.gather(
        *(p.publish(f"{place.prefix}{name}", b"x") for p in place.producers(2) for name in "cde"),
        return_exceptions=True,
    )
    assert await place.live() == 2
    assert {type(one) for one in found} == {str, errors.FamilyFull}
    made = {topic.name for topic in await place.families.topics(place.family)}
    assert sum([await place.unfinished(name) for name in made]) == sum(isinstance(one, str) for one in found)


async def test_a_thousand_new_names_at_once_from_two_producers(place: Place) -> None:
    await place.create(priorities=("only",))
    names = [f"{place.prefix}{i}" for i in range(1_000)]
    one, other = place.producers(2)
    await asyncio.gather(*(p.publish(name, b"x") for name in names for p in (one, other)))
    topics = await place.families.topics(place.family)
    assert await place.live() == len(topics) == 1_000
    lags = await place.admin.lag(topics)
    assert sum(lag.unfinished for lag in lags) == 2_000


async def test_a_change_of_the_family_at_the_moment_of_first_publishes_reaches_all_topics(place: Place) -> None:
    await place.create(priorities=("only",))
    names = [place.prefix + name for name in NAMES]

    async def change() -> None:
        for qps in (120.0, 7.0, 90.0):
            await place.families.set(place.family, {"qps": qps, "max_attempts": int(qps)})

    publishes = [p.publish(name, b"x", key=name) for p in place.producers(2) for name in names]
    await asyncio.gather(*publishes[:20], change(), *publishes[20:])
    topics = await place.families.topics(place.family)
    assert {(t.qps, t.options.max_attempts, t.active_groups) for t in topics} == {(90.0, 90, 2)}
    assert [await place.unfinished(name) for name in names] == [2] * len(names)


async def test_a_family_deleted_and_made_otherwise_while_its_topics_sleep(place: Place, sealed: None) -> None:
    """The names come back with other priorities, or as another kind."""
    await place.create(priorities=("high", "low"), qps=120.0)
    a, b = (f"{place.prefix}{name}" for name in "ab")
    for name in (a, b):
        await place.producer.publish(name, b"x", priority="low")
        await place.finish(name)
    assert await place.sleep(a, b) == {a, b}
    await place.families.delete(place.family)
    with pytest.raises(errors.UnknownTopic):
        await place.producer.publish(a, b"x")
    await place.create(priorities=("low", "other"), qps=60.0)
    await place.producer.publish_many(a, [b"x"] * 6, keys=[f"k{i}" for i in range(6)], priority="low")
    await place.producer.publish(a, b"x", priority="other")
    assert await place.unfinished(a) == 7
    await place.families.delete(place.family, force=True)
    await place.create(kind=Kind.FIXED_TIME, merge="key")
    await place.producer.refresh()  # else it may know the former kind for a second, as of any topic
    for name in (a, b):
        await place.producer.publish(name, b"x", merge_key=b"k", delay_ms=3_600_000)
    assert [held.delayed for held in await place.admin.slot_lag(await place.families.topics(place.family))] == [1, 1]
