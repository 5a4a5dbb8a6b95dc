"""Publishing to sorted topics and for later: what is refused before anything is sent, and what lands where."""

from __future__ import annotations

import asyncio
import datetime
import enum
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from emq.producer import batcher
from emq.runtime import errors
from emq.storage import message
from emq.storage.slot_store import Slot, SlotAdd, SlotKind
from support.manual_clock import ManualClock
from support.rig import Rig, rig

NOW_S = 1_800_000_000.0
NOW_MS = 1_800_000_000_000


class Levels(enum.StrEnum):
    SOON = "soon"


@pytest.fixture
async def r() -> AsyncIterator[Rig]:
    async with rig(ManualClock(NOW_S)) as made:
        for kind in ("range_merge", "priority", "fixed_time"):
            await made.topic(kind, 100, kind=kind, slots=4)
        await made.topic("keyed", 100, kind="range_merge", slots=4, merge="key", fold="sum", time_range_ms=500)
        await made.topic("log", 100, delay_levels={"soon": 5.0})
        yield made


REFUSED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "priority 16": ("priority", "priority 16 must be a number above 16", {"priority": 16}),
    "no priority": ("priority", "priority None must be", {}),
    "a priority by name": ("priority", "priority 'high' must be", {"priority": "high"}),
    "an endless priority": ("priority", "must be a number", {"priority": float("inf")}),
    "True": ("priority", "priority True", {"priority": True}),
    "a range on priority": ("priority", "time_range_ms is for range_merge", {"priority": 20, "time_range_ms": 5}),
    "range 0": ("range_merge", "time range 0 ms must be above 0", {"time_range_ms": 0}),
    "a negative range": ("range_merge", "time range -5 ms", {"time_range_ms": -5}),
    "no range": ("range_merge", "has no time_range_ms", {}),
    "a range in words": ("range_merge", "time_range_ms '5'", {"time_range_ms": "5"}),
    "priority on time": ("range_merge", "goes by time", {"priority": 20, "time_range_ms": 5}),
    "no time": ("fixed_time", "give at= or delay_ms=", {}),
    "the past": ("fixed_time", "must be ahead of now", {"at": NOW_S - 1}),
    "milliseconds for seconds": ("fixed_time", "too large by 1,000", {"at": NOW_MS}),
    "a time without zone": ("fixed_time", "has no time zone", {"at": datetime.datetime(2040, 1, 1)}),
    "two times": ("fixed_time", "only one of", {"at": NOW_S + 1, "delay_ms": 5}),
    "a delay in words": ("log", "delay_ms 'x'", {"delay_ms": "x"}),
    "a negative delay": ("log", "delay_ms -1", {"delay_ms": -1}),
    "an unknown level": ("log", "no delay level 'later'; it has soon", {"delay": "later"}),
    "ttl 0": ("log", "ttl_s 0", {"ttl_s": 0}),
    "headers on bare contents": ("priority", "headers cannot travel along", {"priority": 20, "headers": {"a": "b"}}),
    "ttl on bare contents": ("fixed_time", "ttl_s cannot travel along", {"delay_ms": 5, "ttl_s": 5}),
    "a merge key on bare contents": ("priority", "merge_key cannot travel", {"priority": 20, "merge_key": "k"}),
    "a merge key on log": ("log", "it is of kind log", {"merge_key": "k"}),
    "no number to add up": ("keyed", "is not a number, which fold 'sum' needs", {"merge_key": "k"}),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_is_wrong_is_refused_in_one_line_before_anything_is_sent(r: Rig, case: str) -> None:
    topic, text, options = REFUSED[case]
    with pytest.raises(errors.InvalidMessage) as refused:
        await r.producer.publish(topic, "x", **options)
    assert text in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "add" not in r.store.sorted.calls
    assert "add" not in r.store.lanes.calls
    assert r.producer.published == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kind": "range_merge", "slots": 3}, "power of two"),
        ({"kind": "range_merge", "slots": 1, "qps": 1000}, "give at least 8"),
        ({"kind": "range_merge", "priorities": ("a", "b")}, "no priorities by name"),
        ({"kind": "log", "slots": 4}, "slots 4 is for sorted topics"),
        ({"kind": "log", "fold": "sum"}, "option fold is for sorted topics"),
        ({"kind": "priority", "fold": "sum"}, "needs merge='key'"),
        ({"kind": "priority", "merge": "key", "fold": "lua"}, "give the text of a chunk"),
        ({"kind": "priority", "merge": "key", "fold": "lua", "fold_lua": "return ("}, "not valid Lua"),
        ({"kind": "range_merge", "priority_policy": "aging"}, "is for kind priority"),
        ({"kind": "priority", "priority_policy": "weighted", "weights": (1.0,)}, "is for log topics"),
        ({"kind": "priority", "ttl_s": 5.0}, "needs merge='key'"),
        ({"kind": "priority", "time_range_ms": 5}, "is for kind range_merge"),
        ({"kind": "range_merge", "time_range_ms": 0}, "must be above 0"),
        ({"kind": "priority", "precision": "millisecond"}, "is for kind fixed_time"),
        ({"kind": "priority", "retention_s": 5.0}, "is for log topics"),
        ({"kind": "priority", "overflow": "drop_oldest"}, "is for log topics"),
        ({"kind": "priority", "prepare_timeout_s": 0.5}, "must be at least 1"),
    ],
)
async def test_settings_that_make_no_sense_are_refused(r: Rig, options: dict[str, Any], text: str) -> None:
    qps = options.pop("qps", 100)
    with pytest.raises(errors.InvalidTopic) as refused:
        await r.topic("new", qps, **options)
    assert text in str(refused.value)


