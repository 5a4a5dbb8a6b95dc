"""Lists of large messages are bounded in bytes wherever somebody pages through them."""

from __future__ import annotations

from typing import Any

import pytest

from emq.observe import dead_letters, recall
from emq.observe import planned as book
from emq.observe.dead_letters import Letter
from emq.runtime.clock import SystemClock
from emq.storage import message
from emq.storage.lane_store import LaneAdd, LaneStore
from emq.storage.message import Message
from emq.storage.slot_store import Keep
from emq.storage.slot_store import SlotAdd as Member
from emq.topics.model import Kind, Topic, split
from emq_cli import session
from emq_cli.session import Session
from emq_stores.memory import MemoryStore
from support.doubles import FaultyStore

MB = 1 << 20
TOPIC = split(Topic("orders", 200.0, 50.0))
START = 1_800_000_000_000


def body(id_: str, size: int) -> bytes:
    return message.encode_retry(Message(id_, bytes(size), topic=TOPIC.name))


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


async def test_dead_letters_of_a_megabyte_are_replayed_and_purged_in_small_pages(store: FaultyStore) -> None:
    lane, shared = TOPIC.group(0), body("x", MB)
    await store.real.lanes.add([LaneAdd(lane, f"{i:03}", shared, START, "why") for i in range(300)])
    pages: list[int] = []

    async def dead(*asked: Any) -> Any:
        page = await store.real.lanes.dead(*asked)
        pages.append(sum(len(letter.body) for letter in page))
        return page

    store.lanes.replace("dead", dead)
    some = dead_letters.Selection(ids=frozenset(f"{i:03}" for i in range(150)))
    assert await dead_letters.replay(store, TOPIC, some, clock=SystemClock()) == 150
    assert await dead_letters.purge(store, TOPIC) == 150
    assert max(pages) <= 9 * MB


async def test_the_book_keeps_no_more_open_than_its_bound_and_tells_all_in_order(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = split(Topic("many", 2000.0, 50.0))
    for i in range(400):
        id_ = f"{i:03}"
        await store.real.lanes.add([LaneAdd(topic.group(i * 7 % 40), id_, body(id_, 10_000), START + i)])
    monkeypatch.setattr(book, "OPEN_BYTES", 100_000)
    held: list[int] = []
    turn = book._Lane.turn
    lanes: set[book._Lane] = set()

    async def noted(lane: book._Lane, lane_store: LaneStore) -> None:
        lanes.add(lane)
        held.append(sum(each.held_bytes for each in lanes))
        await turn(lane, lane_store)

    monkeypatch.setattr(book._Lane, "turn", noted)
    found = [planned.id async for planned in book.find(store.lanes, [topic])]
    assert found == [f"{i:03}" for i in range(400)]
    assert max(held) <= 250_000, "pages of many lanes lay open together"


async def test_a_list_of_what_is_planned_ends_at_its_bytes(store: FaultyStore) -> None:
    await store.real.lanes.add([LaneAdd(TOPIC.group(0), f"{i}", body(f"{i}", 100_000), START + i) for i in range(9)])
    found = [p.id async for p in book.find(store.lanes, [TOPIC], max_bytes=250_000)]
    assert found == ["0", "1", "2"]


async def test_large_members_are_recalled_wherever_they_wait(store: FaultyStore) -> None:
    topic = split(Topic("sorted", 10.0, priorities=(), kind=Kind.FIXED_TIME, slots=1))
    slot = topic.slot(0)
    members = [b"%03d" % i + bytes(MB) for i in range(30)]
    await store.real.sorted.add([Member(slot, m, START + i, Keep.FIRST) for i, m in enumerate(members)])
    id_ = message.slot_id(0, members[-1])
    assert await recall.recall(store, topic, [id_]) == {id_}


@pytest.mark.parametrize("json", [True, False])
async def test_a_printed_list_holds_few_payloads(json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "LISTED_BYTES", 250)

    async def letters() -> Any:
        for i in range(9):
            yield Letter("t", 0, "-", f"{i}", bytes(100), 1, "why", 1)

    found = await Session({}, json=json).listed(letters(), 8)
    assert [letter.id for letter in found] == [f"{i}" for i in range(3 if json else 8)]
    assert sum(len(letter.payload) for letter in found) == (300 if json else 0)
