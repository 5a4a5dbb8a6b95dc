"""The producer, on a memory store: batching, routing, refusals."""

from __future__ import annotations

import asyncio
import contextlib
import os
import warnings
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any, NamedTuple
from unittest import mock

import pytest

from emq.producer import Producer, doubtful_delays, router
from emq.producer.outgoing import Outgoing
from emq.producer.routes import Route
from emq.runtime import errors
from emq.runtime.clock import SystemClock
from emq.storage import message
from emq.storage.log_store import Read, Trim
from emq.storage.message import label, slot_id
from emq.topics import changing
from emq.topics.model import Kind, State
from emq.trail.events import Doubted
from support.recorded_trail import RecordedTrail
from support.rig import Rig, rig
from support.virtual import virtual


@pytest.fixture
async def r() -> AsyncIterator[Rig]:
    async with rig(SystemClock()) as made:
        yield made


async def stored(r: Rig, topic: str) -> dict[str, list[message.Message]]:
    """Every message of the topic, by queue."""
    found = await r.catalog.get(topic)
    queues = [q for g in range(found.groups) for q in found.queues(g)]
    batches = await r.store.real.log.read([Read(q, 1, 100_000, 1) for q in queues], 1 << 30)
    return {
        q: [message.decode(b) for b in batch.bodies]
        for q, batch in zip(queues, batches, strict=True)
        if not isinstance(batch, errors.NotOwner) and batch.bodies
    }


async def test_awaited_single_publishes_share_round_trips(r: Rig) -> None:
    await r.topic("orders", 50)
    ids = await asyncio.gather(*(r.producer.publish("orders", b"%d" % i) for i in range(2_000)))
    assert len(set(ids)) == 2_000
    assert r.store.log.calls["put"] <= 20
    [found] = (await stored(r, "orders")).values()
    assert [m.payload for m in found] == [b"%d" % i for i in range(2_000)]
    assert [m.id for m in found] == ids
    assert r.producer.published == 2_000


async def test_a_message_does_not_overtake_those_that_wait_for_a_look_at_the_catalog(r: Rig) -> None:
    await r.topic("orders", 50)
    await r.producer.refresh()
    r.producer._router._checked_at -= router.CATALOG_POLL_S + 1
    await asyncio.gather(*(r.producer.publish("orders", b"%d" % i, key="k") for i in range(100)))
    [found] = (await stored(r, "orders")).values()
    assert [m.payload for m in found] == [b"%d" % i for i in range(100)]


async def test_publishes_to_many_topics_and_durabilities_share_round_trips(r: Rig) -> None:
    for i in range(50):
        await r.topic(f"t{i}", 50, **({"durability": "fsynced"} if i % 2 else {}))
    await asyncio.gather(*(r.producer.publish(f"t{i % 50}", b"x") for i in range(500)))
    assert r.store.log.calls["put"] <= 6
    assert [len((await stored(r, f"t{i}"))[f"t{i}/0/mid"]) for i in range(50)] == [10] * 50


async def test_a_few_messages_for_each_of_many_topics_share_round_trips_in_their_order(r: Rig) -> None:
    for i in range(300):
        await r.topic(f"t{i}", 50, **({"durability": "fsynced"} if i % 2 else {}))
    sent = [Outgoing(f"t{i}", b"%d" % n) for n in range(3) for i in range(300)]
    refused = Outgoing("t7", b"x", priority="none")
    ids = await r.producer.send([*sent, refused])
    assert isinstance(ids.pop(), errors.InvalidMessage)
    assert len(set(ids)) == 900
    assert r.store.log.calls["put"] <= 6
    for i in range(300):
        [found] = (await stored(r, f"t{i}")).values()
        assert [(m.payload, m.id) for m in found] == [(b"%d" % n, ids[n * 300 + i]) for n in range(3)]


async def test_messages_without_a_key_go_round_and_those_of_a_key_stay_together(r: Rig) -> None:
    await r.topic("orders", 100, group_qps=10)
    await r.producer.publish_many("orders", [b"x"] * 95)
    await asyncio.gather(*(r.producer.publish("orders", b"x") for _ in range(55)))
    assert set(Counter({q: len(ms) for q, ms in (await stored(r, "orders")).items()}).values()) == {15}

    await r.topic("keyed", 100, group_qps=10)
    keys = [f"k{i % 37}" for i in range(400)]  # in turn, each key would come to each of the ten groups
    await r.producer.publish_many("keyed", [b"%d" % i for i in range(400)], keys=keys)
    await r.producer.publish("keyed", b"400", key="k0")
    of_key: dict[str | None, set[str]] = {}
    for queue, found in (await stored(r, "keyed")).items():
        for m in found:
            of_key.setdefault(m.key, set()).add(queue)
        for key in {m.key for m in found}:
            order = [int(m.payload) for m in found if m.key == key]
            assert order == sorted(order)
    assert all(len(queues) == 1 for queues in of_key.values())
    assert len(set.union(*of_key.values())) > 5


