"""A producer knows the topics to which it publishes, however many exist."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Collection, Iterable
from typing import TypeVar

import pytest

from emq.database import Database
from emq.producer import router
from emq.producer.first_publishes import FirstPublishes
from emq.producer.router import Router
from emq.producer.routes import Route
from emq.runtime import errors
from emq.topics.catalog import Catalog
from emq.topics.family_catalog import Made
from emq.topics.model import State, Topic
from emq.topics.topic_changes import ChangedNames
from emq_stores.memory import MemoryStore

T = TypeVar("T")


class Watched(Catalog):
    """Notes the names in each reading, holds readings back while `go` is not set, and fails them with `failure`."""

    def __init__(self, db: Database) -> None:
        super().__init__(db, "online", None)
        self.read: list[list[str]] = []
        self.gets = 0
        self.began, self.go = asyncio.Event(), asyncio.Event()
        self.go.set()
        self.failure: Exception | None = None
        self.told, self.tell = asyncio.Event(), asyncio.Event()
        self.tell.set()
        self._make = self.families.make
        self.families.make = self.make  # type: ignore[method-assign]

    async def make(self, names: Collection[str]) -> Made:
        if self.failure is not None:
            raise self.failure
        self.read.append([*names])
        return await self._held(self._make(names))

    async def some(self, names: Iterable[str]) -> dict[str, Topic]:
        self.read.append([*names])
        return await self._held(super().some(self.read[-1]))

    async def changed_names(self, version: int) -> ChangedNames:
        if self.failure is not None:
            raise self.failure
        return await self._held(super().changed_names(version))

    async def _held(self, reading: Awaitable[T]) -> T:
        found = await reading
        self.began.set()
        await self.go.wait()
        return found

    async def get(self, name: str) -> Topic:
        self.gets += 1
        self.told.set()
        await self.tell.wait()
        return await super().get(name)


@pytest.fixture
def catalog(db: Database) -> Watched:
    return Watched(db)


@pytest.fixture
def routes(catalog: Watched) -> Router:
    return Router(catalog, FirstPublishes(MemoryStore(), catalog))


async def created(catalog: Watched, *names: str) -> list[Topic]:
    return await catalog.create_many([Topic(name, 100, group_qps=10) for name in names])


async def test_only_what_is_published_to_is_read_and_names_wanted_together_share_a_reading(
    catalog: Watched, routes: Router
) -> None:
    await created(catalog, *(f"t{i}" for i in range(50)))
    found = await asyncio.gather(*(routes.route(f"t{i % 5}") for i in range(40)))
    assert [route.topic.name for route in found] == [f"t{i % 5}" for i in range(40)]
    both = await routes.routes(["t1", "t8", "t9", "none"])
    assert [getattr(both[name], "topic", None) is not None for name in both] == [True, True, True, False]
    assert isinstance(both["none"], errors.UnknownTopic)
    assert catalog.read == [[f"t{i}" for i in range(5)], ["t8", "t9", "none"]]
    assert set(routes._routes) == {*(f"t{i}" for i in range(5)), "t8", "t9"}


async def test_a_reading_under_way_does_not_count_for_a_topic_that_was_created_since(
    catalog: Watched, routes: Router
) -> None:
    await created(catalog, "first")
    catalog.go.clear()
    asked = [asyncio.create_task(routes.route(name)) for name in ("first", "late")]
    await catalog.began.wait()
    await created(catalog, "late")
    asked += [asyncio.create_task(routes.route(name)) for name in ("late", "first")]
    await asyncio.sleep(0)
    catalog.go.set()
    assert [route.topic.name for route in (await asked[0], await asked[2], await asked[3])] == [
        "first",
        "late",
        "first",
    ]
    assert (await asked[1]).topic.name == "late", "it was created before the caller was told that it is unknown"
    assert (len(catalog.read), catalog.gets) == (3, 1)


async def test_callers_go_on_where_a_topic_is_created_while_the_first_is_told_of_none(
    catalog: Watched, routes: Router
) -> None:
    catalog.tell.clear()
    asked = [asyncio.create_task(routes.route("late"))]
    await catalog.told.wait()
    await created(catalog, "late", "other")
    asked += [asyncio.create_task(routes.route(name)) for name in ("other", "late")]
    assert (await asked[1]).topic.name == "other"
    catalog.tell.set()
    async with asyncio.timeout(5):
        assert [(await task).topic.name for task in asked] == ["late", "other", "late"]
    assert len(routes._lines) == 0


async def test_a_flood_of_unknown_names_costs_one_reading(catalog: Watched, routes: Router) -> None:
    await created(catalog, "a")
    found = await routes.routes([*(f"none-{i}" for i in range(300)), "a"])
    assert sum(isinstance(route, errors.UnknownTopic) for route in found.values()) == 300
    asked = [routes.route(f"none-{i}") for i in range(300)]
    assert {type(outcome) for outcome in await asyncio.gather(*asked, return_exceptions=True)} == {errors.UnknownTopic}
    assert (len(catalog.read), catalog.gets) == (2, 1)


@pytest.mark.parametrize("waits_for", ["first reading", "look"])
async def test_nobody_overtakes_those_that_wait_for_their_topic(
    catalog: Watched, routes: Router, waits_for: str
) -> None:
    """Also not in the moment between the end of the reading and the time at which the others go on."""
    await created(catalog, "orders")
    if waits_for == "look":
        await routes.route("orders")
        routes._checked_at -= router.CATALOG_POLL_S + 1
    order: list[int] = []

    async def publish(n: int) -> None:
        await routes.route("orders")
        order.append(n)

    tasks = [asyncio.create_task(publish(n)) for n in range(5)]
    begun = 5
    while len(order) < 5:
        tasks.append(asyncio.create_task(publish(begun)))
        begun += 1
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert order == [*range(begun)]
    assert (await routes.route("orders")).topic.name == "orders"
    assert not routes._lines
    assert routes._look is None


async def test_a_cancelled_caller_cancels_nobody_else(catalog: Watched, routes: Router) -> None:
    await created(catalog, "a", "b")
    catalog.go.clear()
    tasks = [asyncio.create_task(routes.route(name)) for name in "aabb"]
    await catalog.began.wait()
    for task in (tasks[0], tasks[3]):
        task.cancel()
    catalog.go.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(outcome, asyncio.CancelledError) for outcome in outcomes] == [True, False, False, True]
    assert not routes._lines


async def test_a_name_that_no_topic_can_have_is_refused_alone_and_no_unknown_name_is_kept(
    catalog: Watched, routes: Router
) -> None:
    class Text(str):
        __slots__ = ()

    await created(catalog, "a", "b")
    names = ["a", "a\0", "", "\ud800", "x y", "a" * 1000, Text("b"), *(f"none-{i}" for i in range(20))]
    wrong = (7, b"a", None, ["a"])
    asked = [routes.route(name) for name in (*names, *wrong)]  # type: ignore[arg-type]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    found = [outcome.topic.name if isinstance(outcome, tuple) else type(outcome) for outcome in outcomes]
    unknown, invalid = errors.UnknownTopic, errors.InvalidTopic
    assert found == ["a", unknown, unknown, invalid, unknown, unknown, "b", *[unknown] * 20, *[invalid] * 4]
    assert (set(routes._routes), len(routes._lines)) == ({"a", "b"}, 0)


async def test_more_topics_than_are_kept_are_all_found_and_nothing_of_the_others_stays(
    catalog: Watched, routes: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, "KNOWN", 10)
    monkeypatch.setattr(router, "AT_ONCE", 7)
    names = [f"t{i:02}" for i in range(40)]
    await created(catalog, *names)
    found = await asyncio.gather(*(routes.route(name) for name in names * 2))
    assert [route.topic.name for route in found] == names * 2
    together = await routes.routes(names)
    assert [route.topic.name for route in together.values() if not isinstance(route, Exception)] == names
    await asyncio.sleep(0)
    assert (len(routes._routes), len(routes._lines)) == (10, 0)
    before = await routes.route("t00")
    assert [before.group(None) for _ in range(3)] == [0, 1, 2]
    for name in names[20:29]:
        await routes.route(name)
    assert [*routes._routes] == ["t00", *names[20:29]]
    await routes.route("t20")
    await routes.route("t39")
    assert [*routes._routes] == [*names[21:29], "t20", "t39"], "those of the last publishes stay"
    assert (await routes.route("t00")).memory is not before.memory


async def test_a_topic_that_another_caller_has_read_is_known_even_if_it_is_dropped_at_once(
    catalog: Watched, routes: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, "KNOWN", 2)
    await created(catalog, "a", "b", "c")
    one, three = await asyncio.gather(routes.routes(["a"]), routes.routes(["a", "b", "c"]))
    assert [route.topic.name for route in (*one.values(), *three.values()) if isinstance(route, Route)] == [*"aabc"]


async def test_changes_are_followed_by_name_and_only_known_topics_read_again(catalog: Watched, routes: Router) -> None:
    await created(catalog, *(f"t{i}" for i in range(10)))
    before = await routes.routes(["t0", "t1", "t2", "t3"])
    catalog.read.clear()
    await catalog.update("t1", qps=50)
    await catalog.update("t9", qps=50)
    await catalog.delete("t2", "t3", "t8")
    await created(catalog, "t3")
    await routes.refresh()
    assert [sorted(names) for names in catalog.read] == [["t1", "t2", "t3"]]
    after = await routes.routes(["t0", "t1", "t3"])
    assert after["t0"] is before["t0"]
    assert after["t1"].topic.qps == 50  # type: ignore[union-attr]
    same = {name: after[name].memory is before[name].memory for name in after}  # type: ignore[union-attr]
    assert same == {"t0": True, "t1": True, "t3": False}, "the offsets of a topic created again begin anew"
    assert set(routes._routes) == {"t0", "t1", "t3"}
    await routes.refresh()
    assert len(catalog.read) == 1, "nothing has changed since"


async def test_a_change_that_comes_during_a_reading_is_not_missed(catalog: Watched, routes: Router) -> None:
    await created(catalog, "a")
    catalog.go.clear()
    asked = asyncio.create_task(routes.route("a"))
    await catalog.began.wait()
    await catalog.update("a", qps=50)
    catalog.go.set()
    assert (await asked).topic.qps == 100
    assert (await routes.topic_now("a")).qps == 50
    await catalog.update("a", state=State.DRAINING)
    await routes.refresh()
    with pytest.raises(errors.TopicClosed):
        await routes.route("a")


async def test_a_look_that_ends_before_a_topics_first_reading_hides_no_change_of_it(
    catalog: Watched, routes: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    await created(catalog, "a", "b")
    await routes.route("b")
    make, read, go = catalog.families.make, asyncio.Event(), asyncio.Event()

    async def late(names: Collection[str]) -> Made:
        made = await make(names)
        read.set()
        await go.wait()
        return made

    monkeypatch.setattr(catalog.families, "make", late)
    asked = asyncio.create_task(routes.route("a"))
    await read.wait()
    await catalog.update("a", qps=50)
    await routes.refresh()
    go.set()
    assert (await asked).topic.qps == 100
    await routes.refresh()
    assert (await routes.route("a")).topic.qps == 50


async def test_what_a_database_has_lost_is_dropped_by_those_that_knew_it(catalog: Watched, routes: Router) -> None:
    await created(catalog, "a", "b")
    await routes.routes(["a", "b"])
    await catalog.update("b", qps=7)
    routes._version = await catalog.version() + 100
    await catalog.delete("a")
    await routes.refresh()
    assert {name: route.topic.qps for name, route in routes._routes.items()} == {"b": 7}
    assert routes._version == await catalog.version()


async def test_while_the_database_is_away_only_topics_published_to_before_are_known(
    catalog: Watched, routes: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, "_now_s", lambda: 1e6 + time.monotonic())  # of a machine that has run for long
    await created(catalog, "a", "b")
    await routes.route("a")
    catalog.failure = errors.DatabaseUnavailable("away")
    with pytest.raises(errors.DatabaseUnavailable):
        await routes.route("b")
    assert (await routes.route("a")).topic.name == "a"
    with pytest.raises(errors.DatabaseUnavailable):
        await routes.topic_now("a")
    catalog.failure = ValueError("a bug")
    with pytest.raises(ValueError, match="a bug"):
        await routes.route("b")
    catalog.failure = None
    assert (await routes.route("b")).topic.name == "b"
    assert (await routes.topic_now("a")).name == "a"


async def test_a_look_at_a_silent_database_holds_publishes_up_once_and_in_order(
    catalog: Watched, routes: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, "PATIENCE_S", 0.05)
    await created(catalog, "a", "b")
    await routes.route("a")
    catalog.go.clear()
    unknown = asyncio.create_task(routes.route("b"))
    await asyncio.sleep(0.01)
    routes._checked_at -= router.CATALOG_POLL_S + 1
    order: list[int] = []

    async def publish(n: int) -> None:
        await routes.route("a")
        order.append(n)

    await asyncio.gather(*(publish(n) for n in range(20)))
    assert order == [*range(20)]
    assert not unknown.done()
    catalog.go.set()
    assert (await unknown).topic.name == "b"


async def test_a_producer_that_saw_an_empty_catalog_follows_the_first_topics_of_it(
    catalog: Watched, routes: Router
) -> None:
    await routes.refresh()
    with pytest.raises(errors.UnknownTopic):
        await routes.route("a")
    await created(catalog, "a")
    await routes.route("a")
    await catalog.delete("a")
    await routes.refresh()
    with pytest.raises(errors.UnknownTopic):
        await routes.route("a")