@pytest.mark.parametrize("change", [{"slots": 8}, {"kind": "priority"}, {"merge": "key"}])
async def test_kind_and_slots_of_a_topic_are_for_good(r: Rig, change: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidTopic, match="may not change: "):
        await r.admin.update("range_merge", **change)
    with pytest.raises(errors.TopicExists):
        await r.topic("range_merge", 100, **({"kind": "range_merge", "slots": 4} | change))


async def test_slots_stay_when_the_qps_changes_and_the_quotas_follow(r: Rig) -> None:
    await r.topic("grows", 100, kind="priority")
    topic = await r.admin.update("grows", qps=250)
    assert (topic.slots, topic.groups, topic.active_groups) == (2, 2, 2)
    with pytest.raises(errors.InvalidTopic, match="give at least 4"):
        await r.admin.update("grows", qps=400)


async def test_the_slot_is_the_checksum_of_the_content_or_of_the_key_and_the_id_follows_from_it(r: Rig) -> None:
    bare = await r.producer.publish("priority", "content", priority=20)
    based = await r.producer.publish("priority", "content", priority=20, key="basis")
    assert bare == message.slot_id(zlib.crc32(b"content") % 4, b"content")
    assert based == message.slot_id(zlib.crc32(b"basis") % 4, b"content")
    for index in {zlib.crc32(b"content") % 4, zlib.crc32(b"basis") % 4}:
        [waiting] = await r.store.sorted.waiting(Slot(f"priority/{index}", SlotKind.PRIORITY))
        assert (waiting.member, waiting.score) == (b"content", 20)
    many = await r.producer.publish_many("priority", ["content", "b"], priority=21)
    assert many[0] == bare


async def test_times_and_ranges_become_scores_in_milliseconds(r: Rig) -> None:
    at = datetime.datetime.fromtimestamp(NOW_S + 5, datetime.UTC)
    await r.producer.publish("fixed_time", "a", at=at)
    await r.producer.publish("fixed_time", "b", delay_ms=6000)
    await r.producer.publish("range_merge", "a", time_range_ms=7000)
    await r.producer.publish("range_merge", "b", delay_ms=8000)
    await r.producer.publish("keyed", "1", merge_key="a")
    scores = {}
    for name in ("fixed_time", "range_merge", "keyed"):
        topic = await r.catalog.get(name)
        for i in range(4):
            for waiting in await r.store.sorted.waiting(topic.slot(i)):
                scores[name, waiting.member] = waiting.score - NOW_MS
    assert scores == {
        ("fixed_time", b"a"): 5000,
        ("fixed_time", b"b"): 6000,
        ("range_merge", b"a"): 7000,
        ("range_merge", b"b"): 8000,
        ("keyed", b"a"): 500,
    }


