"""A message's trace tells its life, where it is, and every reason for which one may wait."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from emq.app import App
from emq.host.statistics import HostStatistics, Rates, TopicStatistics, Totals
from emq.observe import dead_letters
from emq.runtime import errors
from emq.runtime.settings import Settings
from emq.storage import message
from emq.storage.lane_store import LaneAdd, LaneClaim
from emq.storage.message import Message
from emq.storage.slot_store import SlotClaim, SlotSettle, SlotVerdict
from emq.topics.model import Kind, State, Topic, TopicOptions, split
from emq.trail import NullTrail, events
from emq.trail.events import Event
from emq.trail.writer import Trail
from emq_trace import facts, timeline
from emq_trace.facts import Consumer, Facts, Failure, Place, Running, Where
from emq_trace.lookup import Trace, look_up
from emq_trace.waiting_reasons import Name, why
from support.emq_shell import Shell
from support.recorded_trail import RecordedTrail

NOW_MS = 1_700_000_000_000
CONTENT = f"0-{'ab' * 12}"
"""An id as those of sorted topics are."""
TOPIC = split(Topic("shop", 20.0))
HOST = Consumer("host-1", in_flight=3, limit=100)
QUEUED = Place(Where.QUEUE, facts.State.WAITING, "shop/0/mid", 0, "m1", offset=7, priority="mid")
LANE = Place(Where.LANE, facts.State.WAITING, "shop/0", 0, "m1")


def known(place: Place | None = QUEUED, topic: Topic = TOPIC, **more: Any) -> Facts:
    return Facts(topic, NOW_MS, place, **{"hosts": 1, "consumers": (HOST,), **more})


def options(**changes: Any) -> Topic:
    return split(Topic("shop", 20.0, options=TopicOptions(**changes)))


def names(found: Facts) -> list[str]:
    return [reason.name.value for reason in why(found)]


def text(found: Facts) -> str:
    return " | ".join(reason.text for reason in why(found))


# ------------------------------------------------------------------------------------------------------------- reasons


PAUSED = split(Topic("shop", 20.0, state=State.PAUSED))
FULL = Consumer("host-2", in_flight=8, limit=8)
MEMBER = Consumer("host-2-1", in_flight=8, limit=8)
RUNNING = Running("host-1", NOW_MS - 3_000, 2, live=True)
LATER = dataclasses.replace(LANE, due_ms=NOW_MS + 90_000, ahead=5, above=5)
RETRY = dataclasses.replace(LANE, due_ms=NOW_MS + 9_500, attempt=2, error="TimeoutError")
ABOVE = dataclasses.replace(QUEUED, above=1)
DEAD = dataclasses.replace(LANE, state=facts.State.DEAD, error="HTTP 410", since_ms=NOW_MS)

REASONS: dict[str, tuple[Facts, list[str], str]] = {
    "nothing ahead": (known(), ["rate"], "nothing is ahead"),
    "many ahead": (
        known(dataclasses.replace(QUEUED, ahead=200)),
        ["rate"],
        "200 unfinished messages ahead of it in its queue",
    ),
    "priority above": (
        known(dataclasses.replace(QUEUED, ahead=20, above=40)),
        ["priority above it", "rate"],
        "40 more urgent messages of its group before it",
    ),
    "weighted": (
        known(ABOVE, options(priority_policy="weighted", weights=(3, 2, 1))),
        ["priority above it"],
        "1 more urgent message of its group sharing the quota with it by weights",
    ),
    "the only host is full": (
        known(consumers=(FULL,)),
        ["in-flight limit", "rate"],
        "8 of at most 8 messages in flight on host-2",
    ),
    "another host is full": (known(consumers=(HOST, FULL)), ["rate"], ""),
    "the owner is full": (known(consumers=(HOST, FULL), owner="host-2"), ["in-flight limit", "rate"], ""),
    "a member of the owner is full": (known(consumers=(HOST, MEMBER), owner="host-2"), ["in-flight limit", "rate"], ""),
    "paused": (known(topic=PAUSED), ["paused"], "emq topic resume shop"),
    "no host": (known(hosts=0, consumers=()), ["no owner"], "no host is running"),
    "no consumer": (known(consumers=()), ["no owner"], "no live host consumes topic 'shop'"),
    "no handler": (known(consumers=(HOST._replace(bound=False),)), ["no owner"], "no handler is bound"),
    "a host did not tell all its topics": (known(consumers=(), complete=False), ["rate"], ""),
    "cut off": (
        known(consumers=(HOST._replace(unreachable="connection refused"),)),
        ["unreachable", "rate"],
        "host-1: connection refused",
    ),
    "not due": (known(LATER), ["not due"], "in 90 s"),
    "not due, and no host": (known(LATER, hosts=0, consumers=()), ["not due", "no owner"], ""),
    "due now": (known(dataclasses.replace(LANE, due_ms=NOW_MS)), ["rate"], ""),
    "of a schedule": (known(dataclasses.replace(LATER, recurring=True)), ["not due"], "again and again"),
    "retry": (
        known(RETRY, failure=Failure(1, NOW_MS, NOW_MS + 9_500, "TimeoutError")),
        ["retry"],
        "in 9.5 s; then attempt 2",
    ),
    "retry without a trail": (known(RETRY), ["retry"], ""),
    "retry as asked for": (
        known(dataclasses.replace(RETRY, error="later"), failure=Failure(1, NOW_MS, NOW_MS + 60_000, "later")),
        ["retry"],
        "its handler failed (later) and asked to wait",
    ),
    "running": (known(running=RUNNING), ["running"], "attempt 2 runs on host-1 since 3 s"),
    "running on a host that is gone": (known(running=RUNNING._replace(live=False)), ["running"], "that host is gone"),
    "claimed": (known(dataclasses.replace(LANE, state=facts.State.CLAIMED)), ["claimed"], ""),
    "dead": (known(DEAD), ["dead"], "(HTTP 410); put it back with: emq dead replay shop --identity m1"),
    "nowhere": (known(None), [], ""),
    "finished": (known(dataclasses.replace(QUEUED, state=facts.State.FINISHED)), [], ""),
}


@pytest.mark.parametrize(("found", "reasons", "said"), REASONS.values(), ids=REASONS)
def test_each_reason_for_which_a_message_waits_is_named(found: Facts, reasons: list[str], said: str) -> None:
    assert names(found) == reasons
    assert said in text(found)


def test_what_holds_a_message_back_ends_at_a_time() -> None:
    assert why(known())[0].until_ms == NOW_MS + 50
    assert why(known(topic=split(Topic("shop", 0.1))))[0].until_ms == NOW_MS + 10_000
    both = why(known(dataclasses.replace(QUEUED, ahead=20, above=40)))
    assert [reason.until_ms for reason in both] == [NOW_MS + 2_000, NOW_MS + 3_000]
    assert why(known(LATER))[0].until_ms == NOW_MS + 90_000


@pytest.mark.services
@pytest.mark.parametrize(("wait_s", "said"), [(10, "; backoff until"), (600, " and asked to wait until")])
def test_a_push_that_failed_waits_for_its_endpoint(wait_s: int, said: str) -> None:
    due_ms = NOW_MS + wait_s * 1000
    place = dataclasses.replace(LANE, due_ms=due_ms, attempt=2, error="HTTP 503")
    pushed = known(place, options(attributes={"push.url": "http://h"}), failure=Failure(1, NOW_MS, due_ms, "HTTP 503"))
    assert names(pushed) == ["breaker"]
    assert f"its endpoint failed (HTTP 503){said}" in text(pushed)


# ------------------------------------------------------------------------------------------------------------ timeline


def event(name: str, at_ms: int, **more: Any) -> Event:
    source = "producer" if name in ("published", "merged") else "host-1"
    return Event(**{"event": name, "time_us": at_ms * 1000, "source": source, "topic": "shop", "group": 0, **more})


def test_the_timeline_tells_each_step_with_its_waits() -> None:
    found = [
        event("published", 1_002, published_us=1_000_000, offset=7, priority=0, key="k"),
        event("started", 1_500, ready_us=1_400_000, attempt=1, epoch=5),
        event("retried", 1_600, attempt=1, due_ms=2_000, reason="TimeoutError"),
        event("started", 2_250, ready_us=2_100_000, attempt=2, epoch=5),
        event("settled", 2_300, attempt=2),
    ]
    told = [(line.time_us // 1000, line.event, line.detail) for line in timeline.lines(found, [], TOPIC)]
    again = told[3][2].partition("; again ")
    assert told[:3] + told[4:] == [
        (1000, "published", "by producer into group 0, high, offset 7, key 'k'"),
        (1400, "claimed", "by host-1, epoch 5"),
        (1500, "started", "attempt 1 on host-1, waited 500 ms"),
        (2100, "claimed", "by host-1, epoch 5"),
        (2250, "started", "attempt 2 on host-1, waited 250 ms"),
        (2300, "settled", "on host-1 after 50 ms"),
    ]
    assert again[0] == "TimeoutError after 100 ms on host-1"
    assert again[2].endswith(":02.000")


def test_merges_are_counted_and_replays_recalls_and_owners_told() -> None:
    found = [
        event("published", 1_000, published_us=1_000_000, due_ms=5_000),
        *(event("merged", 1_000 + i) for i in range(1, 4)),
        event("dead", 1_500, reason="expired"),
        event("replayed", 1_600),
        event("recalled", 1_700),
    ]
    of_group = [event("owned", 900, epoch=4), event("owned", 1_100, epoch=5), event("skipped", 1_200, until=9)]
    told = [(line.event, line.detail) for line in timeline.lines(found, of_group, TOPIC)]
    assert [name for name, _ in told] == [
        *("published", "merged", "owned", "skipped", "dead", "replayed", "recalled"),
    ], "owners from before its time are left out"
    assert "delayed until" in told[0][1]
    assert told[1][1].startswith("3 times, last ")


def test_the_state_is_that_of_what_happened_last() -> None:
    published, started = event("published", 1, published_us=1_000), event("started", 3, attempt=1, ready_us=2_000)
    settled, retried = event("settled", 4, attempt=1), event("retried", 4, attempt=1)
    assert timeline.state([]) == ""
    assert timeline.state([published]) == timeline.state([published, started, retried]) == "waiting"
    assert timeline.state([published, started]) == "started"
    assert timeline.state([published, started, settled]) == "settled"
    assert timeline.state([published, started, settled, event("merged", 5)]) == "settled", "recorded late"
    assert timeline.state([published], [event("dropped", 5, offset=0, until=9)]) == "dropped"
    twin = event("published", 3, published_us=2_500)
    assert timeline.state([published, twin, started, settled]) == "waiting", "a twin began during the delivery"
    assert timeline.state([published, started, settled, event("published", 9, published_us=9_000)]) == "waiting"


def test_the_owner_is_the_one_of_the_highest_epoch_until_it_lets_go() -> None:
    first, second = event("owned", 1, epoch=1), event("owned", 2, epoch=2)._replace(source="host-2")
    assert timeline.owner([]) is None
    assert timeline.owner([first, event("released", 3, epoch=1), second]) == "host-2"
    assert timeline.owner([first, second, event("released", 3, epoch=2)]) is None


# ----------------------------------------------------------------------------------------------- asking store and trail


def snapshot(*topics: str, host: str = "host-1") -> HostStatistics:
    busiest = tuple(TopicStatistics(t, 20, "active", 1, 0.0, 0, {}, 0) for t in topics)
    sizes = dict.fromkeys(("groups", "queues", "ready_queues", "buffered_messages", "buffered_bytes", "in_flight"), 0)
    more: dict[str, Any] = {"store_unreachable": None, "database_unreachable": None, "loop_lag_s": 0.0, **sizes}
    return HostStatistics(
        host=host, time=0, uptime_s=0, topics=len(topics), totals=Totals(), rates=Rates(), busiest=busiest, **more
    )


@asynccontextmanager
async def open_app(trail: Path | None = None) -> AsyncIterator[App]:
    async with App(options=Settings(store="memory:", trail=str(trail or ""), host_name="host-1")) as made:
        yield made


async def traced(app: App, message_id: str, topic: str | None = None, *hosts: HostStatistics) -> Trace:
    if isinstance(app.trail, Trail):
        assert await asyncio.to_thread(app.trail.flush)
    return await look_up(app, message_id, topic, hosts)


async def test_a_waiting_message_is_found_at_its_offset_with_what_is_before_it(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await app.create_topic("shop", 20)
        for priority in ("high", "mid", "mid", "low"):
            ids = await app.publish_many("shop", ["a", "b"], priority=priority)
        found = await traced(app, ids[1], None, snapshot("shop"))
        assert (found.state, [line.event for line in found.lines]) == ("waiting", ["published"])
        assert found.place is not None
        assert (found.place.name, found.place.ahead, found.place.above) == ("shop/0/low", 1, 6)
        assert [r.name for r in found.reasons] == [Name.PRIORITY, Name.RATE]


async def test_a_checkpoint_says_that_a_message_is_finished_before_the_trail_does(tmp_path: Path) -> None:
    from emq.offsets.checkpoints import Checkpoint

    async with open_app(tmp_path) as app:
        await app.create_topic("shop", 20)
        ids = await app.publish_many("shop", [str(i) for i in range(5)], priority="mid")
        [bounds] = await app.store.log.bounds(["shop/0/mid"])
        first = bounds.head
        await app.checkpoints.save([Checkpoint("shop/0/mid", 1, first + 1, ((first + 2, first + 3),))])
        found = [await traced(app, i) for i in ids]
        assert [t.state for t in found] == ["finished", "waiting", "finished", "waiting", "waiting"]
        assert [t.place.ahead for t in found if t.place is not None] == [0, 0, 0, 1, 2]
        assert "not in the trail (yet)" in found[0].notes[0]


async def test_the_end_is_told_without_asking_the_store(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await app.create_topic("shop", 20)
        message_id = await app.publish("shop", "x")
        m = Message(message_id, b"x", topic="shop", started_us=time.time_ns() // 1000)
        app.trail.started(m, 1)
        running = await traced(app, message_id, None, snapshot("shop"))
        assert (running.state, running.reasons[0].name) == ("running", Name.RUNNING)
        assert "is gone" in (await traced(app, message_id)).reasons[0].text
        app.trail.settled(m, time.time_ns() // 1000)
        settled = await traced(app, message_id)
        assert (settled.state, settled.place, settled.reasons) == ("settled", None, ())
        await app.admin.delete("shop", force=True)
        gone = await traced(app, message_id)
        assert (gone.topic, gone.notes) == (None, ("topic 'shop' was deleted with its messages",))


async def test_a_message_given_up_as_a_hole_is_told_so(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await app.create_topic("shop", 20)
        message_id = await app.publish("shop", "x", priority="mid")
        [bounds] = await app.store.log.bounds(["shop/0/mid"])
        app.trail.record(events.Skipped(app.clock.now_us(), "shop", 0, 1, bounds.head, bounds.tail))
        found = await traced(app, message_id)
        assert (found.state, found.reasons) == ("skipped", ())
        assert "taken for a hole" in found.lines[-1].detail


def in_lane(i: int, due_ms: int, **more: Any) -> LaneAdd:
    m = Message(f"m{i}", b"x", topic="shop", **{"priority": 1, "attempt": 2, **more})
    return LaneAdd("shop/0", m.id, message.encode_retry(m), due_ms)


async def test_lanes_are_searched_page_by_page_for_what_is_delayed_due_or_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emq_trace.places.PAGE", 3)
    async with open_app() as app:
        await app.create_topic("shop", 20)
        lanes, far_ms = app.store.lanes, 1 << 50
        await lanes.add([in_lane(i, 100 + i, priority=i % 3) for i in range(9)])
        await lanes.add([in_lane(20, far_ms, error="HTTP 503"), in_lane(21, far_ms, attempt=1)])
        await lanes.add([in_lane(i, 0)._replace(reason="gone") for i in range(30, 40)])
        due = await traced(app, "m7", "shop", snapshot("shop"))
        assert due.place is not None
        assert (due.place.ahead, due.place.above, due.place.priority) == (2, 3, "mid")
        retry = await traced(app, "m20", "shop", snapshot("shop"))
        assert [r.name for r in retry.reasons] == [Name.RETRY]
        assert "HTTP 503" in retry.reasons[0].text
        delayed = await traced(app, "m21", "shop", snapshot("shop"))
        assert [r.name for r in delayed.reasons] == [Name.NOT_DUE]
        dead = await traced(app, "m38", "shop")
        assert (dead.state, dead.reasons[0].name) == ("dead", Name.DEAD)
        assert "there is no trail" in dead.notes[0]


async def test_what_is_claimed_is_only_told_of_messages_that_went_there(tmp_path: Path) -> None:
    async with open_app(tmp_path) as app:
        await app.create_topic("shop", 20)
        await app.store.lanes.add([in_lane(1, 0)])
        await app.store.lanes.claim([LaneClaim("shop/0", 5, 1)], 1)
        app.trail.record(events.Published(NOW_MS * 1000, "shop", 0, ["m1"], 1, NOW_MS, due_ms=[NOW_MS]))
        assert [r.name for r in (await traced(app, "m1", None, snapshot("shop"))).reasons] == [Name.CLAIMED]
        assert (await traced(app, "m2", "shop")).state == "unknown"


async def test_queues_are_searched_without_a_trail_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_app() as app:
        await app.create_topic("shop", 20)
        ids = await app.publish_many("shop", [str(i) for i in range(120)], priority="low")
        found = await traced(app, ids[100], "shop")
        assert found.place is not None
        assert (found.state, found.place.ahead) == ("waiting", 100)
        monkeypatch.setattr("emq_trace.places.QUEUE_SEARCH", 50)
        monkeypatch.setattr("emq_trace.lookup.QUEUE_SEARCH", 50)
        cut = await traced(app, ids[100], "shop")
        assert cut.state == "unknown"
        assert cut.notes[0].startswith("the search ended after 50 messages")


@pytest.fixture
async def slots(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    monkeypatch.setattr("emq_trace.places.PAGE", 3)
    async with open_app() as app:
        kinds = {"urgent": Kind.PRIORITY, "soon": Kind.RANGE_MERGE, "then": Kind.FIXED_TIME}
        await app.admin.create([Topic(name, 5.0, kind=kind, slots=1, priorities=()) for name, kind in kinds.items()])
        yield app


async def fill(app: App, topic: str, scores: Sequence[float]) -> Callable[[int], str]:
    from emq.storage.slot_store import SlotAdd

    of_topic = await app.catalog.get(topic)
    slot = of_topic.slot(0)
    await app.store.sorted.add([SlotAdd(slot, b"%d" % i, s, of_topic.keep) for i, s in enumerate(scores)])
    return lambda i: message.slot_id(0, b"%d" % i)


async def test_a_member_by_priority_waits_for_higher_and_equal_ones(slots: App) -> None:
    id_of = await fill(slots, "urgent", [50, 90, 80, 50, 50, 20, 70, 60])
    places = [(await traced(slots, id_of(i), "urgent", snapshot("urgent"))).place for i in (1, 0, 3, 4, 5)]
    assert [p.above for p in places if p] == [0, 4, 4, 4, 7]
    assert sorted(p.ahead for p in places if p and p.priority == "50") == [0, 1, 2]


async def test_members_by_time_wait_until_they_are_due(slots: App) -> None:
    now_ms = time.time_ns() // 1_000_000
    for topic in ("soon", "then"):
        id_of = await fill(slots, topic, [now_ms - 5_000 + i for i in range(5)] + [now_ms + 60_001.0])
        due = await traced(slots, id_of(4), topic, snapshot(topic))
        assert due.place is not None
        assert (due.place.ahead, [r.name for r in due.reasons]) == (4, [Name.RATE])
        later = await traced(slots, id_of(5), topic, snapshot(topic))
        assert later.place is not None
        assert [r.name for r in later.reasons] == [Name.NOT_DUE]
        exact = now_ms + 60_001
        assert later.place.due_ms == (exact if topic == "soon" else -(-exact // 1000) * 1000)


async def test_retries_and_dead_members_of_a_slot_are_found(slots: App) -> None:
    id_of = await fill(slots, "urgent", [100 - i for i in range(8)])
    slot, store = (await slots.catalog.get("urgent")).slot(0), slots.store.sorted
    [claimed] = await store.claim([SlotClaim(slot, 8, 1, 0)], NOW_MS)
    assert not isinstance(claimed, errors.NotOwner)
    fates = {b"0": (SlotVerdict.RETRY, 16.0), **{b"%d" % i: (SlotVerdict.DEAD, 0.0) for i in range(1, 7)}}
    await store.settle(
        [
            SlotSettle(slot, e.member, fates[e.member][0], e.token, 1, fates[e.member][1], "HTTP 503")
            for e in claimed.entries
            if e.member in fates
        ]
    )
    retry = await traced(slots, id_of(0), "urgent", snapshot("urgent"))
    assert retry.place is not None
    assert (retry.place.attempt, retry.place.due_ms) == (2, None)
    assert "behind all others, as a retry" in retry.reasons[0].text
    dead = await traced(slots, id_of(6), "urgent")
    assert (dead.state, "HTTP 503" in dead.reasons[0].text) == ("dead", True)
    assert (await traced(slots, id_of(7), "urgent")).state == "unknown", "in prepare, but nothing tells that it is it"
    assert (await traced(slots, "9-ffff", "urgent")).state == "unknown"
    assert (await traced(slots, "nonsense", "urgent")).state == "unknown"


async def test_a_message_that_left_its_slot_is_found_in_the_lane(slots: App) -> None:
    m = Message(f"{CONTENT}~5f", b"x", topic="urgent", attempt=2, error="HTTP 503")
    await slots.store.lanes.add([LaneAdd("urgent/0", m.id, message.encode_retry(m), 1 << 50)])
    for asked in (CONTENT, f"{CONTENT}~5f"):
        found = await traced(slots, asked, "urgent", snapshot("urgent"))
        assert found.place is not None
        assert (found.id, found.place.id, found.reasons[0].name) == (CONTENT, f"{CONTENT}~5f", Name.RETRY)


# -------------------------------------------------------------------------------------------------------- command line


def test_the_command_shows_the_timeline_and_why(emq: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMQ_TRAIL", "trail")
    emq("topic create shop --qps 20")
    [message_id] = json.loads(emq("publish shop x --priority high --json"))["ids"]
    shown = emq(f"trace {message_id}")
    assert f"message {message_id} of topic 'shop': waiting" in shown
    assert "into group 0, high, offset" in shown
    assert "queue shop/0/high, offset" in shown
    assert "waiting because no owner: no host is running; start one with: emq up" in shown
    data = json.loads(emq(f"trace {message_id} --json"))
    assert (data["state"], data["why"][0]["name"], data["place"]["where"]) == ("waiting", "no owner", "queue")
    assert [e["event"] for e in data["events"]] == ["published"]
    assert "has nothing about 'nothing'" in emq.refused("trace nothing")
    assert "nothing is known of message 'nothing' of topic 'shop'" in emq.refused("trace nothing --topic shop", code=1)
    assert json.loads(emq("trace nothing --topic shop --json", code=1))["state"] == "unknown"
    assert "no topic 'nowhere'" in emq.refused("trace nothing --topic nowhere")


def test_without_a_trail_the_topic_is_needed_and_the_output_says_so(emq: Shell) -> None:
    emq("topic create shop --qps 20")
    [message_id] = json.loads(emq("publish shop x --json"))["ids"]
    said = emq.refused(f"trace {message_id}")
    assert said.count("\n") == 1
    assert "add --topic to ask the store alone" in said
    shown = emq(f"trace {message_id} --topic shop")
    assert "waiting because no owner" in shown
    assert "there is no trail" in shown


def test_an_id_in_several_topics_asks_which(emq: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EMQ_TRAIL", "trail")
    from support.manual_clock import ManualClock

    trail = Trail.open(tmp_path / "trail", "producer", ManualClock())
    for topic in ("a", "b"):
        trail.record(events.Published(NOW_MS, topic, 0, [CONTENT], 0, NOW_MS))
    trail.close()
    emq("topic create other --qps 1")
    assert "is in the topics a, b; add --topic" in emq.refused(f"trace {CONTENT}")


def test_a_replay_is_recorded(emq: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMQ_TRAIL", "trail")
    emq("topic create shop --qps 20")

    async def bury() -> None:
        async with App(trail=NullTrail()) as made:
            await made.store.lanes.add([in_lane(1, 0)._replace(reason="HTTP 503")])

    asyncio.run(bury())
    emq("dead replay shop")
    assert [e["event"] for e in json.loads(emq("trace m1 --json"))["events"]] == ["replayed"]


async def test_each_replayed_letter_is_recorded_once_it_is_put_back() -> None:
    trail = RecordedTrail()
    async with open_app() as app:
        topic = await app.create_topic("shop", 20)
        await app.store.lanes.add([in_lane(i, 0)._replace(reason="x") for i in range(3)])
        only = dead_letters.Selection(ids=frozenset({"m2"}))
        await dead_letters.replay(app.store, topic, only, clock=app.clock, trail=trail)
    [replayed] = trail.events
    assert replayed == events.Replayed(replayed.time_us, "shop", 0, 1, "m2")
    assert abs(replayed.time_us / 1e6 - time.time()) < 60