async def test_a_message_that_is_routed_again_says_by_which_layout(r: Rig) -> None:
    """By it, its new group knows to wait for those of its key that lie in the old one."""
    first = (await r.topic("orders", 20, group_qps=10)).layout
    keys = [f"k{i}" for i in range(20)]
    await r.producer.publish_many("orders", [b"old"] * 20, keys=keys)
    await r.admin.update("orders", qps=50)
    await r.producer.publish_many("orders", [b"many"] * 20, keys=keys)
    await r.admin.update("orders", qps=70)
    await asyncio.gather(*(r.producer.publish("orders", b"one", key=key) for key in keys))
    layouts: dict[bytes, set[int]] = {}
    for found in (await stored(r, "orders")).values():
        for m in found:
            layouts.setdefault(m.payload, set()).add(m.group)  # where a stored message has its layout
    assert layouts == {b"old": {first}, b"many": {first + 1}, b"one": {first + 2}}
    assert (await r.catalog.get("orders")).layout == first + 2


async def test_a_batch_is_refused_by_the_oldest_layout_of_its_messages(r: Rig) -> None:
    """Else a message whose key has moved away is stored in its old group, beside those of its new one."""
    await r.topic("orders", 20, group_qps=10)
    route = r.producer._router.route
    before = await route("orders")
    await r.admin.update("orders", qps=50)
    await r.producer.refresh()
    after = await route("orders")
    keys = [f"k{i}" for i in range(100)]
    moves = next(k for k in keys if before.group(k) == 1 and after.group(k) != 1)
    stays = next(k for k in keys if after.group(k) == 1)
    queue = before.topic.queues(1)[0]
    await r.store.log.trim([Trim(queue, 0, None, layout=after.topic.layout)])

    def publish(by: Route, key: str) -> Awaitable[str]:
        body = message.encode(key, b"x", key, 0, None, by.topic.layout)
        return r.producer._queues.publish(by, key, 0, body, key, 0)

    await asyncio.gather(publish(after, stays), publish(before, moves))
    places = {m.id: (queue, m.group) for queue, found in (await stored(r, "orders")).items() for m in found}
    layout = after.topic.layout
    assert places == {
        stays: (queue, layout),
        moves: (after.topic.queues(after.group(moves))[0], layout),
    }


async def test_what_waits_for_the_database_is_bounded_in_messages_and_bytes() -> None:
    class Item(NamedTuple):
        size: int

    async def never(items: Sequence[Item]) -> Sequence[Item]:
        return items

    for items in ([Item(0)] * doubtful_delays.MESSAGES, [Item(doubtful_delays.BYTES)]):
        waiting = doubtful_delays.Doubts(never)
        waiting.put(items[1:])
        waiting.refuse_more()
        waiting.put(items[:1])
        with pytest.raises(errors.DatabaseUnavailable, match="nothing was published"):
            waiting.refuse_more()
        assert waiting._task is not None
        waiting._task.cancel()


async def test_ids_that_the_caller_gives_are_those_of_the_messages(r: Rig) -> None:
    await r.topic("orders", 50)
    assert await r.producer.publish_many("orders", [b"a", b"b"], message_ids=["run.1", "run.2"]) == ["run.1", "run.2"]
    assert await r.producer.publish("orders", b"c", message_id="run.3") == "run.3"
    assert await r.producer.publish("orders", b"d", message_id="run.4", ttl_s=60) == "run.4"
    [found] = (await stored(r, "orders")).values()
    assert [(m.id, m.payload) for m in found] == [
        ("run.1", b"a"),
        ("run.2", b"b"),
        ("run.3", b"c"),
        ("run.4", b"d"),
    ]
    for _ in range(2):  # each publish stores a message of its own
        assert await r.producer.publish_many("orders", [b"e"], message_ids=["run.5"], delay_ms=60_000) == ["run.5"]
    waiting = [entry.id for entry in await r.store.real.lanes.waiting("orders/0")]
    assert [label(uid) for uid in waiting] == ["run.5", "run.5"]
    assert len({*waiting, *(m.uid for m in found)}) == 6, "each has an identity of its own"