@pytest.mark.parametrize(
    ("options", "due_ms"),
    [
        ({"delay_ms": 1500}, NOW_MS + 1500),
        ({"delay": "soon"}, NOW_MS + 5000),
        ({"delay": Levels.SOON}, NOW_MS + 5000),
        ({"delay": datetime.timedelta(minutes=2)}, NOW_MS + 120_000),
        ({"at": NOW_S + 9}, NOW_MS + 9000),
        ({"at": NOW_S - 9}, NOW_MS - 9000),
    ],
)
async def test_what_is_delayed_waits_in_its_groups_lane_with_all_that_belongs_to_it(
    r: Rig, options: dict[str, Any], due_ms: int
) -> None:
    id_ = await r.producer.publish("log", "x", key="k", priority="high", headers={"a": "b"}, ttl_s=60, **options)
    group = zlib.crc32(b"k") % 2
    [entry] = await r.store.lanes.waiting(f"log/{group}")
    m = message.decode(entry.body)
    assert (entry.id, entry.due_ms) == (id_, due_ms)
    assert (m.payload, m.key, m.priority, m.headers, m.attempt) == (b"x", "k", 0, {"a": "b"}, 1)
    assert m.expires_us == due_ms * 1000 + 60_000_000


async def test_a_full_slot_refuses_new_members_and_takes_merges(r: Rig) -> None:
    await r.topic("small", 10, kind="priority", slots=1, max_length=2)
    await r.producer.publish_many("small", ["a", "b"], priority=20)
    with pytest.raises(errors.TopicFull):
        await r.producer.publish("small", "c", priority=20)
    await r.producer.publish("small", "a", priority=30)
    await r.producer.publish_many("small", ["a", "b"], scores=[18, 19])


def sent(r: Rig) -> list[list[SlotAdd]]:
    """The adds of each call to the store, as they come."""
    calls: list[list[SlotAdd]] = r.store.sorted.noted("add")
    return calls


async def test_of_many_payloads_each_has_its_own_merge_key_and_those_of_one_become_one(r: Rig) -> None:
    ids = await r.producer.publish_many("keyed", ["1", "2", "40"], merge_keys=["a", b"b", "a"], headers={"h": "v"})
    assert ids == [message.slot_id(zlib.crc32(k) % 4, k) for k in (b"a", b"b", b"a")]
    topic = await r.catalog.get("keyed")
    waiting = [w for i in range(4) for w in await r.store.sorted.waiting(topic.slot(i))]
    assert {(w.member, w.body, w.merged) for w in waiting} == {(b"a", b"41", 2), (b"b", b"2", 1)}
    assert {w.note for w in waiting} == {message.encode_note(message.Note(None, NOW_MS * 1000, {"h": "v"}, 0))}
    one = await r.producer.publish("keyed", "5", merge_key="a", key="basis")
    assert await r.producer.publish_many("keyed", ["5"], merge_keys=["a"], keys=["basis"]) == [one]


