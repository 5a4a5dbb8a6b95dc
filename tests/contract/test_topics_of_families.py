"""Topics of families on every store and database: the first publish makes them, and they sleep."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from target import Can, Target

from emq.database import Database
from emq.observe.admin import Admin
from emq.observe.families import Families
from emq.offsets.checkpoints import Checkpoint, CheckpointStore
from emq.offsets.sleep import put_to_sleep
from emq.producer import Producer
from emq.runtime import errors
from emq.runtime.clock import SystemClock
from emq.storage.answers import served
from emq.storage.lane_store import LaneAdd
from emq.storage.log_store import Put
from emq.storage.store import Store
from emq.topics.catalog import Catalog
from emq.topics.families import Bounds, Family
from emq.topics.model import Kind, State, Topic, TopicOptions
from support.rig import ENVIRONMENT

NAMES = [f"n{i}" for i in range(20)]


class Place:
    """A store and a database, with a family `<topic>.*`, as several processes see them.

    Attributes:
        catalog: of whoever puts topics to sleep.
    """

    def __init__(self, db: Database, store: Store, topic: str) -> None:
        self._db = db
        self.store = store
        self.prefix = f"{topic}."
        self.family = f"{self.prefix}*"
        self.catalog = self.other_catalog()
        self.checkpoints = CheckpointStore(db, ENVIRONMENT)
        self.admin = Admin(self.catalog, store, self.checkpoints, self._next_epoch)
        self.families = Families(self.catalog, self.admin)
        self.producer = Producer(store, self.other_catalog())

    def other_catalog(self) -> Catalog:
        return Catalog(self._db, ENVIRONMENT, None)

    def producers(self, count: int) -> list[Producer]:
        return [Producer(self.store, self.other_catalog()) for _ in range(count)]

    async def create(self, *, qps: float = 50.0, bounds: Bounds | None = None, **settings: Any) -> Family:
        fields = {k: settings.pop(k) for k in ("priorities", "group_qps", "kind") if k in settings}
        topic = Topic(self.family, qps, options=TopicOptions(**settings), **fields)
        return await self.families.create(Family(topic, bounds or Bounds()))

    async def live(self) -> int:
        return (await self.families.get(self.family)).live

    async def unfinished(self, name: str) -> int:
        [topic] = [await self.catalog.get(name)]
        return sum(lag.unfinished for lag in await self.admin.lag([topic]))

    async def finish(self, name: str) -> dict[str, int]:
        """Save a checkpoint behind all messages of a topic, as its host does; return the tails of its queues."""
        queues = (await self.catalog.get(name)).all_queues()
        tails = {q: b.tail for q, b in zip(queues, served(await self.store.log.bounds(queues)), strict=True)}
        await self.checkpoints.save([Checkpoint(queue, 1, tail) for queue, tail in tails.items()])
        return tails

    async def sleep(self, *names: str, now_ms: int = 0) -> set[str]:
        topics = [await self.catalog.get(name) for name in names]
        return await put_to_sleep(self.store, self.catalog, self.checkpoints, topics, now_ms)

    async def _next_epoch(self) -> int:
        return await self._db.next_generation(ENVIRONMENT)


@pytest.fixture
def place(db: Database, store: Store, target: Target) -> Place:
    return Place(db, store, target.topic)


@pytest.fixture
def sealed(needs: Callable[[Can], None]) -> None:
    """Skip where seals hold for one instance only: there no topic sleeps."""
    needs(Can.SHARE_CONTROL)


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


class Interrupted:
    """Runs something before one of the calls that are made through it and through what it gives out."""

    def __init__(self, whole: Any, calls: list[str], at: int, act: Callable[[], Awaitable[object]]) -> None:
        self._whole, self._calls, self._at, self._act = whole, calls, at, act

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._whole, name)
        if name in ("log", "lanes", "sorted", "families"):
            return Interrupted(found, self._calls, self._at, self._act)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            self._calls.append(name)
            if len(self._calls) == self._at:
                await self._act()
            return await found(*args, **kwargs)

        return call


@pytest.mark.parametrize("way", ["queue", "lane", "schedule"])
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
        topic = await place.catalog.get(name)

        async def put(name: str = name) -> None:
            if way == "queue":
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
        assert (await place.unfinished(name), held.delayed) == ((1, 0) if way == "queue" else (0, 1)), calls[:at]
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
    catalog: Any = Interrupted(place.catalog, calls, 2, die)
    with pytest.raises(Died):
        await put_to_sleep(place.store, catalog, place.checkpoints, [topic], 0)
    assert calls == ["versions", "forget"]
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
    changed = await place.families.set(place.family, {"qps": 120.0, "max_attempts": 9}, {"idle_s": 60.0})
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
    await place.admin.set_state(a, State.PAUSED)

    async def states() -> list[tuple[State, tuple[str, ...]]]:
        return [(t.state, t.own) for t in await place.families.topics(place.family)]

    await place.families.set(place.family, {"state": State.PAUSED})
    assert await states() == [(State.PAUSED, ("state",)), (State.PAUSED, ())]
    await place.families.set(place.family, {"state": State.ACTIVE})
    assert await states() == [(State.PAUSED, ("state",)), (State.ACTIVE, ())]
    await place.admin.set_state(a, State.ACTIVE)
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
    assert sum([await place.unfinished(name) for name in made]) == 2  # both producers, to the one new topic


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
    changes = await place.catalog.changes_of(version)
    assert (sorted(changes.deleted), changes.all) == (sorted(names), False)
    assert await place.catalog.families.drop_buried() == 0
    monkeypatch.setattr("emq.topics.family_catalog.BURIED_S", -3600.0)
    assert await place.catalog.families.drop_buried() == len(names)
    assert (await place.catalog.changes_of(version)).all
    assert (await place.catalog.changes_since(version)).all
    assert not (await place.catalog.changes_since(0)).all


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
