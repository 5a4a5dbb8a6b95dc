"""Families that a program declares: they are there once the app is open, and in its tests, too."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

import emq
from emq.runtime import errors
from emq.topics.families import Bounds, Family
from emq.topics.model import Topic
from emq_testing import Harness


def shop(place: Path) -> emq.App:
    return emq.App(f"sqlite:///{place}/emq.db")


async def test_an_app_makes_its_families_when_it_opens_and_a_publish_makes_their_topics(tmp_path: Path) -> None:
    app = shop(tmp_path)
    app.family("orders.*", qps=7, priorities=["high", "low"], max_attempts=3, bounds=Bounds(max_topics=1))
    for _ in range(2):
        async with app:
            await app.publish("orders.acme", b"", priority="low")
            topic = await app.catalog.get("orders.acme")
            assert (topic.qps, topic.options.max_attempts, topic.own) == (7.0, 3, ())
            with pytest.raises(emq.FamilyFull):
                await app.publish("orders.initech", b"")
    assert issubclass(emq.FamilyFull, emq.TopicFull)


async def test_a_family_with_other_settings_stays_as_it_is_unless_the_program_updates_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with shop(tmp_path) as app:
        await app.families.create(Family(Topic("orders.*", 7.0)))
        await app.publish("orders.acme", b"")
    kept, updating = shop(tmp_path), shop(tmp_path)
    kept.family("orders.*", qps=8)
    updating.family("orders.*", qps=9, idle_s=None, update=True)
    async with kept:
        assert (await kept.families.get("orders.*")).family.topic.qps == 7.0
    assert "family 'orders.*' exists and keeps its settings" in caplog.text
    async with updating:
        family = (await updating.families.get("orders.*")).family
        assert (family.topic.qps, family.topic.options.idle_s) == (9.0, None)
        assert (await updating.catalog.get("orders.acme")).qps == 9.0


async def test_apps_that_open_at_once_make_one_family(tmp_path: Path) -> None:
    apps = [shop(tmp_path) for _ in range(4)]
    for i, app in enumerate(apps):
        app.family("orders.*", qps=7 + i % 2)
    async with asyncio.timeout(60):
        await asyncio.gather(*(app.__aenter__() for app in apps))
        assert len({(await app.families.get("orders.*")).family.topic.qps for app in apps}) == 1
        await asyncio.gather(*(app.__aexit__() for app in apps))


async def test_a_family_is_declared_once_with_values_in_range_before_the_app_opens(tmp_path: Path) -> None:
    app = shop(tmp_path)
    app.family("orders.*", qps=7)
    for name, qps, bounds, text in (
        ("orders.*", 7, None, "has declared it already"),
        ("orders", 7, None, "one star at the end"),
        ("mail.*", 7, Bounds(max_topics=-1), "max_topics -1 must be from 0"),
    ):
        with pytest.raises(errors.InvalidTopic, match=text):
            app.family(name, qps=qps, bounds=bounds)
    with pytest.raises(errors.InvalidTopic, match="no option 'max_attempt'"):
        app.family("mail.*", qps=7, max_attempt=3)  # type: ignore[call-arg]
    app.family("wrong.*", qps=-1)  # only the catalog knows all bounds
    with pytest.raises(errors.InvalidTopic, match="qps"):
        await app.__aenter__()
    assert not app.is_open
    async with shop(tmp_path) as other:
        with pytest.raises(errors.WrongState):
            other.family("mail.*", qps=7)


async def test_a_family_takes_a_type_of_payload_and_a_qps() -> None:
    app = emq.App("memory:", options=emq.Settings())
    for payload in (50, emq.Message, emq.App):
        with pytest.raises(errors.InvalidSettings, match=r"family 'orders\.\*': payload .*; give a type"):
            app.family("orders.*", payload, qps=1)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidTopic, match="qps"):
        app.family("orders.*")  # type: ignore[call-arg]
    assert app.declared == []


@dataclasses.dataclass
class Order:
    id: int


async def test_a_family_publishes_objects_to_its_topics_and_binds_their_handler(tmp_path: Path) -> None:
    app = shop(tmp_path)
    orders = app.family("orders.*", Order, qps=50)
    seen: list[tuple[int, str]] = []

    @orders.handler
    async def ship(order: Order, message: emq.Message) -> None:
        seen.append((order.id, message.topic))

    async with Harness(app) as t:
        await orders.publish("acme", Order(1), key="a")
        await orders.publish_many("initech", [Order(2), Order(3)])
        await t.settled()
    assert sorted(seen) == [(1, "orders.acme"), (2, "orders.initech"), (3, "orders.initech")]


async def test_an_app_pauses_drains_resumes_and_deletes_a_topic_or_a_family_and_tells_its_lag(tmp_path: Path) -> None:
    async with (app := shop(tmp_path)):
        await app.families.create(Family(Topic("orders.*", 7.0)))
        await app.publish_many("orders.acme", [b"x"] * 2)
        await app.publish("orders.initech", b"x", delay_ms=60_000)
        assert [await app.lag(name) for name in ("orders.acme", "orders.*")] == [2, 3]
        for name in ("orders.acme", "orders.*"):
            for change, state in ((app.pause, "paused"), (app.drain, "draining"), (app.resume, "active")):
                await change(name)
                assert (await app.catalog.get("orders.acme")).state == state
                assert (await app.catalog.get("orders.initech")).state == ("active" if name == "orders.acme" else state)
        with pytest.raises(emq.StillConsumed):
            await app.delete("orders.acme")
        assert await app.delete("orders.acme", force=True) == 2
        with pytest.raises(emq.StillConsumed):
            await app.delete("orders.*")
        assert await app.delete("orders.*", force=True) == 1
        for name in ("orders.acme", "orders.*"):
            for missing in (app.lag, app.pause, app.delete):
                with pytest.raises(emq.UnknownTopic):
                    await missing(name)


async def test_a_test_of_the_app_has_the_settings_of_its_families(tmp_path: Path) -> None:
    app = shop(tmp_path)
    app.family("orders.*", qps=2, max_attempts=1)

    @app.handler("orders.*")
    async def fail(order: bytes) -> None:
        raise ValueError(order)

    async with Harness(app) as t:
        before = t.now
        for _ in range(6):
            await t.publish("orders.acme", b"")
        await t.settled()
        assert len(t.dead_letters) == 6
        assert (t.now - before).total_seconds() > 1
        with pytest.raises(emq.InvalidTopic):
            await t.publish("orders.a+b", b"")


WRONG: list[dict[str, Any]] = [
    *({"qps": value} for value in (0, 1e12, 1e-9, "x", None, float("inf"), 10**400)),
    *({"priorities": value} for value in ([], ["a", "a"], ["a b"], "ab")),
    {"kind": "none"},
    {"kind": "priority", "priorities": ["a"]},
    *({"slots": value} for value in (3, 4)),
    {"group_qps": 0.5},
    {"weights": (0,)},
    {"budget": "nowhere"},
    {"budget": "q.*"},
    {"share": 0.0},
    {"max_attempts": 0},
    {"jitter": 2},
    {"merge": "key"},
    {"fold_lua": "return 1"},
    {"attributes": {"a": 1}},
    {"attributes": {"push.allowed_rate": "60", "push.url": "http://example.com/"}, "qps": 500},
    {"nothing": 1},
]
"""Settings that a family cannot have, each refused in another place."""
REFUSED = (errors.InvalidTopic, errors.UnknownTopic)


async def opened_with(settings: dict[str, Any]) -> None:
    app = emq.App("memory:")
    app.family("q.*", **{"qps": 5, **settings})
    async with app:
        pass


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
async def test_an_error_in_the_settings_of_a_family_names_the_family(wrong: dict[str, Any]) -> None:
    async with emq.App("memory:") as app:
        await app.families.create(Family(Topic("q.*", 5.0)))
        await app.publish("q.a", b"")
        with pytest.raises(REFUSED) as changing:
            await app.families.set("q.*", wrong)
    with pytest.raises(REFUSED) as declared:
        await opened_with(wrong)
    for error in (changing.value, declared.value):
        assert str(error).startswith("family 'q.*'"), error
        assert "topic 'q.*'" not in str(error)


@pytest.mark.parametrize("name", [None, b"q.*", "a b.*", "sandbox:q.*", "q" * 200 + ".*", "q", "*", "q*.*"])
async def test_an_error_in_the_name_of_a_family_comes_first_and_calls_it_a_family(name: Any) -> None:
    with pytest.raises(errors.InvalidTopic) as declared:
        emq.App("memory:").family(name, qps=0)
    async with emq.App("memory:") as app:
        with pytest.raises(errors.InvalidTopic) as created:
            await app.families.create(Family(Topic(name, 0.0)))
    assert str(declared.value) == str(created.value)
    assert re.match(r"family (name )?(b?'|None)", str(declared.value)), declared.value