async def test_ids_that_cannot_be_are_refused(r: Rig) -> None:
    await r.topic("orders", 50)
    await r.topic("merged", 50, kind="range_merge", priorities=())
    for ids in ([""], ["x" * 129], [7], [None]):
        with pytest.raises(errors.InvalidMessage, match="1 to 128 characters"):
            await r.producer.publish_many("orders", [b"a"], message_ids=ids)
    with pytest.raises(errors.InvalidMessage, match="message_ids has 2 entries for 1 payload"):
        await r.producer.publish_many("orders", [b"a"], message_ids=["a", "b"])
    with pytest.raises(errors.InvalidMessage, match="follow from the merged content"):
        await r.producer.publish("merged", b"a", message_id="a", time_range_ms=1_000)
    assert await stored(r, "orders") == {}


async def test_priority_headers_and_text_arrive(r: Rig) -> None:
    await r.topic("orders", 50)
    await r.producer.publish("orders", "grüß", priority="high", headers={"a": "b"}, key="k")
    await r.producer.publish_many("orders", ["eins"], priority="low", headers={"c": "d"}, key="k")
    found = await stored(r, "orders")
    [high], [low] = found["orders/0/high"], found["orders/0/low"]
    assert (high.payload.decode(), high.headers, high.key) == ("grüß", {"a": "b"}, "k")
    assert (low.payload, low.headers, low.key) == (b"eins", {"c": "d"}, "k")


async def test_bad_messages_are_refused_in_one_line_that_names_the_value(r: Rig) -> None:
    await r.topic("orders", 50, max_payload=10)
    with pytest.raises(errors.InvalidMessage, match=r"11 bytes; topic 'orders' takes .*10"):
        await r.producer.publish("orders", b"x" * 11)
    with pytest.raises(errors.InvalidMessage, match="11 bytes"):
        await r.producer.publish_many("orders", [b"fine", b"x" * 11])
    with pytest.raises(errors.InvalidMessage, match="no priority 'urgent'; it has high, mid, low"):
        await r.producer.publish("orders", b"x", priority="urgent")
    with pytest.raises(errors.InvalidMessage, match="keys has 1 entry for 2 payloads"):
        await r.producer.publish_many("orders", [b"x", b"y"], keys=["a"])
    assert await stored(r, "orders") == {}
    await r.producer.publish("orders", b"x" * 10)


async def test_a_draining_topic_takes_nothing_and_a_paused_one_does(r: Rig) -> None:
    await r.topic("orders", 50)
    await r.admin.update("orders", state=State.PAUSED)
    await r.producer.publish("orders", b"x")
    await r.admin.update("orders", state=State.DRAINING)
    await r.producer.refresh()
    with pytest.raises(errors.TopicClosed, match=r"'orders' is draining.*resume"):
        await r.producer.publish("orders", b"x")
    with pytest.raises(errors.TopicClosed):
        await r.producer.publish_many("orders", [b"x"])
    await r.admin.update("orders", state=State.ACTIVE)
    await r.producer.refresh()
    await r.producer.publish("orders", b"x")


async def test_a_full_topic_refuses_and_publishes_that_fit_are_not_refused_for_their_neighbours(r: Rig) -> None:
    await r.topic("orders", 50, max_length=10)
    outcomes = await asyncio.gather(
        *(r.producer.publish("orders", b"x", priority="high" if i % 2 else "low") for i in range(25)),
        return_exceptions=True,
    )
    refused = [o for o in outcomes if isinstance(o, errors.TopicFull)]
    assert (len(refused), len(outcomes) - len(refused)) == (15, 10)
    assert "max_length" in str(refused[0])
    assert sum(map(len, (await stored(r, "orders")).values())) == 10


async def test_max_length_is_shared_by_the_groups_and_the_oldest_may_be_dropped(r: Rig) -> None:
    await r.topic("orders", 100, group_qps=50, max_length=20, overflow="drop_oldest", priorities=("p",))
    for i in range(60):
        await r.producer.publish("orders", b"%d" % i)
    kept = sorted(int(m.payload) for found in (await stored(r, "orders")).values() for m in found)
    assert kept == list(range(40, 60))


async def test_what_a_publish_of_many_stored_before_a_refusal_is_counted(r: Rig) -> None:
    await r.topic("orders", 100, group_qps=50, max_length=20, priorities=("p",))
    await r.producer.publish_many("orders", [b"x"] * 8, key="fills one group")
    with pytest.raises(errors.TopicFull):
        await r.producer.publish_many("orders", [b"x"] * 10)
    assert r.producer.published == sum(map(len, (await stored(r, "orders")).values())) == 13


