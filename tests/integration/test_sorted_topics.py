"""Sorted topics on whole hosts, in virtual time: kinds, retries, order, quotas, and what moves with a group."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter

import pytest

from emq import Retry
from emq.runtime import errors
from emq.storage.message import Message
from emq.storage.reasons import parted
from emq.storage.slot_store import Keep, Slot, SlotAdd, SlotClaim, SlotKind
from emq.topics.model import State
from emq_stores.memory import MemoryStore
from support.doubles import FaultyStore, has_entries
from support.rig import Rig, Seen, bound, rig, running, starts_per_second
from support.virtual import virtual
from support.waiting import until

pytestmark = virtual


async def test_range_merge_delivers_once_what_was_published_often_within_the_range(r: Rig) -> None:
    await r.topic("t", kind="range_merge", time_range_ms=2000)
    seen = Seen()
    async with r.consuming(seen):
        begin = r.clock.now()
        for _ in range(10):
            await r.producer.publish("t", "sku-1")
            await asyncio.sleep(0.1)
        await until(lambda: len(seen) == 1)
        assert 2.0 <= r.clock.now() - begin < 2.1  # the first one's range counts
        await asyncio.sleep(5)
        assert seen.payloads == [b"sku-1"]
        await r.producer.publish("t", "sku-1")  # a new one, now that the old one is gone
        await until(lambda: len(seen) == 2)
    assert await r.slots() == (0, 0, 0)


async def test_by_priority_the_most_urgent_goes_first_also_if_it_comes_last(r: Rig) -> None:
    await r.topic("t", 10, kind="priority", slots=1)
    seen = Seen()
    await r.producer.publish_many("t", [b"%d" % i for i in range(17, 97)], scores=range(17, 97))
    async with r.consuming(seen):
        await until(lambda: len(seen) >= 15)
        await r.producer.publish("t", "urgent", priority=1000)
        at = len(seen)
        await until(lambda: len(seen) == 81)
    order = [1000 if p == b"urgent" else int(p) for p in seen.payloads]
    assert order[: at - 1] == list(range(96, 96 - at + 1, -1))
    assert 1000 in order[at - 1 : at + 2]
    assert sorted(order, reverse=True) == [1000, *(x for x in order if x != 1000)]
    assert max(starts_per_second(seen.deliveries).values()) <= 10


async def test_fixed_times_are_never_early_and_precise_to_what_was_asked(r: Rig) -> None:
    await r.topic("seconds", kind="fixed_time")
    await r.topic("millis", kind="fixed_time", precision="millisecond")
    seen = Seen()
    async with r.consuming(seen):
        now = r.clock.now()
        due = {f"{name}{i}": now + 1 + i * 0.37 for name in ("seconds", "millis") for i in range(20)}
        for payload, at in due.items():
            await r.producer.publish(payload.rstrip("0123456789"), payload, at=at)
        await until(lambda: len(seen) == 40)
    late = {d.topic: [] for d in seen.deliveries}
    for d in seen.deliveries:
        late[d.topic].append(d.started_us / 1e6 - due[d.payload.decode()])
    assert min(late["seconds"] + late["millis"]) >= 0
    assert max(late["millis"]) < 0.01
    assert max(late["seconds"]) < 1.01
    assert max(late["seconds"]) > 0.3  # it is by the second, as published


async def test_a_failing_message_is_retried_sixteen_times_behind_the_others_and_then_dead_once(r: Rig) -> None:
    async def fails(m: Message) -> None:
        if m.payload == b"bad":
            raise ValueError(f"attempt {m.attempt}")

    await r.topic("t", 100, kind="priority", slots=1)
    await r.producer.publish("t", "bad", priority=99)
    await r.producer.publish_many("t", ["a", "b", "c"], scores=[20, 19, 18])
    seen = Seen(fails)
    async with r.consuming(seen):
        await until(lambda: r.store.real is not None and len(seen) == 20)
        await asyncio.sleep(3)
    assert [d.attempt for d in seen.deliveries if d.payload == b"bad"] == list(range(1, 18))
    assert seen.payloads[:4] == [b"bad", b"a", b"b", b"c"]
    assert await r.slots() == (0, 0, 1)
    [dead] = await r.store.sorted.dead(Slot("t/0", SlotKind.PRIORITY))
    assert (dead.member, parted(dead.reason).text) == (b"bad", "ValueError: attempt 17")
    assert [parted(reason).text for _, reason in dead.history] == [f"ValueError: attempt {i}" for i in range(1, 17)]


async def test_backoff_keeps_the_original_priority_and_counts_attempts(r: Rig) -> None:
    async def fails_twice(m: Message) -> None:
        if m.payload == b"x" and m.attempt < 3:
            raise ValueError("no")

    await r.topic("t", 20, kind="priority", slots=1, retry="backoff", backoff_s=(1.0, 1.0), jitter=0.0)
    seen = Seen(fails_twice)
    async with r.consuming(seen):
        await r.producer.publish("t", "x", priority=500)
        await until(lambda: len(seen) == 1)
        await r.producer.publish_many("t", [b"%d" % i for i in range(100)], scores=[17 + i for i in range(100)])
        await until(lambda: len(seen) == 103)
    of_x = [d for d in seen.deliveries if d.payload == b"x"]
    assert [d.attempt for d in of_x] == [1, 2, 3]
    for before, after in itertools.pairwise(of_x):
        assert 1.0 <= (after.started_us - before.started_us) / 1e6 < 2.1  # the wait, and at most a second's quota
    assert await r.slots() == (0, 0, 0)
    assert (await r.store.lanes.inspect(["t/0"]))[0].waiting == 0


@pytest.mark.parametrize("ordering", ["slot", "key", "none"])
async def test_ordering_says_what_may_run_at_the_same_time(r: Rig, ordering: str) -> None:
    await r.topic("t", 100, kind="priority", slots=1, ordering=ordering, merge="key")
    running_keys: Counter[str | None] = Counter()
    most: Counter[str] = Counter()

    async def slow(m: Message) -> None:
        name = m.payload.decode()[0]
        running_keys[name] += 1
        most[name] = max(most[name], running_keys[name])
        most["all"] = max(most["all"], sum(running_keys.values()))
        await asyncio.sleep(0.05)
        running_keys[name] -= 1

    for i in range(10):
        for key in "ab":
            await r.producer.publish("t", f"{key}{i}", key=key, priority=100 - i)
    seen = Seen(slow)
    async with r.consuming(seen):
        await until(lambda: len(seen) == 20)
        await asyncio.sleep(1)
    of_a = [p for p in seen.payloads if p.startswith(b"a")]
    if ordering == "slot":
        assert most["all"] == 1
    elif ordering == "key":
        assert (most["a"], most["b"], most["all"]) == (1, 1, 2)
    else:
        assert most["all"] > 2
    if ordering != "none":
        assert of_a == [b"a%d" % i for i in range(10)]
    assert len(seen) == 20


async def test_a_clean_stop_gives_back_what_was_claimed_with_its_priority_and_its_retries(r: Rig) -> None:
    await r.topic("t", 4, kind="priority", slots=1)
    await r.producer.publish_many("t", [b"%d" % i for i in range(17, 57)], scores=range(17, 57))
    seen = Seen()
    for _ in range(4):
        async with r.consuming(seen):
            await asyncio.sleep(3.1)
        waiting, prepared, dead = await r.slots()
        assert (prepared, dead) == (0, 0)
        assert waiting == 40 - len(seen)
    assert [int(p) for p in seen.payloads] == list(range(56, 56 - len(seen), -1))
    assert {d.attempt for d in seen.deliveries} == {1}


async def test_a_claim_whose_answer_was_lost_is_found_again(r: Rig) -> None:
    await r.topic("t", 50, kind="priority", slots=1)
    store = FaultyStore(MemoryStore(r.world))
    seen = Seen()
    async with r.consuming(seen, store=store):
        await asyncio.sleep(1)
        lost = store.sorted.lose("claim", when=has_entries, times=2)
        await r.producer.publish_many("t", ["a", "b", "c"], priority=30)
        await until(lambda: len(seen) == 3)
        await asyncio.sleep(2)
    assert lost.happened == 2
    assert sorted(seen.payloads) == [b"a", b"b", b"c"]
    assert await r.slots() == (0, 0, 0)


async def test_aging_bounds_the_wait_below_a_stream_of_higher_priorities() -> None:
    async def worst_wait(**options: object) -> float:
        async with rig() as r:
            await r.topic("t", 10, kind="priority", slots=1, aging_s=1.0, **options)
            seen = Seen()
            async with r.consuming(seen):
                await r.producer.publish_many("t", [b"first%d" % i for i in range(30)], priority=25)
                await asyncio.sleep(1)
                begin = r.clock.now()
                await r.producer.publish("t", "low", priority=20)
                for i in range(400):  # twice what the quota takes
                    await r.producer.publish("t", f"high{i}", priority=25)
                    await asyncio.sleep(0.05)
                    if b"low" in seen.payloads:
                        return r.clock.now() - begin
                return r.clock.now() - begin

    assert await worst_wait(priority_policy="aging") < 14
    assert await worst_wait() >= 19


@pytest.mark.parametrize("paused", [False, True])
async def test_what_has_expired_behind_a_backlog_is_dead_within_a_second_or_so(r: Rig, paused: bool) -> None:
    await r.topic("t", 2, kind="priority", slots=1, merge="key", ordering="none", ttl_s=3600)
    await r.producer.publish_many("t", [b"%d" % i for i in range(40)], priority=50)
    if paused:
        await r.admin.update("t", state=State.PAUSED)
    seen = Seen()
    async with r.consuming(seen):
        begin = r.clock.now()
        await r.producer.publish("t", "brief", priority=17, ttl_s=1.0)
        slot = Slot("t/0", SlotKind.PRIORITY, apart=True)
        await asyncio.sleep(2.5)
        [dead] = await r.store.sorted.dead(slot)
        assert (dead.body, dead.reason) == (b"brief", "expired")
        assert 1.0 <= dead.dead_ms / 1000 - begin <= 2.1
        assert (await r.slots())[0] == 40 - len(seen)
        await r.producer.publish_many("t", [b"%d" % i for i in range(20, 40)], priority=60)  # they merge
        if paused:
            await r.admin.update("t", state=State.ACTIVE)
        await until(lambda: len(seen) >= 40, 60)
        await asyncio.sleep(3)
    assert Counter(seen.payloads) == {b"%d" % i: 1 for i in range(40)}


async def test_a_slot_is_claimed_from_when_all_that_was_buffered_of_it_has_expired(r: Rig) -> None:
    await r.topic("t", 1, kind="priority", slots=1, merge="key", ordering="none")
    for i in range(60):
        await r.producer.publish("t", f"brief{i}", priority=500, ttl_s=3.0)
    await r.producer.publish("t", "live", priority=100)
    seen = Seen()
    async with r.consuming(seen):
        await until(lambda: b"live" in seen.payloads, 10)
        await asyncio.sleep(1)
    assert (await r.slots())[2] + len(seen) == 61


async def test_a_batch_handler_gets_one_message_of_a_slot_at_a_time(r: Rig) -> None:
    sizes: list[int] = []

    async def handle(batch: list[Message]) -> None:
        sizes.append(len(batch))

    await r.topic("t", 100, kind="range_merge", slots=1, time_range_ms=100)
    for i in range(10):
        await r.producer.publish("t", f"{i}")
    async with r.consuming(bound({"*": handle}, batch_size=5)):
        await until(lambda: sum(sizes) == 10)
    assert max(sizes) == 1


@pytest.mark.parametrize("ordering", ["slot", "none"])
@pytest.mark.parametrize("pacing", ["window", "smooth"])
async def test_what_is_sent_again_while_a_backlog_waits_runs_once(r: Rig, ordering: str, pacing: str) -> None:
    contents = [f"sku-{i}" for i in range(16)]
    await r.topic("t", 2, kind="priority", slots=1, ordering=ordering, pacing=pacing)
    seen = Seen()
    await r.producer.publish_many("t", contents, priority=50)
    async with r.consuming(seen):
        await asyncio.sleep(0.13)  # not when the host starts one, which is a race that either may win
        for _ in range(40):
            begun = {d.payload.decode() for d in seen.deliveries}
            if again := [c for c in contents if c not in begun]:
                await r.producer.publish_many("t", again, priority=50)
            await asyncio.sleep(0.25)
    assert Counter(seen.payloads) == {c.encode(): 1 for c in contents}


async def test_a_newer_priority_counts_for_all_that_has_not_started(r: Rig) -> None:
    await r.topic("t", 1, kind="priority", slots=1)
    await r.producer.publish_many("t", [b"%d" % i for i in range(10)], scores=range(100, 90, -1))
    seen = Seen()
    async with r.consuming(seen):
        await until(lambda: len(seen) == 2)
        for payload in ("9", "8", "7"):
            await r.producer.publish("t", payload, priority=200 + int(payload))
        await r.producer.publish("t", "2", priority=17)
        await until(lambda: len(seen) == 10)
    assert seen.payloads == [b"%d" % i for i in (0, 1, 9, 8, 7, 3, 4, 5, 6, 2)]


@pytest.mark.parametrize("ordering", ["slot", "key", "none"])
async def test_no_more_is_claimed_than_a_slow_handler_can_start(r: Rig, ordering: str) -> None:
    """Neither what runs one by one nor what finds no room in flight waits on the host, where nothing merges into it."""

    async def slow(_: Message) -> None:
        await asyncio.sleep(3)

    await r.topic("t", 100, kind="range_merge", slots=2, ordering=ordering, max_in_flight=4, time_range_ms=1)
    await r.producer.publish_many("t", [b"%d" % i for i in range(20)])
    seen = Seen(slow)
    async with r.consuming(seen):
        await until(lambda: len(seen) >= 2)
        for _ in range(20):
            await asyncio.sleep(0.2)
            begun = set(seen.payloads)
            if again := [b"%d" % i for i in range(20) if b"%d" % i not in begun]:
                await r.producer.publish_many("t", again)
            waiting, prepared, _ = await r.slots()
            assert prepared <= (2 if ordering == "slot" else 4)
            assert waiting == len(again)
        await until(lambda: len(seen) == 20, 60)
    assert Counter(seen.payloads) == {b"%d" % i: 1 for i in range(20)}


async def test_what_a_stranger_adds_starts_within_five_seconds_also_with_4096_slots(r: Rig) -> None:
    """A plain ZADD wakes nobody. The store's arming is left alone here, as by a program that does not know it."""
    topic = await r.topic("t", 10_000, kind="priority", slots=4096, group_qps=100)
    seen = Seen()
    async with r.consuming(seen):
        await asyncio.sleep(7.3)
        begin, stranger = r.clock.now(), MemoryStore(r.world)
        for index in range(0, 4096, 512):
            slot = r.world.sorted[topic.slot(index).name]
            alarm, slot._alarm = slot._alarm, None
            await stranger.sorted.add([SlotAdd(topic.slot(index), b"%d" % index, 50, Keep.LAST)])
            slot._alarm = alarm
        await until(lambda: len(seen) == 8, 60)
        assert r.clock.now() - begin <= 5.0


