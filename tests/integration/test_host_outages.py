"""Store and database out of reach for a while, in virtual time: nothing is lost, and work goes on by itself."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from emq.runtime import errors
from emq.storage.log_store import Trim
from emq.storage.message import Message
from emq_stores.memory import MemoryStore
from support.doubles import FaultyStore
from support.rig import Rig, Seen, running
from support.virtual import virtual
from support.waiting import until

pytestmark = virtual


async def fail_once(m: Message) -> None:
    await asyncio.sleep(0.02)
    if m.attempt == 1:
        raise ValueError("once")


@pytest.mark.parametrize("fault", [None, errors.StoreFull("no room"), errors.OutcomeUnknown("the reply was lost")])
async def test_a_store_outage_is_survived_without_loss_or_repetition(r: Rig, fault: errors.EMQError | None) -> None:
    await r.topic("orders", 50, backoff_s=(0.5,))
    sent = await r.producer.publish_many("orders", [b"x"] * 200)
    seen = Seen(fail_once)
    store = FaultyStore(MemoryStore(r.world))
    host = r.host(seen, store=store)
    async with running(host):
        await until(lambda: len(seen) > 60)
        store.fail(fault)
        await asyncio.sleep(12)
        assert host.work.puller.unreachable is not None
        tries = sum(store.log.calls.values()) + sum(store.lanes.calls.values())
        assert tries < 200  # it backs off, and does not spin
        store.heal()
        await until(lambda: len(seen) == 400, 60)
        await until(lambda: host.work.puller.unreachable is None, 60)  # a queue that the sweep met rests longer
        await asyncio.sleep(1)
    assert Counter(d.id for d in seen.deliveries) == Counter(dict.fromkeys(sent, 2))
    assert await r.lag("orders") == 0


async def test_a_full_store_keeps_retries_waiting_and_goes_on_consuming(r: Rig) -> None:
    await r.topic("orders", 50, backoff_s=(0.5,), max_in_flight=100)
    await r.producer.publish_many("orders", [b"x"] * 20)
    seen = Seen(fail_once)
    store = FaultyStore(MemoryStore(r.world))
    host = r.host(seen, store=store)
    async with running(host):
        store.lanes.fail(errors.StoreFull("no room"), "add")
        await until(lambda: len(seen) == 20)
        await asyncio.sleep(1)
        seen.then = None
        await r.producer.publish_many("orders", [b"fresh"] * 20)
        await until(lambda: len(seen) == 40)
        store.heal()
        await until(lambda: len(seen) == 60)
    assert await r.lag("orders") == 0


async def test_a_full_store_does_not_keep_a_host_from_letting_its_groups_go(r: Rig) -> None:
    await r.topic("t", 5, kind="priority", slots=1)
    await r.producer.publish_many("t", [b"%d" % i for i in range(40)], scores=range(17, 57))
    seen = Seen()
    store = FaultyStore(MemoryStore(r.world))
    async with running(r.host(seen, store=store)):
        await until(lambda: len(seen) >= 5)
        store.sorted.fail(errors.StoreFull("no room left"), "settle")
    async with r.consuming(seen):  # what could not be put back is recovered by the next owner
        await until(lambda: {*seen.payloads} == {b"%d" % i for i in range(40)})


async def test_a_claim_that_comes_too_late_to_a_full_store_ends_no_host(r: Rig) -> None:
    await r.topic("t", 40, kind="priority", slots=4)
    store = FaultyStore(MemoryStore(r.world))
    store.sorted.inject("claim", before_s=0.2, times=None)
    seen = Seen()
    async with running(r.host(seen, store=store)) as first:
        await r.producer.publish_many("t", [b"%d" % i for i in range(400)], scores=range(17, 417))
        await until(lambda: len(seen) >= 20)
        store.sorted.fail(errors.StoreFull("no room left"), "settle")
        async with r.consuming(seen, "host-2"):  # half of the slots move while they are claimed from
            await asyncio.sleep(8)
            assert not first.done()
            store.sorted.heal()
            await until(lambda: len({*seen.payloads}) == 400, 60)


async def test_a_database_outage_does_not_stop_delivery_and_its_checkpoints_follow(r: Rig) -> None:
    await r.topic("orders", 50, priorities=("p",))
    await r.producer.publish_many("orders", [b"x"] * 300)
    seen = Seen()
    async with r.consuming(seen) as host:
        await until(lambda: len(seen) >= 50)
        await asyncio.sleep(0.5)
        saved = await r.checkpointed("orders/0/p")
        r.db.down = True
        await asyncio.sleep(3)
        assert len(seen) >= 200
        assert host.work.checkpointer.unreachable is not None
        r.db.down = False
        assert await r.checkpointed("orders/0/p") == saved
        await until(lambda: len(seen) == 300)
        await asyncio.sleep(2)
        assert host.work.checkpointer.unreachable is None
        assert await r.checkpointed("orders/0/p") == 301
    assert len(seen) == 300


@pytest.mark.parametrize("what", ["store", "database"])
async def test_a_host_that_starts_during_an_outage_consumes_when_it_is_over(r: Rig, what: str) -> None:
    await r.topic("orders", 50)
    await r.producer.publish_many("orders", [b"x"] * 20)
    seen = Seen()
    store = FaultyStore(MemoryStore(r.world))
    if what == "store":
        store.fail()
    else:
        r.db.down = True
    task = asyncio.create_task((host := r.host(seen, store=store)).run())
    await asyncio.sleep(5)
    assert len(seen) == 0
    assert not task.done()
    store.heal()
    r.db.down = False
    await until(lambda: len(seen) == 20)
    host.stop()
    await task


async def test_a_stop_during_a_database_outage_ends_and_what_was_not_saved_is_delivered_again(r: Rig) -> None:
    await r.topic("orders", 50)
    sent = await r.producer.publish_many("orders", [b"x"] * 50)
    seen = Seen()
    async with r.consuming(seen, checkpoint_s=100.0):
        await until(lambda: len(seen) == 50)
        r.db.down = True
    r.db.down = False
    async with r.consuming(seen):
        await until(lambda: len(seen) == 100)
    assert Counter(seen.ids) == Counter(dict.fromkeys(sent, 2))


async def test_a_stop_during_a_store_outage_ends_within_its_drain_time(r: Rig) -> None:
    await r.topic("orders", 50)
    await r.producer.publish_many("orders", [b"x"] * 10)
    seen = Seen(fail_once)
    store = FaultyStore(MemoryStore(r.world))
    host = r.host(seen, store=store, drain_s=2.0)
    async with running(host):
        await until(lambda: len(seen) == 10)
        store.fail()
        await asyncio.sleep(0.1)
        began = r.clock.now()
    assert r.clock.now() - began < 3
    async with r.consuming(seen):
        await until(lambda: host.work.settler.retried + len({d.id for d in seen.deliveries}) >= 10)
        await until(lambda: len(seen) >= 20)


async def test_a_crash_after_ten_seconds_without_the_database_repeats_no_more_than_the_stated_bound(r: Rig) -> None:
    await r.topic("orders", 100, group_qps=50.0)
    for priority in ("high", "mid", "low"):
        await r.producer.publish_many("orders", [b"x"] * 1_000, priority=priority)
    await r.topic("lent", 40, group_qps=10.0)
    await r.producer.publish_many("lent", [b"x"] * 1_000)
    seen = Seen()
    host = r.host(seen, max_unsaved_s=4.0)
    run = asyncio.create_task(host.run())
    await until(lambda: len(seen.of("orders")) >= 300)
    r.db.down = True
    await asyncio.sleep(10)
    assert len(seen.of("orders")) >= 300 + 2 * 2 * 50 - 100, "delivery goes on up to the bound"
    run.cancel()
    await asyncio.wait([run])
    before = len(seen)
    r.db.down = False
    async with r.consuming(seen, "host-2"):
        await until(lambda: len(set(seen.ids)) == 4_000, 120)
    repeated = Counter(seen.of(topic)[0].topic for topic in ("orders", "lent") for _ in repeats(seen, topic))
    assert before < 4_000
    assert 0 < repeated["orders"] <= 2 * 4 * 50
    assert 0 < repeated["lent"] <= 4 * 4 * 40


def repeats(seen: Seen, topic: str) -> list[str]:
    return [id_ for id_, n in Counter(d.id for d in seen.of(topic)).items() for _ in range(n - 1)]


async def test_delivery_that_waits_for_checkpoints_goes_on_at_once_when_the_database_is_back(r: Rig) -> None:
    await r.topic("orders", 50)
    await r.producer.publish_many("orders", [b"x"] * 1_000)
    seen = Seen()
    async with r.consuming(seen, max_unsaved_s=2.0) as host:
        await until(lambda: len(seen) >= 100)
        r.db.down = True
        await asyncio.sleep(10)
        stuck = len(seen)
        await asyncio.sleep(5)
        assert len(seen) == stuck
        assert len(host.work.readiness) == 0, "what may not be read costs nothing"
        r.db.down = False
        began = r.clock.now()
        await until(lambda: len(seen) > stuck + 50)
        assert r.clock.now() - began < 3
        await until(lambda: len(seen) == 1_000, 60)
    assert len(set(seen.ids)) == 1_000


async def test_the_bound_never_slows_a_host_that_can_save_also_with_slow_handlers_and_rare_checkpoints(r: Rig) -> None:
    async def slow(m: Message) -> None:
        await asyncio.sleep(4.0)

    await r.topic("orders", 50)
    await r.producer.publish_many("orders", [b"x"] * 1_000)
    seen = Seen(slow)
    async with r.consuming(seen, checkpoint_s=4.0, max_unsaved_s=0.1):
        await until(lambda: len(seen) == 1_000, 22.5)


@pytest.mark.parametrize("fault", ["down", "silent"])
async def test_publishing_of_every_kind_goes_on_while_the_database_is_away(
    r: Rig, fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    monkeypatch.setattr("emq.producer.router._now_s", loop.time)
    await r.topic("orders", 200)
    await r.topic("timed", 50, kind="fixed_time", slots=4)
    producer = r.producer
    await producer.publish("orders", b"first")
    await producer.publish("timed", b"first timed", delay_ms=1_000)  # else the process does not know the topic
    setattr(r.db, fault, True)
    took = []
    for n in range(60):
        began = loop.time()
        await producer.publish("orders", b"now %d" % n)
        await producer.publish_many("orders", [b"many %d" % n])
        await producer.publish("orders", b"later %d" % n, delay_ms=1_000, key=str(n))
        await producer.publish("timed", b"timed %d" % n, delay_ms=1_000)
        took.append(loop.time() - began)
        await asyncio.sleep(0.25)
    await producer.schedule("orders", b"ping", every_s=1_000)
    assert max(took) <= 1.0
    assert sum(took) < 3
    said = [record for record in caplog.records if record.name == "emq.producer.router"]
    assert len(said) == 1
    with pytest.raises(errors.DatabaseUnavailable):
        await producer.publish("never seen", b"x")
    setattr(r.db, fault, False)
    seen = Seen()
    async with r.consuming(seen):
        await until(lambda: len(seen) >= 2 + 4 * 60 + 1, 60)
        await asyncio.sleep(2)
    assert len(seen) == len(set(seen.payloads)) == 2 + 4 * 60 + 1


async def test_a_sealed_queue_and_what_is_known_for_too_long_are_refused_with_a_documented_error(
    r: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emq.producer.router._now_s", asyncio.get_running_loop().time)
    monkeypatch.setattr("emq.producer.router.STALE_S", 60.0)
    topic = await r.topic("orders", 50)
    await r.producer.publish("orders", b"first")
    await asyncio.sleep(2)
    r.db.down = True
    await r.store.log.trim([Trim(queue, 0, None, True) for queue in topic.queues(0)[2:]])
    with pytest.raises(errors.DatabaseUnavailable):
        await r.producer.publish("orders", b"sealed", priority="low")
    await r.producer.publish("orders", b"x")
    await asyncio.sleep(61)
    with pytest.raises(errors.DatabaseUnavailable, match="cannot be read; nothing was published"):
        await r.producer.publish("orders", b"x")
    r.db.down = False
    await asyncio.sleep(1)
    await r.producer.publish("orders", b"x")


async def test_no_more_delayed_messages_than_can_be_looked_after_are_taken_without_the_database(
    r: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emq.producer.doubtful_delays.MESSAGES", 20)
    await r.topic("orders", 500)
    await r.producer.publish("orders", b"first")
    r.db.down = True
    for _ in range(20):
        await r.producer.publish("orders", b"later", delay_ms=1_000)
    await asyncio.gather(*(r.producer.publish("orders", b"x", delay_ms=1_000) for _ in range(5)))
    with pytest.raises(errors.DatabaseUnavailable, match="nothing was published"):
        await r.producer.publish("orders", b"later", delay_ms=1_000)
    r.db.down = False
    await asyncio.sleep(3)
    await r.producer.publish("orders", b"later", delay_ms=1_000)