@pytest.mark.parametrize(
    "fault", [errors.StoreUnavailable("gone"), errors.StoreFull("full"), errors.OutcomeUnknown("?")]
)
async def test_a_store_that_fails_fails_every_publish_and_none_hangs(r: Rig, fault: errors.EMQError) -> None:
    await r.topic("orders", 50)
    r.store.log.fail(fault, "put")
    async with asyncio.timeout(5):
        outcomes = await asyncio.gather(
            *(r.producer.publish("orders", b"x") for _ in range(1_200)), return_exceptions=True
        )
        assert set(map(type, outcomes)) == {type(fault)}
        with pytest.raises(type(fault)):
            await r.producer.publish_many("orders", [b"x"])
        r.store.log.heal()
        await r.producer.publish("orders", b"x")


@pytest.mark.parametrize(("fault", "doubted"), [(errors.OutcomeUnknown("?"), True), (errors.StoreFull("full"), False)])
async def test_publishes_of_unknown_outcome_are_recorded_with_their_ids(
    r: Rig, fault: errors.EMQError, doubted: bool
) -> None:
    await r.topic("orders", 50)
    await r.topic("sorted", 50, kind="priority", priorities=())
    r.store.log.fail(fault, "put")
    r.store.lanes.fail(fault, "add")
    r.store.sorted.fail(fault, "add")
    trail = RecordedTrail()
    producer = Producer(r.store, r.catalog, clock=r.clock, trail=trail)
    outcomes = await asyncio.gather(
        producer.publish("orders", b"x", message_id="alone"),
        producer.publish_many("orders", [b"x"] * 2, message_ids=["first", "second"]),
        producer.publish("orders", b"x", message_id="later", delay_ms=60_000),
        producer.publish("sorted", b"x", priority=20),
        return_exceptions=True,
    )
    assert set(map(type, outcomes)) == {type(fault)}
    content = slot_id(zlib.crc32(b"x") % (await r.catalog.get("sorted")).slots, b"x")
    ids = [label(uid) for event in trail.events if isinstance(event, Doubted) for uid in event.ids]
    assert sorted(ids) == (sorted(["alone", "first", "second", "later", content]) if doubted else [])


async def test_a_publish_to_a_retired_group_goes_to_one_that_is_left(r: Rig) -> None:
    await r.topic("orders", 100, group_qps=10)
    await r.producer.publish_many("orders", [b"x"] * 10)
    await r.admin.update("orders", qps=10)
    queues = [q for q in (await r.catalog.get("orders")).all_queues() if not q.startswith("orders/0/")]
    await r.store.log.trim([Trim(q, 100, None, seal=True) for q in queues])
    topic = await r.catalog.get("orders")
    await r.catalog.change("orders", changing.retired, expected=topic)
    await asyncio.gather(*(r.producer.publish("orders", b"late") for _ in range(20)))
    await r.producer.publish_many("orders", [b"late"] * 20)
    [(queue, found)] = (await stored(r, "orders")).items()
    assert queue == "orders/0/mid"
    assert [m.payload for m in found].count(b"late") == 40


async def retired(r: Rig) -> None:
    """Let nine groups retire of the ten that the producer knows."""
    await r.topic("orders", 100, group_qps=10)
    await r.producer.publish_many("orders", [b"x"] * 10)  # it knows ten groups now
    await r.admin.update("orders", qps=10)
    await r.catalog.change("orders", changing.retired, expected=await r.catalog.get("orders"))


async def test_what_is_delayed_into_a_retired_group_is_placed_anew(r: Rig) -> None:
    await retired(r)
    ids = await asyncio.gather(*(r.producer.publish("orders", b"late", delay_ms=60_000) for _ in range(20)))
    assert {e.id for e in await r.store.lanes.waiting("orders/0")} == set(ids)
    lanes = await r.store.lanes.inspect([f"orders/{group}" for group in range(1, 10)])
    assert [lane.waiting for lane in lanes] == [0] * 9


async def test_what_cannot_be_taken_back_from_a_retired_group_is_not_said_to_be_published(r: Rig) -> None:
    await retired(r)
    r.store.lanes.inject("settle", before=errors.StoreUnavailable("out of reach"), of=lambda _: True, times=None)
    publishes = (r.producer.publish("orders", b"late", delay_ms=60_000) for _ in range(10))
    outcomes = await asyncio.gather(*publishes, return_exceptions=True)
    there = {entry.id for entry in await r.store.lanes.waiting("orders/0")}
    assert {outcome for outcome in outcomes if isinstance(outcome, str)} == there
    assert [type(outcome) for outcome in outcomes].count(errors.OutcomeUnknown) == 9


