"""Stops, crashes, moves between hosts, and groups that come and go, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from emq.storage.lane_store import LaneState
from emq.storage.message import Message
from emq_stores.memory import MemoryStore
from support.doubles import FaultyStore
from support.local_cluster import LocalCluster
from support.rig import Rig, Seen, rig, running, starts_per_second
from support.virtual import LoopClock, virtual
from support.waiting import until

pytestmark = virtual


async def slow(m: Message) -> None:
    await asyncio.sleep(0.03)


async def test_clean_stops_and_restarts_deliver_nothing_twice_and_lose_nothing(r: Rig) -> None:
    async def flaky(m: Message) -> None:
        await asyncio.sleep(0.03)
        if m.attempt == 1 and hash(m.id) % 5 == 0:
            raise ValueError("once")

    await r.topic("orders", 100, group_qps=25, backoff_s=(0.4,))
    sent = await r.producer.publish_many("orders", [b"x"] * 400)
    seen = Seen(flaky)
    for stop_after_s in (1.9, 0.3, 2.05, 1.4):
        async with r.consuming(seen):
            await asyncio.sleep(stop_after_s)
        assert seen.running == 0
    async with r.consuming(seen):
        await until(lambda: len({d.id for d in seen.deliveries}) == 400)
        await asyncio.sleep(2)
    attempts = Counter((d.id, d.attempt) for d in seen.deliveries)
    assert set(attempts.values()) == {1}
    assert {d.id for d in seen.deliveries} == set(sent)
    assert await r.lag("orders") == 0
    assert max(starts_per_second(seen.deliveries).values()) == 100


async def test_a_stop_waits_for_handlers_and_starts_nothing_more(r: Rig) -> None:
    await r.topic("orders", 50)
    await r.producer.publish_many("orders", [b"x"] * 500)
    seen = Seen(lambda m: asyncio.sleep(1.5))
    host = r.host(seen)
    async with running(host) as run:
        await until(lambda: len(seen) >= 50)
        host.stop()
        started, at = len(seen), r.clock.now()
        await run
        assert len(seen) == started
        assert seen.running == 0
        assert r.clock.now() - at < 1.6
    assert await r.lag("orders") == 500 - started


async def test_a_stop_gives_up_on_a_hanging_handler_whose_message_is_delivered_again(r: Rig) -> None:
    async def hang_at_first(m: Message) -> None:
        if len(seen) == 1:
            await asyncio.sleep(10_000)

    await r.topic("orders", 50)
    await r.producer.publish("orders", b"x")
    seen = Seen(hang_at_first)
    async with r.consuming(seen, drain_s=2.0):
        await until(lambda: len(seen) == 1)
        stopping_at = r.clock.now()
    assert 2 <= r.clock.now() - stopping_at < 2.5
    assert seen.running == 0
    async with r.consuming(seen):
        await until(lambda: len(seen) == 2)
    assert seen.deliveries[0].id == seen.deliveries[1].id


class LeapingClock(LoopClock):
    """One that leaves out seconds when it is told to, as a host's does to follow its environment's time."""

    def leap(self, by_s: float) -> None:
        self._base += by_s


@pytest.mark.parametrize("how", ["stop", "abandon"])
async def test_handlers_are_awaited_also_while_the_hosts_clock_leaps(how: str) -> None:
    clock = LeapingClock()
    async with rig(clock) as r:
        await r.topic("orders", 50)
        await r.producer.publish("orders", b"x")
        seen = Seen(lambda m: asyncio.sleep(2.0))
        host = r.host(seen, drain_s=5.0)
        async with running(host) as run:
            await until(lambda: seen.running == 1)
            group = host.ownership.groups["orders/0"]
            ending = asyncio.create_task(host.letting_go.abandon(group, 5.0)) if how == "abandon" else run
            if how == "stop":
                host.stop()
            await asyncio.sleep(0.5)
            clock.leap(3600.0)
            await asyncio.sleep(0.5)
            assert seen.running == 1
            assert host.ownership.groups.get("orders/0") is group
            await asyncio.wait([ending])
            assert seen.running == 0
        assert len(seen) == 1


@pytest.mark.parametrize("clean", [True, False])
async def test_retries_that_a_host_had_claimed_are_delivered_by_the_next(r: Rig, clean: bool) -> None:
    async def fails_then_hangs(m: Message) -> None:
        if m.attempt == 1:
            raise ValueError("once")
        if first_life:
            await asyncio.sleep(10_000)

    await r.topic("orders", 4, backoff_s=(0.5,), max_in_flight=3)
    await r.producer.publish_many("orders", [b"x"] * 8)
    seen, first_life = Seen(fails_then_hangs), True
    host = r.host(seen, drain_s=0.5)
    task = asyncio.create_task(host.run())
    await asyncio.sleep(6)
    [slot] = await r.store.lanes.inspect(["orders/0"])
    assert slot.prepared == 8  # three run, the others are buffered
    if clean:
        host.stop()
    else:
        task.cancel()
    await asyncio.wait([task])
    first_life = False
    async with r.consuming(seen):
        await until(lambda: len([d for d in seen.deliveries if d.attempt == 2]) == 8 + 3)
        await asyncio.sleep(3)
    assert len(seen) == 8 + 3 + 8
    [slot] = await r.store.lanes.inspect(["orders/0"])
    assert slot == LaneState(0, 0, 0, None)


async def test_what_finished_out_of_order_is_not_repeated_after_a_crash(r: Rig) -> None:
    async def first_hangs(m: Message) -> None:
        if m.payload == b"0" and len(seen) == 1:
            await asyncio.sleep(10_000)

    await r.topic("orders", 50, priorities=("p",))
    await r.producer.publish_many("orders", [b"%d" % i for i in range(40)])
    seen = Seen(first_hangs)
    task = asyncio.create_task(r.host(seen).run())
    await until(lambda: len(seen) == 40)
    await asyncio.sleep(1)
    assert await r.checkpointed("orders/0/p") == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with r.consuming(seen):
        await until(lambda: len(seen) == 41)
        await asyncio.sleep(1)
    assert len(seen) == 41
    assert seen.payloads[-1] == b"0"
    assert await r.checkpointed("orders/0/p") == 41


async def test_a_second_owner_fences_off_the_first_which_settles_and_saves_nothing_more(r: Rig) -> None:
    await r.topic("orders", 50, priorities=("p",), max_attempts=1)
    sent = await r.producer.publish_many("orders", [b"%d" % i for i in range(30)])

    async def stale_fails(m: Message) -> None:
        await asyncio.sleep(1.0)
        raise ValueError("on the stale host")

    stale_seen, fresh_seen = Seen(stale_fails), Seen()
    stale = r.host(stale_seen, "stale", checkpoint_s=0.1, drain_s=0.1)
    async with running(stale):
        await until(lambda: len(stale_seen) == 30)
        # A cluster that knows nothing of the first: both believe to own the group, under two epochs.
        other = LocalCluster(r.next_epoch).member("fresh")
        gate = asyncio.Event()
        fresh_store = FaultyStore(MemoryStore(r.world))
        fresh = r.host(fresh_seen, "fresh", membership=other, store=fresh_store, checkpoint_s=1_000.0)
        fresh_seen.then = lambda m: gate.wait()
        async with running(fresh):
            await until(lambda: len(fresh_seen) == 30)
            await asyncio.sleep(3)  # the stale host's handlers have failed, and it has tried to say so
            assert stale.work.settler.refused == 30
            assert stale.ownership.losses.groups == 1
            assert not stale.ownership.groups
            assert await r.checkpointed("orders/0/p") <= 1
            [slot] = await r.store.lanes.inspect(["orders/0"])
            assert slot.dead == 0
            gate.set()
            await until(lambda: fresh.work.endings.succeeded == 30)
    assert sorted(fresh_seen.ids) == sorted(sent)
    assert await r.checkpointed("orders/0/p") == 31


async def test_a_lost_group_in_the_queue_for_room_does_not_hold_up_its_sister(r: Rig) -> None:
    gate = asyncio.Event()

    async def wait(m: Message) -> None:
        if len(seen) == 1:
            await gate.wait()

    await r.topic("orders", 30, group_qps=10, max_in_flight=1, priorities=("p",))
    seen = Seen(wait)
    async with r.consuming(seen) as host:
        await asyncio.sleep(2)
        await r.producer.publish_many("orders", [b"x"] * 3)  # one in each group: one runs, two wait for room
        await until(lambda: len(seen) == 1)
        await asyncio.sleep(0.1)
        [owner] = host.ownership.owned.values()
        assert len(owner.waiting) == 2
        host.ownership.lost(owner.waiting[0])
        gate.set()
        await until(lambda: len(seen) == 2, 3)


async def test_what_fails_in_a_released_group_while_the_next_owner_raises_its_fences_is_delivered_again(r: Rig) -> None:
    released, ends = asyncio.Event(), asyncio.Event()

    async def fails_late(m: Message) -> None:
        if len(seen) == 1:
            await ends.wait()
            raise ValueError("after its group was let go of")

    async def between_the_fences() -> None:
        released.set()
        ends.set()
        await asyncio.sleep(1.0)  # the former owner settles and saves

    await r.topic("orders", 10, group_qps=10)
    await r.producer.publish("orders", b"x")
    seen = Seen(fails_late)
    former = r.host(seen, "former")
    async with running(former):
        await until(lambda: len(seen) == 1)
        await former.letting_go.release(["orders/0"], 0.1)
        store = FaultyStore(MemoryStore(r.world))
        store.lanes.after["claim"] = between_the_fences
        next_owner = r.host(seen, "next", membership=LocalCluster(r.next_epoch).member("next"), store=store)
        async with running(next_owner):
            await until(lambda: len(seen) == 2)
        assert released.is_set()
        assert former.work.settler.refused == 1
    assert [d.host for d in seen.deliveries] == ["former", "next"]


async def test_what_is_retained_is_dropped_in_time_though_hosts_restart_more_often_than_that(r: Rig) -> None:
    await r.topic("orders", 50, group_qps=50, priorities=("p",), retention_s=60.0)
    seen = Seen()
    for _ in range(14):
        async with r.consuming(seen):
            await r.producer.publish_many("orders", [b"x"] * 10)
            await asyncio.sleep(10)
    [bounds] = await r.store.log.bounds(["orders/0/p"])
    assert len(seen) == 140
    assert 60 <= bounds.tail - bounds.head <= 100, bounds


async def test_a_crash_repeats_at_most_what_was_unfinished_or_not_checkpointed(r: Rig) -> None:
    await r.topic("orders", 50)
    sent = await r.producer.publish_many("orders", [b"x"] * 200)
    seen = Seen(slow)
    task = asyncio.create_task(r.host(seen, checkpoint_s=1.0).run())
    await asyncio.sleep(3.85)
    r.db.down = True  # the dying host saves nothing
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    r.db.down = False
    async with r.consuming(seen):
        await until(lambda: set(seen.ids) == set(sent))
        await asyncio.sleep(1)
    repeated = sum(n - 1 for n in Counter(seen.ids).values())
    assert 0 < repeated <= 50 + 50  # a second of work, and what was in flight
