"""One host on the memory store, in virtual time: delivery, priority, the cap, and live changes."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter

import pytest

from emq.fetcher.readiness import SWEEP_S
from emq.storage.message import Message
from emq.topics.model import Kind, State
from emq_stores.memory import MemoryStore
from support.doubles import FaultyStore
from support.rig import Rig, Seen, bound, inversions, running, starts_per_second
from support.virtual import virtual
from support.waiting import until

pytestmark = virtual


async def test_every_published_message_is_delivered_once_and_its_progress_is_saved(r: Rig) -> None:
    await r.topic("orders", 1_000)
    sent = await r.producer.publish_many("orders", [b"%d" % i for i in range(2_500)])
    seen = Seen()
    async with r.consuming(seen):
        await until(lambda: len(seen) == 2_500)
    assert sorted(seen.ids) == sorted(sent)
    assert {d.attempt for d in seen.deliveries} == {1}
    assert await r.lag("orders") == 0


async def test_a_message_to_an_idle_group_starts_at_once(r: Rig) -> None:
    await r.topic("orders", 10)
    seen = Seen()
    async with r.consuming(seen):
        await asyncio.sleep(5)  # idle, armed, the counter's first second is over
        published = r.clock.now()
        await r.producer.publish("orders", b"x")
        await until(lambda: len(seen) == 1, step_s=0.0005)
        assert r.clock.now() - published < 0.002


async def test_a_topic_without_a_handler_keeps_its_messages(r: Rig) -> None:
    await r.topic("orders")
    await r.producer.publish("orders", b"x")
    async with r.consuming(bound({"other": Seen().on("h")})):
        await asyncio.sleep(3)
    assert await r.lag("orders") == 1


async def test_a_high_message_that_arrives_last_goes_before_the_backlog_below_it(r: Rig) -> None:
    await r.topic("orders", 10)
    await r.producer.publish_many("orders", [b"low"] * 100, priority="low")
    seen = Seen()
    async with r.consuming(seen):
        await until(lambda: len(seen) >= 20)
        await r.producer.publish_many("orders", [b"high"] * 3, priority="high")
        await until(lambda: len(seen) == 40)
    assert seen.payloads.index(b"high") <= 30  # the rest of the running second's quota may be spent
    assert seen.payloads.count(b"high") == 3
    first = seen.payloads.index(b"high")
    assert seen.payloads[first : first + 3] == [b"high"] * 3
    assert inversions(seen.deliveries) == []


@pytest.mark.parametrize("slow", [4, 6, 7])
async def test_what_the_store_holds_of_a_higher_priority_goes_before_what_is_buffered_of_a_lower(
    r: Rig, slow: int
) -> None:
    """A handler that waits in the middle of a second has the buffer filled again there, and half empty at the next."""

    async def pause(m: Message) -> None:
        if m.payload.startswith(b"slow"):
            await asyncio.sleep(0.3)

    await r.topic("orders", 10)
    for priority in ("low", "mid", "high"):
        bodies = [b"slow" if i % 10 == slow else b"quick" for i in range(80)]
        await r.producer.publish_many("orders", bodies, priority=priority)
    seen = Seen(pause)
    async with r.consuming(seen):
        await until(lambda: len(seen) == 240, timeout_s=60)
    assert [d.priority for d in seen.deliveries] == [0] * 80 + [1] * 80 + [2] * 80


async def test_a_retry_goes_before_lower_priorities_when_it_is_due(r: Rig) -> None:
    async def fail_high_once(m: Message) -> None:
        if m.priority == 0 and m.attempt == 1:
            raise ValueError("once")

    await r.topic("orders", 10, backoff_s=(2.0,), jitter=0.0)
    await r.producer.publish_many("orders", [b"low"] * 60, priority="low")
    await r.producer.publish("orders", b"high", priority="high")
    seen = Seen(fail_high_once)
    async with r.consuming(seen):
        await until(lambda: len(seen) == 62)
    assert [d.attempt for d in seen.deliveries if d.priority == 0] == [1, 2]
    assert inversions(seen.deliveries) == []


@pytest.mark.parametrize(("qps", "group_qps"), [(7.0, 50.0), (2.5, 50.0), (0.5, 50.0), (103.0, 25.0)])
async def test_a_topic_starts_in_an_aligned_second_what_its_quota_allows_and_no_group_is_left_behind(
    r: Rig, qps: float, group_qps: float
) -> None:
    from emq.topics.model import MICRO, quotas

    topic = await r.topic("orders", qps, group_qps=group_qps)
    await r.producer.publish_many("orders", [b"x"] * int(qps * 25))
    seen = Seen()
    async with r.consuming(seen):
        await asyncio.sleep(20)
    counts = starts_per_second(seen.deliveries)
    full = range(min(s for _, s in counts) + 1, max(s for _, s in counts))
    for second in full:
        assert counts["orders", second] == topic.division.total.allowance(second)
    of_groups = Counter(d.group for d in seen.deliveries if d.started_us // MICRO in full)
    for group, quota in enumerate(quotas(topic)):
        assert abs(of_groups[group] - quota * len(full)) <= len(full)


async def test_pause_stops_starting_and_resume_goes_on_with_nothing_lost(r: Rig) -> None:
    await r.topic("orders", 20)
    sent = await r.producer.publish_many("orders", [b"x"] * 100)
    seen = Seen()
    async with r.consuming(seen):
        await until(lambda: len(seen) >= 30)
        await r.admin.update("orders", state=State.PAUSED)
        await asyncio.sleep(0.2)
        paused_at = len(seen)
        sent.append(await r.producer.publish("orders", b"while paused"))
        await asyncio.sleep(5)
        assert len(seen) == paused_at
        await r.admin.update("orders", state=State.ACTIVE)
        await until(lambda: len(seen) == 101)
    assert sorted(seen.ids) == sorted(sent)


async def test_due_retries_of_a_paused_topic_wait_without_being_asked_for(r: Rig) -> None:
    async def fail_once(m: Message) -> None:
        if m.attempt == 1:
            raise ValueError("once")

    await r.topic("orders", 50, backoff_s=(2.0,))
    await r.producer.publish_many("orders", [b"x"] * 10)
    seen = Seen(fail_once)
    store = FaultyStore(MemoryStore(r.world))
    async with r.consuming(seen, store=store):
        await until(lambda: len(seen) == 10)
        await asyncio.sleep(0.5)
        await r.admin.update("orders", state=State.PAUSED)
        await asyncio.sleep(5)
        claims = store.lanes.calls["claim"]
        await asyncio.sleep(100)
        assert len(seen) == 10
        assert store.lanes.calls["claim"] == claims
        await r.admin.update("orders", state=State.ACTIVE)
        await until(lambda: len(seen) == 20, 5)


async def test_idle_queues_cost_one_look_each_in_two_minutes(r: Rig) -> None:
    for i in range(40):
        await r.topic(f"tenant.{i}", 100)
    store = FaultyStore(MemoryStore(r.world))
    async with r.consuming(Seen(), store=store, catalog_poll_s=0.5):
        await asyncio.sleep(10)
        reads, claims = store.log.noted("read"), store.lanes.noted("claim")
        before, queries = dict(store.lanes.calls), r.db.calls
        await asyncio.sleep(240)
        # The lag loop counts what lies in the lanes once a minute, all of them in one call.
        assert store.lanes.calls["inspect"] - before["inspect"] <= 4
        apart = {"claim": 0, "inspect": 0}
        assert {**store.lanes.calls, **apart} == {**before, **apart}
        assert sum(map(len, claims)) <= 2 * 40 * 2 + 10
        assert sum(map(len, reads)) <= 2 * 40 * 2 * 3 + 10
        assert r.db.calls - queries <= 240 * 2 + 60  # the catalog's version twice a second, a sign of life


async def test_a_message_of_a_lane_whose_wake_up_was_lost_starts_within_two_minutes(r: Rig) -> None:
    """Lost in a way that the store cannot tell: as when a replica takes over that had not heard of the arming."""
    await r.topic("orders", 50, pacing="window")
    await r.topic("ranked", 50, kind=Kind.PRIORITY)
    seen, store = Seen(), FaultyStore(MemoryStore(r.world))
    async with r.consuming(seen, store=store):
        await asyncio.sleep(5)
        store.real._wakeups.wake = lambda name: None  # type: ignore[method-assign]
        await r.producer.publish("orders", b"late", delay_ms=1_000)
        await r.producer.publish("ranked", b"late", delay_ms=1_000, priority=20)
        await asyncio.sleep(5)
        assert len(seen) == 0, "nothing told the host"
        await until(lambda: len(seen) == 2, SWEEP_S + 2)


async def test_a_loop_that_breaks_is_counted_and_starts_again_while_the_others_go_on(r: Rig) -> None:
    runs = []

    async def broken() -> None:
        runs.append(asyncio.get_running_loop().time())
        await asyncio.sleep(1.5)
        raise ZeroDivisionError("a bug")

    await r.topic("orders", 50)
    await r.producer.publish_many("orders", [b"x"] * 20)
    seen = Seen()
    host = r.host(seen, checkpoint_s=1_000.0)
    host.waker.sweep = broken  # type: ignore[method-assign]
    async with running(host):
        await until(lambda: len(seen) == 20)
        await until(lambda: len(runs) == 3, 20)
        assert host.statistics().totals.broken == host.guard.broken["sweep"] == 2
        host.guard.broken.clear()
    assert [round(b - a, 3) for a, b in itertools.pairwise(runs)] == [2.5, 2.5]
    assert await r.lag("orders") == 0


async def test_a_draining_topic_is_consumed_to_the_end(r: Rig) -> None:
    await r.topic("orders", 20)
    await r.producer.publish_many("orders", [b"x"] * 50)
    await r.admin.update("orders", state=State.DRAINING)
    seen = Seen()
    async with r.consuming(seen):
        await until(lambda: len(seen) == 50)


async def test_a_long_retention_does_not_hold_up_a_short_one(r: Rig) -> None:
    await r.topic("long", 50, priorities=("p",), retention_s=3_000)
    await r.topic("short", 50, priorities=("p",), retention_s=5)
    seen = Seen()
    async with r.consuming(seen):
        await r.producer.publish("long", b"x")
        await asyncio.sleep(5)
        await r.producer.publish("short", b"x")
        await asyncio.sleep(60)
        [short] = await r.store.log.bounds(["short/0/p"])
        assert short.head == 2


RANGE: dict[str, dict[str, int]] = {"log": {}, "range_merge": {"time_range_ms": 10}}


@pytest.mark.parametrize("kinds", [("range_merge", "log"), ("log", "range_merge")])
async def test_a_topic_created_again_as_one_of_another_kind_is_consumed(r: Rig, kinds: tuple[str, str]) -> None:
    await r.topic("t", 20, kind=kinds[0], **RANGE[kinds[0]])
    seen = Seen()
    async with r.consuming(seen, catalog_poll_s=1.0):
        await r.producer.publish("t", "first life")
        await until(lambda: len(seen) == 1)
        await asyncio.sleep(2)
        await r.admin.delete("t")
        await r.topic("t", 20, kind=kinds[1], **RANGE[kinds[1]])
        await r.producer._router.refresh()
        await r.producer.publish("t", "second life")
        await until(lambda: len(seen) == 2, 10)


async def test_weights_share_a_backlog_in_proportion(r: Rig) -> None:
    await r.topic("orders", 20, priority_policy="weighted", weights=(5.0, 3.0, 2.0))
    for priority in ("high", "mid", "low"):
        await r.producer.publish_many("orders", [priority] * 100, priority=priority)
    seen = Seen()
    async with r.consuming(seen):
        await until(lambda: len(seen) >= 100)
    first = [d.priority for d in seen.deliveries[:100]]
    assert [first.count(p) for p in range(3)] == [50, 30, 20]