@pytest.mark.parametrize("look_breaks", [False, True])
@virtual
async def test_what_was_perhaps_taken_back_from_a_retired_group_is_placed_anew_once_the_database_answers(
    look_breaks: bool,
) -> None:
    async with rig() as r:
        await retired(r)

        async def database_goes() -> None:
            r.db.down = not look_breaks

        r.store.lanes.after["add"] = database_goes
        look = mock.patch.object(r.producer._lanes, "_look_again", side_effect=RuntimeError("nobody expected this"))
        with look if look_breaks else contextlib.nullcontext():
            ids = await asyncio.gather(*(r.producer.publish("orders", b"late", delay_ms=60_000) for _ in range(10)))
        r.store.lanes.lose("settle", of=lambda _: True, times=None)
        r.db.down = False
        await asyncio.sleep(5 * doubtful_delays.ASK_AGAIN_S)
        assert {entry.id for entry in await r.store.lanes.waiting("orders/0")} == set(ids)


async def test_sealed_while_the_database_is_gone_fails_and_does_not_hang(r: Rig) -> None:
    await r.topic("orders", 50)
    await r.producer.publish("orders", b"x")
    await r.store.log.trim([Trim(q, 100, None, seal=True) for q in (await r.catalog.get("orders")).all_queues()])
    r.db.down = True
    async with asyncio.timeout(5):
        outcomes = await asyncio.gather(
            *(r.producer.publish("orders", b"x") for _ in range(700)), return_exceptions=True
        )
    assert set(map(type, outcomes)) == {errors.DatabaseUnavailable}


async def test_a_cancelled_publish_does_not_disturb_its_neighbours(r: Rig) -> None:
    await r.topic("orders", 50)
    await r.producer.publish("orders", b"first")
    tasks = [asyncio.ensure_future(r.producer.publish("orders", b"x")) for _ in range(20)]
    await asyncio.sleep(0)
    tasks[3].cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(o, str) for o in outcomes) == 19


@pytest.mark.parametrize("settings", [{"kind": Kind.RANGE_MERGE, "time_range_ms": 50}, {"priorities": ("only",)}])
@pytest.mark.parametrize("many", [False, True])
async def test_a_topic_that_was_created_anew_without_that_priority_is_refused(
    r: Rig, settings: dict[str, Any], many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, "CATALOG_POLL_S", 60.0)  # the producer learns of it by the sealed queue
    await r.topic("t", priorities=("high", "low"))
    await r.producer.publish("t", "a", priority="low")
    await r.admin.delete("t", force=True)
    await r.topic("t", **settings)
    publish = (
        r.producer.publish_many("t", ["b"], priority="low") if many else r.producer.publish("t", "b", priority="low")
    )
    with pytest.raises(errors.InvalidMessage, match="created again and has no priority 'low'"):
        await publish


OF_A_PART = errors.StoreUnavailable("this part of the store is down; nothing was applied")


@pytest.mark.parametrize("topic", ["log", "sorted", "delayed"])
async def test_many_messages_of_which_a_part_went_in_are_never_reported_as_not_published(r: Rig, topic: str) -> None:
    await r.topic("log", 500)
    await r.topic("sorted", 500, kind="priority", slots=8)
    options: dict[str, Any] = {"sorted": {"priority": 20}, "delayed": {"delay_ms": 60_000}}.get(topic, {})
    name = "sorted" if topic == "sorted" else "log"
    r.store.fail_parts(lambda group: OF_A_PART if group.endswith("/1") else None)
    with pytest.raises(errors.OutcomeUnknown, match="of 100 messages were published"):
        await r.producer.publish_many(name, [b"%d" % n for n in range(100)], **options)
    r.store.fail_parts(lambda group: OF_A_PART)
    with pytest.raises(errors.StoreUnavailable) as told:
        await r.producer.publish_many(name, [b"%d" % n for n in range(100)], **options)
    assert type(told.value) is errors.StoreUnavailable


def test_no_message_id_looks_like_an_option_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message.secrets, "token_urlsafe", lambda _: "-0RiBtilQUkh")
    assert message.IdSource().next() == "A0RiBtilQUkh1"


def test_a_source_of_ids_begins_again_in_a_forked_child() -> None:
    source = message.IdSource()
    told, tell = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: a fork beside threads
        child = os.fork()
    if child == 0:
        try:
            os.write(tell, source.next().encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    in_child = os.read(told, 100).decode()
    os.close(told)
    os.close(tell)
    assert in_child.endswith("1")
    assert in_child != source.next()
