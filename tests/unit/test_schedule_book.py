"""The book of what is planned: in order over all groups, paged, and taking back what it lists."""

from __future__ import annotations

from typing import Any

import pytest

from emq.observe import planned as book
from emq.observe import recall
from emq.observe.planned import Planned
from emq.runtime import errors
from emq.storage import message
from emq.storage.lane_store import LaneAdd, LaneClaim, LaneSettle, LaneVerdict
from emq.storage.message import Message
from emq.timetable import schedule
from emq.topics.model import Kind, Topic, split
from emq.trail.events import Recalled
from emq_stores.memory import MemoryStore
from support.doubles import FaultyStore
from support.recorded_trail import RecordedTrail

TOPIC = split(Topic("orders", 200.0, 50.0))
START = 1_800_000_000_000


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


async def plan(store: FaultyStore, topic: Topic, group: int, id_: str, due_ms: int, **fields: Any) -> None:
    m = Message(id_, **{"payload": id_.encode(), "topic": topic.name, **fields})
    assert await store.real.lanes.add([LaneAdd(topic.group(group), id_, message.encode_retry(m), due_ms)]) == [True]


async def find(store: FaultyStore, *topics: Topic, **options: Any) -> list[Planned]:
    return [planned async for planned in book.find(store.lanes, topics or [TOPIC], **options)]


async def ids(store: FaultyStore, *topics: Topic, **options: Any) -> list[str]:
    return [planned.id for planned in await find(store, *topics, **options)]


async def test_what_waits_in_all_groups_comes_by_due_time(store: FaultyStore) -> None:
    for i in range(40):
        await plan(store, TOPIC, i % 4, f"m{i:02d}", START + i * 7919 % 40)
    found = await find(store)
    assert [p.due_ms for p in found] == [START + n for n in range(40)]
    assert {(p.id, p.group) for p in found} == {(f"m{i:02d}", i % 4) for i in range(40)}


@pytest.mark.parametrize("size", [1, 3, 100])
async def test_pages_follow_one_another_whatever_a_lanes_own_page_holds(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(book, "PAGE", size)
    monkeypatch.setattr(book, "CHUNK", 3)
    for i in range(50):
        await plan(store, TOPIC, i % 3, f"m{i:02d}", START + i // 4)
    whole = await ids(store)
    assert sorted(whole) == [f"m{i:02d}" for i in range(50)]
    assert [p.due_ms for p in await find(store)] == [START + i // 4 for i in range(50)]
    pages = [await ids(store, skip=skip, limit=15) for skip in (0, 15, 30, 45, 60)]
    assert [len(page) for page in pages] == [15, 15, 15, 5, 0]
    assert [id_ for page in pages for id_ in page] == whole


async def test_only_what_is_asked_for_is_read(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book, "PAGE", 10)
    for i in range(400):
        await plan(store, TOPIC, i % 4, f"m{i:03d}", START + (i % 4) * 1000 + i)
    assert len(await ids(store, limit=20)) == 20
    assert store.lanes.calls == {"inspect": 1, "waiting": 2}


async def test_many_topics_are_one_book(store: FaultyStore) -> None:
    other = split(Topic("mails", 10))
    await plan(store, TOPIC, 1, "b", START + 1)
    await plan(store, other, 0, "a", START)
    await plan(store, other, 0, "c", START + 2)
    assert [(p.topic, p.id) for p in await find(store, TOPIC, other)] == [
        ("mails", "a"),
        ("orders", "b"),
        ("mails", "c"),
    ]
    assert await find(store, split(Topic("empty", 10))) == []


async def test_each_entry_says_what_it_is(store: FaultyStore) -> None:
    every = schedule.create(start_ms=START, every_s=300, repeat=3)
    cron = schedule.create(start_ms=START, cron="0 9 * * 1-5", tz="Europe/Berlin")
    await plan(store, TOPIC, 0, "d", 1, key="k", priority=2)
    await plan(store, TOPIC, 0, "r", 2, attempt=3, error="HTTP 503")
    await plan(store, TOPIC, 0, "e", 3, schedule=every.encode())
    await plan(store, TOPIC, 0, "c", 4, schedule=cron.encode(), priority=9)
    await plan(store, TOPIC, 0, "odd", 5, schedule=b"\xc1")
    await store.lanes.add([LaneAdd("orders/0", "foreign", b"\xc1", 6)])
    assert [(p.id, p.kind, p.text, p.attempts, p.priority) for p in await find(store)] == [
        ("d", "delayed", "", 0, "low"),
        ("r", "retry", "HTTP 503", 2, "high"),
        ("e", "every", "every 5 m, 3 more", 0, "high"),
        ("c", "cron", "cron 0 9 * * 1-5 Europe/Berlin", 0, "low"),
        (
            "odd",
            "every",
            "its schedule cannot be read: MessagePack data is malformed: invalid opcode '\\xc1' (byte 0)",
            0,
            "high",
        ),
        ("foreign", "delayed", "", 0, "high"),
    ]
    first, _, third, *_ = await find(store)
    assert (first.key, first.payload, first.schedule) == ("k", b"d", None)
    assert third.schedule == every


async def test_a_sorted_topic_has_no_names_for_priorities(store: FaultyStore) -> None:
    topic = split(Topic("prices", 10, priorities=(), kind=Kind.PRIORITY, slots=4))
    await plan(store, topic, 3, "x", START, priority=0)
    assert [(p.group, p.priority) for p in await find(store, topic)] == [(3, "-")]


async def test_one_entry_is_found_by_its_id(store: FaultyStore) -> None:
    for i in range(8):
        await plan(store, TOPIC, i % 4, f"m{i}", START + i)
    found = await book.get(store.lanes, TOPIC, "m6")
    assert found is not None
    assert (found.id, found.group) == ("m6", 2)
    assert await book.get(store.lanes, TOPIC, "m9") is None


async def test_what_is_recalled_is_taken_from_whichever_group_has_it_and_recorded(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book, "CHUNK", 3)
    for i in range(8):
        await plan(store, TOPIC, i % 4, f"m{i}", START + i)
    trail = RecordedTrail()
    assert await recall.recall(store, TOPIC, ["m6", "m1", "m9", "m1"], trail=trail) == {"m1", "m6"}
    recalled = [(e.topic, e.group, e.id) for e in trail.events if isinstance(e, Recalled)]
    assert sorted(recalled) == [("orders", 1, "m1"), ("orders", 2, "m6")]
    assert await ids(store) == ["m0", "m2", "m3", "m4", "m5", "m7"]
    assert await recall.recall(store, TOPIC, ["m1"]) == set()
    assert await recall.recall(store, TOPIC, []) == set()


async def test_what_has_been_claimed_or_is_dead_is_not_recalled(store: FaultyStore) -> None:
    await plan(store, TOPIC, 0, "claimed", START)
    await store.lanes.claim([LaneClaim("orders/0", 1, 1)], START)
    await plan(store, TOPIC, 1, "dead", START)
    await store.lanes.claim([LaneClaim("orders/1", 1, 1)], START)
    await store.lanes.settle([LaneSettle("orders/1", "dead", LaneVerdict.DEAD, 1, reason="why")])
    assert await recall.recall(store, TOPIC, ["claimed", "dead"]) == set()


async def test_an_unreachable_store_is_said_so(store: FaultyStore) -> None:
    store.fail()
    with pytest.raises(errors.StoreUnavailable):
        await find(store)
    with pytest.raises(errors.StoreUnavailable):
        await recall.recall(store, TOPIC, ["x"])
