"""A topic that is deleted and created again, while hosts hear of both late: caps, deliveries and owners."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from emq.topics import catalog_file
from emq.topics.model import Kind
from support.assigned import Assigned
from support.rig import Rig, Seen
from support.virtual import virtual
from support.waiting import until

pytestmark = virtual

LATE_S = 0.85
"""How late hosts hear of a change of the catalog."""


def by_second(seen: Seen, life: bytes = b"") -> Counter[int]:
    return Counter(d.started_us // 1_000_000 for d in seen.deliveries if d.payload.startswith(life))


async def fill(r: Rig, life: bytes, count: int) -> None:
    await r.producer.refresh()
    await r.producer.publish_many("jobs", [b"%s %d" % (life, i) for i in range(count)])


@pytest.mark.parametrize("at_s", [4.1, 4.6])
@pytest.mark.parametrize("pacing", ["window", "smooth"])
@pytest.mark.parametrize("kind", [Kind.LOG, Kind.RANGE_MERGE])
async def test_a_topic_that_is_created_again_starts_nothing_beside_its_former_life(
    r: Rig, kind: Kind, pacing: str, at_s: float
) -> None:
    options = {"kind": kind, "pacing": pacing}
    options |= {} if kind is Kind.LOG else {"time_range_ms": 1, "ordering": "none"}
    await r.topic("jobs", 200, **options)
    await fill(r, b"old", 3_000)
    seen = Seen()
    async with r.consuming(seen, "a", catalog_poll_s=0.05), r.consuming(seen, "b", catalog_poll_s=LATE_S):
        await asyncio.sleep(at_s)
        await r.admin.delete("jobs", force=True)
        begins_s = (await r.topic("jobs", 2, **options)).division.since_s
        again_s = int(r.clock.now())
        await fill(r, b"new", 60)
        await asyncio.sleep(12)
    old, new = by_second(seen, b"old"), by_second(seen, b"new")
    assert max(old) < begins_s <= min(new)
    assert max(old.values()) <= (200 if pacing == "window" else 200 + 21)
    assert max(new.values()) <= (2 if pacing == "window" else 3)
    assert min(new) <= again_s + 4
    assert sum(new.values()) >= 2 * 8


async def test_an_import_of_a_topic_that_was_deleted_begins_as_a_creation_does(r: Rig) -> None:
    await r.topic("jobs", 100)
    await r.admin.update("jobs", qps=200)
    exported = catalog_file.dump(await r.catalog.list(), "json")
    await r.admin.delete("jobs", force=True)
    [topic] = await r.admin.put_many(catalog_file.load(exported, "json"))
    assert topic == await r.catalog.get("jobs")
    assert topic.division.since_s > r.clock.now()
    assert await r.producer.publish("jobs", b"keyed", key="k")


async def test_a_topic_whose_name_has_been_free_for_long_begins_at_once(r: Rig) -> None:
    await r.topic("jobs", 100)
    await r.admin.delete("jobs", force=True)
    await asyncio.sleep(3.0)
    assert not (await r.topic("jobs", 100)).divisions


@pytest.mark.parametrize("kind", [Kind.LOG, Kind.RANGE_MERGE])
@pytest.mark.parametrize("apart_s", [0.0, 0.2, 5.0])
async def test_a_host_that_keeps_the_groups_of_a_topic_created_again_consumes_them(
    r: Rig, kind: Kind, apart_s: float
) -> None:
    options = {"kind": kind} | ({} if kind is Kind.LOG else {"time_range_ms": 1, "ordering": "none", "slots": 2})
    await r.topic("jobs", 100, **options)
    seen, groups, assigned = Seen(), ["jobs/0", "jobs/1"], Assigned(r)
    await assigned.give(groups)
    async with r.consuming(seen, membership=assigned):
        await fill(r, b"old", 500)
        await until(lambda: len(seen) > 150)
        await r.admin.delete("jobs", force=True)
        await asyncio.sleep(apart_s)
        await r.topic("jobs", 100, **options)
        await fill(r, b"new", 200)
        await asyncio.sleep(1)
        await assigned.give(groups)  # what was refused comes under a new epoch, as from a leader
        await until(lambda: sum(by_second(seen, b"new").values()) == 200, 10)
    assert min(by_second(seen, b"new")) > max(by_second(seen, b"old"))
    assert max(by_second(seen).values()) <= 100


async def test_a_topic_created_again_loses_nothing_to_a_store_that_comes_back_empty(r: Rig) -> None:
    """Its queues go on where those of the former topic ended, and nothing was read from them by which to know them."""
    await r.topic("jobs", 100, priorities=("p",))
    await fill(r, b"old", 40)
    await r.admin.delete("jobs", force=True)
    await r.topic("jobs", 100, priorities=("p",))
    seen = Seen()
    async with r.consuming(seen):
        await asyncio.sleep(5)
        r.world.queues.clear()
        await fill(r, b"new", 120)
        await until(lambda: len({d.payload for d in seen.deliveries}) == 120, 180)