async def test_a_schedule_of_a_merging_topic_waits_for_the_range_and_merges(r: Rig) -> None:
    await r.topic("t", 100, kind="range_merge", slots=4, time_range_ms=5000)
    seen = Seen()
    begin = r.clock.now()
    async with r.consuming(seen):
        await r.producer.schedule("t", "sku", every_s=1.0, repeat=3)
        await asyncio.sleep(2.5)
        await r.producer.publish("t", "sku")
        assert not seen.deliveries
        await asyncio.sleep(10)
    [delivery] = seen.deliveries  # five publishes within one range
    assert 5.0 <= delivery.started_us / 1e6 - begin < 6.3
    await r.topic("endless", kind="range_merge")
    with pytest.raises(errors.InvalidMessage, match="time_range_ms"):
        await r.producer.schedule("endless", "sku", every_s=1.0)


@pytest.mark.parametrize("kind", ["range_merge", "fixed_time"])
async def test_what_waits_for_a_time_that_its_handler_asked_for_merges_with_what_is_sent_again(
    r: Rig, kind: str
) -> None:
    async def busy(m: Message) -> None:
        await asyncio.sleep(0.1)
        if m.attempt <= 3:
            raise Retry("busy", after_s=5.0)

    await r.topic("t", 50, kind=kind, precision="millisecond" if kind == "fixed_time" else "second")
    seen = Seen(busy)

    async def send() -> None:
        await r.producer.publish("t", "x", at=r.clock.now() + 0.5)

    async with r.consuming(seen):
        await send()
        for _ in range(3):
            await until(lambda: seen.running == 0 and len(seen) > 0)
            before = len(seen)
            await asyncio.sleep(1)
            if kind == "range_merge":  # the first time counts; of a fixed time the last one would
                await send()
            await until(lambda before=before: len(seen) > before)  # type: ignore[misc]
        await until(lambda: seen.running == 0)
        await asyncio.sleep(20)
    assert [d.attempt for d in seen.deliveries] == [1, 2, 3, 4]
    for first, second in itertools.pairwise(seen.deliveries):
        assert 4.9 <= (second.started_us - first.started_us) / 1e6 < 6.5
    assert await r.slots() == (0, 0, 0)
    assert (await r.store.lanes.inspect(["t/0"]))[0].waiting == 0


