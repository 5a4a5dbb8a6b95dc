"""Topics that sleep and keep their rows, on every store and database: those with settings of their own."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from family_place import Place

from emq.offsets import deletion
from emq.offsets.checkpoints import Checkpoint
from emq.offsets.sleep import put_to_sleep
from emq.runtime import errors
from emq.runtime.clock import SystemClock
from emq.storage.answers import served
from emq.storage.log_store import Put
from emq.storage.store import Store
from emq.topics import opening
from emq.topics.model import State, Topic, TopicOptions

pytestmark = pytest.mark.usefixtures("sealed")

WAYS = ["own", "plain"]
"""A topic of a family with a setting of its own, and a topic of no family."""


@pytest.fixture
async def place(place: Place) -> Place:
    """Its family has one priority."""
    await place.create(priorities=("only",))
    return place


async def asleep(place: Place, way: str, name: str = "") -> str:
    """Make a topic that keeps its row, let it deliver a message and fall asleep; return its name."""
    if way == "own":
        name = f"{place.prefix}{name or 'own'}"
        await place.producer.publish(name, b"before")
        await place.admin.update(name, max_attempts=3, qps=120.0)
    else:
        name = f"{place.prefix[:-1]}-{name or 'plain'}"
        options = TopicOptions(idle_s=300.0, max_attempts=3)
        await place.admin.create([Topic(name, 120.0, priorities=("only",), options=options)])
        await place.producer.publish(name, b"before")
    await place.finish(name)
    assert await place.sleep(name) == {name}
    return name


@pytest.mark.parametrize("way", WAYS)
async def test_a_topic_with_a_row_sleeps_and_the_first_publish_wakes_it_with_its_settings(
    place: Place, way: str
) -> None:
    before = await place.catalog.version()
    name = await asleep(place, way)
    slept = await place.catalog.get(name)
    assert (slept.asleep_s > 0, slept.qps, slept.options.max_attempts) == (True, 120.0, 3)
    assert name in [topic.name for topic in await place.catalog.list()]
    assert name not in {topic.name for topic in (await place.catalog.changes_since(0)).changed}
    assert name in (await place.catalog.changed_names(before)).deleted
    assert name in (await place.catalog.changes_since(before)).deleted
    assert await place.live() == 0
    [answer] = await place.store.log.put([Put(slept.queue(0, 0), [b"by who has not heard of it"])])
    assert isinstance(answer, errors.QueueSealed)
    for producer in (place.producer, *place.producers(2)):
        await producer.publish(name, b"after")
    woken = await place.catalog.get(name)
    assert (woken.asleep_s, woken.qps, woken.active_groups, woken.options.max_attempts) == (0.0, 120.0, 3, 3)
    assert woken.layout > slept.layout
    assert await place.unfinished(name) == 3
    assert await place.live() == (way == "own")
    assert name in {topic.name for topic in (await place.catalog.changes_since(0)).changed}


@pytest.mark.parametrize("way", WAYS)
async def test_a_change_of_a_topic_that_sleeps_leaves_it_asleep_and_tells_nobody(place: Place, way: str) -> None:
    name = await asleep(place, way)
    version = await place.catalog.version()
    for qps in range(1, 100):  # more numbers of groups than a topic has at a time
        await place.catalog.update(name, qps=50.0 * qps)
    await place.admin.update(name, qps=30.0)
    await place.admin.update(name, state=State.PAUSED)
    await place.admin.create([await place.catalog.get(name)], exist_ok=True)
    await place.admin.put_many([await place.catalog.get(name)])
    slept = await place.catalog.get(name)
    assert (slept.asleep_s > 0, slept.qps, slept.groups, slept.earlier) == (True, 30.0, 1, ())
    assert (await place.catalog.changed_names(version)).changed == []
    assert (await place.catalog.changes_since(version)).changed == []
    [answer] = await place.store.log.put([Put(slept.queue(0, 0), [b"it is sealed"])])
    assert isinstance(answer, errors.QueueSealed)
    await place.admin.update(name, state=State.DRAINING)
    with pytest.raises(errors.TopicClosed, match="is draining and takes no new messages"):
        await place.producer.publish(name, b"")
    assert (await place.catalog.get(name)).asleep_s > 0
    await place.admin.update(name, state=State.PAUSED)
    await place.producer.publish(name, b"")
    woken = await place.catalog.get(name)
    assert (woken.state, woken.qps, woken.active_groups, woken.groups) == (State.PAUSED, 30.0, 1, 1)


async def test_a_family_changes_those_that_sleep_and_a_row_that_says_nothing_goes(place: Place) -> None:
    name, other = await asleep(place, "own"), await asleep(place, "own", "other")
    await place.families.set(place.family, {"max_length": 77, "qps": 60.0})
    slept = await place.catalog.get(name)
    assert (slept.asleep_s > 0, slept.qps, slept.options.max_length) == (True, 120.0, 77)
    await place.families.set(place.family, {"state": State.DRAINING})
    with pytest.raises(errors.TopicClosed):
        await place.producer.publish(name, b"")
    await place.families.set(place.family, {"state": State.ACTIVE})
    await place.admin.inherit(name, ["qps", "max_attempts"])
    with pytest.raises(errors.UnknownTopic):
        await place.catalog.get(name)
    await place.producer.publish(name, b"")
    assert ((await place.catalog.get(name)).qps, await place.live()) == (60.0, 1)
    with pytest.raises(errors.StillConsumed, match="has 2 topics"):
        await place.families.delete(place.family)
    assert (await place.families.delete(place.family, force=True)) == (2, 1)
    with pytest.raises(errors.UnknownTopic):
        await place.catalog.get(other)


async def test_topics_that_sleep_count_against_no_stranger_and_wake_in_a_full_family(place: Place) -> None:
    await place.families.set(place.family, {}, {"max_topics": 1})
    name = await asleep(place, "own")
    await place.producer.publish(f"{place.prefix}stranger", b"")
    with pytest.raises(errors.FamilyFull):
        await place.producer.publish(f"{place.prefix}another", b"")
    await place.producer.publish(name, b"its operator has made it")
    assert await place.live() == 2


@pytest.mark.parametrize("way", ["update", "put_many"])
async def test_a_topic_that_is_to_sleep_no_more_wakes_at_once_and_takes_messages(place: Place, way: str) -> None:
    """Nobody takes such a topic for one that was left half asleep, so a later publish must not find it sealed."""
    name = await asleep(place, "plain")
    slept = await place.catalog.get(name)
    if way == "update":
        topic = await place.admin.update(name, idle_s=None)
    else:
        options = msgspec.structs.replace(slept.options, idle_s=None)
        [topic] = await place.admin.put_many([msgspec.structs.replace(slept, options=options)])
    assert topic == await place.catalog.get(name)
    assert (topic.asleep_s, topic.layout > slept.layout) == (0.0, True)
    await place.admin.create([Topic(f"{name}-below", 5.0, options=TopicOptions(budget=name))])
    [answer] = await place.store.log.put([Put(topic.queue(0, 0), [b"it is open"])])
    assert not isinstance(answer, errors.EMQError)
    await place.producer.publish(name, b"")
    assert await place.unfinished(name) == 2


@pytest.mark.parametrize("opener", ["change", "creation", "publisher"])
async def test_what_is_open_is_awake_although_it_fell_asleep_just_before_it_was_opened(
    place: Place, monkeypatch: pytest.MonkeyPatch, opener: str
) -> None:
    """Else a message of somebody who has not heard of it would lie there, and nobody would start it."""
    name = f"{place.prefix[:-1]}-plain"
    topic = Topic(name, 20.0, priorities=("only",), options=TopicOptions(idle_s=300.0))
    await place.admin.create([topic])
    await place.producer.publish(name, b"before")
    await place.finish(name)
    [there] = [await place.catalog.get(name)]
    await deletion.seal_empty(place.store, place.checkpoints, [there])  # its host is about to let it sleep
    opened, slept = opening.opened, list[set[str]]()

    async def too_late(store: Store, topics: Sequence[Topic]) -> list[Topic]:
        if not slept:
            slept.append(set())
            slept.append(await place.sleep(name))
        return await opened(store, topics)

    monkeypatch.setattr(opening, "opened", too_late)
    if opener == "change":
        await place.admin.update(name, qps=21.0)
    elif opener == "creation":
        await place.admin.create([topic], exist_ok=True)
    else:
        await place.producer.publish(name, b"it finds the topic sealed")
    assert slept[1] == {name}
    assert (await place.catalog.get(name)).asleep_s == 0.0
    await place.producer.publish(name, b"")
    assert await place.unfinished(name) == (2 if opener == "publisher" else 1)


@pytest.mark.parametrize("way", WAYS)
async def test_a_topic_that_sleeps_is_deleted_and_wakes_no_more(place: Place, way: str) -> None:
    name = await asleep(place, way)
    version, before_s = await place.catalog.version(), SystemClock().now()
    assert await place.admin.delete(name) == 0
    assert await place.live() == 0
    assert (await place.catalog.changed_names(version)).deleted == [name]
    with pytest.raises(errors.UnknownTopic):
        await place.catalog.get(name)
    if way == "plain":
        with pytest.raises(errors.UnknownTopic):
            await place.producer.publish(name, b"")
        await place.admin.create([Topic(name, 5.0, priorities=("only",))])
    await place.producer.publish(name, b"of a new topic")
    new = await place.catalog.get(name)
    assert (new.own, new.options.max_attempts, await place.unfinished(name)) == ((), 16, 1)
    is_late = SystemClock().now() >= before_s + 2  # a slow machine: by then every host knows of the deletion
    assert is_late or new.timeline[-1].since_s >= before_s + 1


async def test_a_publish_at_the_moment_of_a_deletion_wakes_the_topic(place: Place) -> None:
    name, forget = await asleep(place, "own"), place.catalog.families.forget

    async def after_a_publish(*args: object) -> set[str]:
        await place.producer.publish(name, b"x")
        return await forget(*args)  # type: ignore[arg-type]

    place.catalog.families.forget = after_a_publish  # type: ignore[method-assign]
    with pytest.raises(errors.StillConsumed, match="has just got a message"):
        await place.admin.delete(name)
    assert await place.unfinished(name) == 1


@pytest.mark.parametrize("way", WAYS)
async def test_a_topic_that_wakes_at_once_starts_nothing_until_every_host_knows(place: Place, way: str) -> None:
    before_s = SystemClock().now()
    name = await asleep(place, way)
    await place.producer.publish(name, b"")
    first, then = (await place.catalog.get(name)).timeline
    assert (first.qps, then.qps) == (0.0, 120.0)
    assert then.since_s >= before_s + 1


async def test_a_topic_that_sleeps_wakes_when_another_one_names_it_as_its_budget(place: Place) -> None:
    for i, named in enumerate((await asleep(place, "plain"), await asleep(place, "own"))):
        below = Topic(f"{place.prefix[:-1]}-below{i}", 5.0, options=TopicOptions(budget=named))
        await place.admin.create([below])
        budget = await place.catalog.get(named)
        assert (budget.asleep_s, budget.shared_s > 0) == (0.0, True)
        await place.producer.publish(named, b"")
        assert await place.unfinished(named) == 1
    assert await place.live() == 1


async def test_a_row_that_is_found_asleep_after_a_loss_of_the_database_takes_its_messages_along(place: Place) -> None:
    """The database forgets that a topic woke. Its queues are open, and whoever publishes wakes it again."""
    name = await asleep(place, "own")
    slept = await place.catalog.get(name)
    await place.producer.publish(name, b"1")
    await place.catalog.change(name, lambda woken: slept)
    await place.producers(1)[0].publish(name, b"2")
    woken = await place.catalog.get(name)
    bounds = served(await place.store.log.bounds(woken.all_queues()))
    assert (woken.asleep_s, sum(b.tail - b.head for b in bounds)) == (0.0, 2)


async def test_a_host_with_an_older_picture_of_a_topic_does_not_put_it_to_sleep(place: Place) -> None:
    """The topic may have groups by now that the host does not count."""
    name = f"{place.prefix}a"
    older = await place.producer.topic(name)
    await place.families.set(place.family, {"qps": 500.0})
    for i in range(10):
        await place.producers(1)[0].publish(name, b"x", key=str(i))
    await place.checkpoints.save([Checkpoint(older.queue(0, 0), 1, 100)])  # of the first group
    assert await put_to_sleep(place.store, place.catalog, place.checkpoints, [older], 0) == set()
    slept = await asleep(place, "own", "b")
    assert (
        await put_to_sleep(
            place.store, place.catalog, place.checkpoints, [msgspec.structs.replace(older, name=slept)], 0
        )
        == set()
    )
    [answer] = await place.store.log.put([Put(f"{slept}/0/only", [b"it stays sealed"])])
    assert isinstance(answer, errors.QueueSealed)


async def test_a_topic_whose_host_died_putting_it_to_sleep_is_open_once_it_may_not_sleep_any_more(place: Place) -> None:
    name = f"{place.prefix}plain"
    await place.admin.create([Topic(name, 5.0, priorities=("only",), options=TopicOptions(idle_s=60.0))])
    topic = await place.catalog.get(name)
    assert await deletion.seal_empty(place.store, place.checkpoints, [topic]) == [topic]
    await place.admin.update(name, idle_s=None)
    await place.producer.publish(name, b"x")
    assert await place.unfinished(name) == 1
