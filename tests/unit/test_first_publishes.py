"""The first publishes to names below a family share transactions, and wait for nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any

import pytest

from emq.offsets.sleep import put_to_sleep
from emq.producer.first_publishes import FirstPublishes
from emq.runtime import errors
from emq.topics.families import Bounds, Family
from emq.topics.family_catalog import Made
from emq.topics.model import Topic
from support.rig import Rig, rig
from support.waiting import turns


@pytest.fixture
async def r() -> AsyncIterator[Rig]:
    async with rig() as found:
        await found.catalog.families.create(Family(Topic("f.*", 50.0, priorities=("only",)), Bounds()))
        yield found


async def test_names_wanted_during_a_transaction_share_the_next_one(r: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    go, make = asyncio.Event(), r.catalog.families.make

    async def held(names: Collection[str]) -> Made:
        asked.append([*names])
        await go.wait()
        return await make(names)

    monkeypatch.setattr(r.catalog.families, "make", held)
    first = FirstPublishes(r.store, r.catalog)
    calls = [asyncio.create_task(first.make(["f.0"]))]
    await turns(2)
    calls += [asyncio.create_task(first.make([f"f.{i}", "f.0", "shop"])) for i in range(1, 500)]
    await asyncio.sleep(0)
    go.set()
    made = await asyncio.gather(*calls)
    assert [len(names) for names in asked] == [1, 501]
    assert all(f"f.{i}" in one.found and "shop" not in one.found for i, one in enumerate(made))


async def test_a_failure_goes_to_those_who_wait_and_the_next_try_works(r: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    first, make = FirstPublishes(r.store, r.catalog), r.catalog.families.make

    async def fail(names: Any) -> Any:
        raise errors.DatabaseUnavailable("away in this test")

    monkeypatch.setattr(r.catalog.families, "make", fail)
    found = await asyncio.gather(*(first.make([f"f.{i}"]) for i in range(3)), return_exceptions=True)
    assert {type(one) for one in found} == {errors.DatabaseUnavailable}
    monkeypatch.setattr(r.catalog.families, "make", make)
    assert (await first.make(["f.1"])).found.keys() == {"f.1"}


async def test_a_store_that_tells_nobody_holds_up_no_publish(r: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part of it that tells may be silent, while the topics' parts take messages."""

    async def silent(names: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(r.store, "tell", silent, raising=False)
    first = FirstPublishes(r.store, r.catalog)
    assert (await asyncio.wait_for(first.make(["f.1"]), 10)).found.keys() == {"f.1"}


async def test_a_topic_that_slept_takes_its_first_publish_at_once(r: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only after a refusal."""
    topic = await r.producer.topic("f.x")
    assert await put_to_sleep(r.store, r.catalog, r.checkpoints, [topic], 0) == {"f.x"}

    async def none(*_: Any) -> None:
        raise AssertionError("the queues were not open")

    monkeypatch.setattr("emq.producer.reopening.pause", none)
    await r.producer.refresh()
    await r.producer.publish("f.x", b"x")


async def test_hosts_are_told_of_topics_that_were_made_and_of_no_others(
    r: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[list[str]] = []

    async def tell(names: Collection[str]) -> None:
        told.append([*names])

    monkeypatch.setattr(r.store, "tell", tell)
    first = FirstPublishes(r.store, r.catalog)
    await first.make(["f.a", "f.b", "shop", "f.*"])
    await first.make(["shop"])
    assert told == [["f.a", "f.b"]]


async def test_a_store_that_cannot_tell_hosts_fails_no_publish(r: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(names: Collection[str]) -> None:
        raise errors.StoreUnavailable("away in this test")

    monkeypatch.setattr(r.store, "tell", fail)
    await r.producer.publish("f.a", b"x")
    monkeypatch.setattr(r.store, "tell", None)
    await r.producer.publish("f.b", b"x")
    assert await r.catalog.names("f.*") == ["f.a", "f.b"]