async def test_a_handler_that_asks_for_a_time_again_and_again_uses_up_its_attempts(r: Rig) -> None:
    async def busy(m: Message) -> None:
        raise Retry("busy", after_s=2.0)

    await r.topic("t", 50, kind="range_merge")
    seen = Seen(busy)
    async with r.consuming(seen):
        await r.producer.publish("t", "x", time_range_ms=1)
        await asyncio.sleep(60)
    assert [d.attempt for d in seen.deliveries] == list(range(1, 18))
    assert await r.slots() == (0, 0, 1)


async def test_a_second_owner_takes_over_and_the_first_settles_nothing_any_more(r: Rig) -> None:
    await r.topic("t", 50, kind="fixed_time", slots=1, precision="millisecond")
    seen = Seen(lambda m: asyncio.sleep(0.5))
    host = r.host(seen)
    async with running(host):
        await r.producer.publish("t", "x", delay_ms=100)
        await until(lambda: len(seen) == 1)
        slot = Slot("t/0", SlotKind.FIXED_TIME)
        now_ms = int(r.clock.now() * 1000)
        await r.store.sorted.claim([SlotClaim(slot, 10, 1 << 40, now_ms)], now_ms)  # the new owner
        await asyncio.sleep(3)
        assert host.work.settler.refused == 1
        assert host.ownership.losses.groups == 1
        assert await r.slots() == (0, 1, 0)  # still to be recovered by its new owner