@pytest.mark.parametrize(
    ("topic", "options", "text"),
    [
        ("keyed", {"merge_keys": ["a"]}, "merge_keys has 1 entry for 2 payloads; give one for each"),
        ("keyed", {"merge_keys": ["a", 5]}, "merge key 5 is of type int; give bytes or text"),
        ("priority", {"merge_keys": ["a", "b"], "priority": 20}, "merge_key cannot travel along"),
        ("log", {"merge_keys": ["a", "b"]}, "it is of kind log"),
        ("priority", {"scores": [20, 21], "delay_ms": 5}, "a message delayed with a priority waits in a lane"),
        ("fixed_time", {"scores": [NOW_MS + 5, NOW_MS + 6], "delay_ms": 5}, "give scores, one for each payload, or"),
    ],
)
async def test_what_does_not_fit_many_payloads_is_refused_before_anything_is_sent(
    r: Rig, topic: str, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(errors.InvalidMessage) as refused:
        await r.producer.publish_many(topic, ["1", "2"], **options)
    assert text in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "add" not in r.store.sorted.calls
    assert "add" not in r.store.lanes.calls


async def test_an_empty_key_is_a_slot_basis_of_one_and_of_many(r: Rig) -> None:
    one = await r.producer.publish("priority", "content", priority=20, key="")
    assert await r.producer.publish_many("priority", ["content"], priority=20, key="") == [one]
    assert one == message.slot_id(zlib.crc32(b"") % 4, b"content")


async def test_many_that_are_delayed_by_priority_wait_in_lanes_like_one(r: Rig) -> None:
    ids = await r.producer.publish_many("priority", ["a", "b"], keys=["k", "k"], priority=20, delay_ms=5000)
    waiting = await r.store.lanes.waiting(f"priority/{zlib.crc32(b'k') % 4}")
    assert {(w.id, w.due_ms) for w in waiting} == {(id_, NOW_MS + 5000) for id_ in ids}
    assert "add" not in r.store.sorted.calls


@pytest.mark.parametrize(
    "options",
    [{}, {"keys": ["k"] * 5}, {"merge_keys": [b"%d" % i for i in range(5)]}],
    ids=["contents", "keys", "merge keys"],
)
async def test_a_call_of_many_is_bounded_by_bytes_and_takes_one_message_of_any_size(
    r: Rig, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batcher, "CALL_BYTES", 1_000)
    kind = {"kind": "priority", "slots": 4, **({"merge": "key"} if "merge_keys" in options else {})}
    await r.topic("large", 100, **kind)
    calls = sent(r)
    payloads = [bytes([i]) * size for i, size in enumerate((400, 400, 1_500, 300, 600))]
    ids = await r.producer.publish_many("large", payloads, priority=20, **options)
    assert [[add.body or add.member for add in adds] for adds in calls] == [payloads[:2], payloads[2:3], payloads[3:]]
    assert len(set(ids)) == r.producer.published == 5


async def test_merge_keys_headers_and_contents_count_as_bytes(r: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher, "CALL_BYTES", 1_000)
    calls = sent(r)
    await r.producer.publish_many("keyed", ["1"] * 3, merge_keys=[b"a" * 600, b"b" * 600, b"c" * 300])
    await r.producer.publish_many("keyed", ["1"] * 3, merge_keys=["a", "b", "c"], headers={"h": "v" * 400})
    assert [len(adds) for adds in calls] == [1, 2, 2, 1]


async def test_what_is_sent_together_is_bounded_by_bytes_and_answers_each(
    r: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batcher, "CALL_BYTES", 1_000)
    calls = sent(r)
    payloads = [bytes([i]) * 300 for i in range(8)] + [b"x" * 5_000]
    ids = await asyncio.gather(*(r.producer.publish("priority", p, priority=20) for p in payloads))
    assert [len(adds) for adds in calls] == [3, 3, 2, 1]
    assert ids == [message.slot_id(zlib.crc32(p) % 4, p) for p in payloads]


async def test_small_messages_go_by_the_thousand(r: Rig) -> None:
    calls = sent(r)
    await r.producer.publish_many("priority", [b"%d" % i for i in range(4_500)], priority=20)
    assert [len(adds) for adds in calls] == [2_000, 2_000, 500]


async def test_a_delayed_message_whose_group_cannot_be_looked_up_again_is_published(r: Rig) -> None:
    await r.producer.publish("log", "first", delay_ms=5000)

    async def out_of_reach() -> None:
        r.db.down = True

    r.store.lanes.after["add"] = out_of_reach
    assert await r.producer.publish("log", "x", delay_ms=5000)
    r.db.down = False
    waiting = [e for g in range(2) for e in await r.store.lanes.waiting(f"log/{g}")]
    assert sorted(message.decode(e.body).payload for e in waiting) == [b"first", b"x"]


@pytest.mark.parametrize("delay_ms", [0, 0.001, 1, 5])
async def test_a_fixed_time_of_now_is_due_at_once(r: Rig, delay_ms: float) -> None:
    id_ = await r.producer.publish("fixed_time", b"x", delay_ms=delay_ms)
    assert [await r.producer.publish_many("fixed_time", [b"x"], delay_ms=delay_ms)] == [[id_]]
