"""Dead letters: found, replayed at a rate, purged, and moved to another slot."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import emq
from emq.host import retirement
from emq.observe import dead_letters
from emq.observe.dead_letters import Selection
from emq.runtime import errors
from emq.runtime.clock import SystemClock
from emq.storage import message
from emq.storage.durability import Durability
from emq.storage.lane_store import LaneAdd, LaneClaim, LaneClaimed, LaneSettle, LaneState, LaneVerdict
from emq.storage.message import Message
from emq.topics.model import Topic, split
from emq_stores.memory import MemoryStore, World
from support.doubles import FaultyStore
from support.manual_clock import ManualClock

TOPIC = split(Topic("orders", 100.0, 50.0))
START_MS = 1_700_000_000_000


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    clock = ManualClock(START_MS / 1000)
    made = MemoryStore(World(clock))
    for i in range(12):
        clock.advance(1)  # they die a second after one another
        m = Message(f"m{i}", b"%d" % i, "k", 1, None, i % 3, 16, 5, "TimeoutError" if i % 2 else "HTTP 500")
        reason = m.error or ""
        await made.lanes.add([LaneAdd(TOPIC.group(i % 2), m.id, message.encode_retry(m), 0, reason=reason)])
    yield made
    await made.close()


async def ids(store: MemoryStore, selection: Selection = dead_letters.EVERY) -> list[str]:
    return [letter.id async for letter in dead_letters.find(store, TOPIC, selection)]


async def test_letters_are_found_group_by_group_with_all_that_is_known(store: MemoryStore) -> None:
    found = [letter async for letter in dead_letters.find(store, TOPIC)]
    assert [letter.id for letter in found] == [f"m{i}" for i in (0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11)]
    assert found[1] == ("orders", 0, "low", "m2", b"2", 16, "HTTP 500", START_MS + 3_000, (), "m2")


async def test_letters_are_selected_by_time_reason_and_id(store: MemoryStore) -> None:
    assert await ids(store, Selection(since_ms=START_MS + 10_000)) == ["m10", "m9", "m11"]
    assert await ids(store, Selection(until_ms=START_MS + 3_000)) == ["m0", "m1"]
    assert await ids(store, Selection(reason="timeout")) == ["m1", "m3", "m5", "m7", "m9", "m11"]
    assert await ids(store, Selection(ids=frozenset({"m3", "m4", "x"}))) == ["m4", "m3"]
    both = Selection(reason="500", since_ms=START_MS + 3_000, until_ms=START_MS + 8_000)
    assert await ids(store, both) == ["m2", "m4", "m6"]


async def test_many_letters_are_read_in_pages(monkeypatch: pytest.MonkeyPatch, store: MemoryStore) -> None:
    monkeypatch.setattr(dead_letters, "PAGE", 2)
    assert len(await ids(store)) == 12
    assert await dead_letters.replay(store, TOPIC, clock=SystemClock()) == 12
    assert await ids(store) == []


async def test_a_replayed_letter_is_a_first_attempt_at_its_own_priority_and_due_now(store: MemoryStore) -> None:
    progress: list[int] = []
    chosen = Selection(ids=frozenset({"m2", "m8"}))
    assert await dead_letters.replay(store, TOPIC, chosen, clock=SystemClock(), on_replayed=progress.append) == 2
    assert progress == [1, 2]
    [claimed] = await store.lanes.claim([LaneClaim("orders/0", 10, 1)], int(time.time() * 1000) + 1)
    assert isinstance(claimed, LaneClaimed)
    found = [message.decode(body) for _, body in claimed.entries]
    assert [(m.id, m.payload, m.attempt, m.priority, m.error, m.key) for m in found] == [
        ("m2", b"2", 1, 2, None, "k"),
        ("m8", b"8", 1, 2, None, "k"),
    ]
    assert "m2" not in await ids(store)


async def test_a_replay_keeps_to_its_rate(store: MemoryStore) -> None:
    began = time.monotonic()
    assert await dead_letters.replay(store, TOPIC, clock=SystemClock(), rate_per_s=200) == 12
    assert time.monotonic() - began >= 11 / 200


async def test_purged_letters_are_gone_and_others_stay(store: MemoryStore) -> None:
    assert await dead_letters.purge(store, TOPIC, Selection(reason="timeout")) == 6
    assert await ids(store) == [f"m{i}" for i in (0, 2, 4, 6, 8, 10)]
    assert await dead_letters.purge(store, TOPIC) == 6
    assert await store.lanes.inspect(["orders/0", "orders/1"]) == [LaneState(0, 0, 0, None)] * 2


async def test_letters_move_to_another_slot_with_their_reasons_also_when_it_is_repeated(store: MemoryStore) -> None:
    [page] = [await store.lanes.dead("orders/1")]
    await store.lanes.add([LaneAdd("orders/0", page[0].id, page[0].body, 0, reason=page[0].reason)])  # it was cut short
    assert await retirement.move_dead_letters(store.lanes, "orders/1", "orders/0", Durability.FSYNCED) == 6
    assert sorted(await ids(store)) == sorted(f"m{i}" for i in range(12))
    found = {letter.id: letter async for letter in dead_letters.find(store, TOPIC)}
    assert {found[f"m{i}"].reason for i in (1, 3, 5)} == {"TimeoutError"}
    assert {letter.group for letter in found.values()} == {0}
    buried_again = LaneAdd("orders/1", page[0].id, page[0].body, 0, page[0].reason, 1, since_ms=0)
    assert await store.lanes.add([buried_again]) == [None]
    assert (await store.lanes.inspect(["orders/1"]))[0].dead == 0


async def test_a_letter_that_was_purged_after_a_move_broke_off_does_not_stand_again(store: MemoryStore) -> None:
    [letter, *_] = await store.lanes.dead("orders/1")
    await store.lanes.add([LaneAdd("orders/0", letter.id, letter.body, 0, letter.reason)])  # it was cut short
    assert await store.lanes.settle([LaneSettle("orders/0", letter.id, LaneVerdict.PURGE, for_good=True)]) == [True]
    assert await retirement.move_dead_letters(store.lanes, "orders/1", "orders/0", Durability.FSYNCED) == 6
    assert len(await ids(store)) == 11
    assert letter.id not in await ids(store)


async def test_a_body_that_is_not_a_message_is_shown_as_it_is(store: MemoryStore) -> None:
    await store.lanes.add([LaneAdd("orders/0", "odd", b"\xc1", 0, reason="?")])
    [letter] = [x async for x in dead_letters.find(store, TOPIC, Selection(ids=frozenset({"odd"})))]
    assert (letter.payload, letter.priority) == (b"\xc1", "high")


async def test_an_unreachable_store_is_said_so() -> None:
    store = FaultyStore(MemoryStore())
    store.fail()
    with pytest.raises(errors.StoreUnavailable):
        await dead_letters.purge(store, TOPIC)


async def test_code_replays_and_purges_letters_of_a_pattern_or_a_topic() -> None:
    async with emq.App("memory:") as app:
        for topic in ("mail.a", "mail.b", "shop"):
            await app.create_topic(topic, qps=10)
            letters = [
                LaneAdd(f"{topic}/0", f"{topic}-{i}", message.encode_retry(Message(f"{topic}-{i}", b"x")), 0, i)
                for i in ("timeout", "HTTP 503")
            ]
            await app.store.lanes.add(letters)
        progress: list[int] = []
        timeouts = emq.Selection(reason="timeout")
        assert await app.replay_dead_letters("mail.*", timeouts, on_replayed=progress.append) == 2
        assert progress == [1, 2]
        assert await app.purge_dead_letters("mail.b") == 1
        assert await app.purge_dead_letters("nothing.*") == 0
        left = {topic: [d.reason async for d in app.dead_letters(topic)] for topic in ("mail.a", "mail.b", "shop")}
        assert left == {"mail.a": ["HTTP 503"], "mail.b": [], "shop": ["HTTP 503", "timeout"]}
        assert [(await app.admin.slot_lag([await app.catalog.get(t)]))[0].delayed for t in left] == [1, 1, 0]


async def test_a_wrong_replay_is_refused_before_anything_is_put_back() -> None:
    async with emq.App("memory:") as app:
        await app.create_topic("shop", qps=10)
        await app.create_topic("tasks", qps=10, kind="priority")
        await app.store.lanes.add([LaneAdd("shop/0", "m", message.encode_retry(Message("m", b"x")), 0, "timeout")])
        wrong: list[Any] = ["timeout", ["m"], Selection(ids="many")]  # type: ignore[arg-type]
        for selection in wrong:
            for call in (app.replay_dead_letters, app.purge_dead_letters):
                with pytest.raises(errors.InvalidMessage):
                    await call("shop", selection)
        for arguments in ({"rate_per_s": 0}, {"rate_per_s": "fast"}, {"priority": 20}, {"priority": "high"}):
            with pytest.raises(errors.InvalidMessage):
                await app.replay_dead_letters("*", **arguments)  # type: ignore[arg-type]
        with pytest.raises(errors.UnknownTopic):
            await app.replay_dead_letters("shap")
        with pytest.raises(errors.UnknownTopic):
            await app.purge_dead_letters("shap")
        assert len([letter async for letter in app.dead_letters("shop")]) == 1


def test_a_client_replays_and_purges(tmp_path: Path) -> None:
    with emq.Client(f"sqlite:///{tmp_path}/emq.db") as client:
        client.create_topic("shop", qps=10)
        assert client.replay_dead_letters("shop", emq.Selection(reason="timeout"), rate_per_s=10) == 0
        assert client.purge_dead_letters("*") == 0
