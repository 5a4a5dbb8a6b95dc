"""Stores that come back from a crash without their last writes: nothing that was published after it is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from emq.fetcher import readiness
from emq.offsets.checkpoints import Checkpoint
from emq.producer.queue_tails import Tails
from emq.producer.routes import Memory, route_of
from emq.runtime import errors
from emq.storage import message
from emq.storage.log_store import Put
from emq.storage.message import Message
from emq.topics.model import Topic
from emq.trail.sink import NullTrail
from emq_stores.memory import MemoryStore
from support.doubles import FaultyStore
from support.rig import Rig, Seen, running
from support.virtual import virtual
from support.waiting import until

pytestmark = virtual


async def publish(r: Rig, name: str, first: int, count: int) -> set[bytes]:
    payloads = [b"%d" % i for i in range(first, first + count)]
    await r.producer.publish_many(name, payloads)
    return set(payloads)


async def test_a_live_host_delivers_what_comes_after_a_loss_though_the_store_has_grown_past_it(
    r: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    await r.topic("orders", 100, group_qps=100, priorities=("p",))
    seen = Seen()
    async with r.consuming(seen) as host:
        before = await publish(r, "orders", 0, 40)
        await until(lambda: before <= set(seen.payloads))
        await asyncio.sleep(2)
        kept = r.world.snapshot()
        lost = await publish(r, "orders", 100, 30)
        await until(lambda: lost <= set(seen.payloads))
        await asyncio.sleep(1)  # checkpointed, too
        with caplog.at_level(logging.WARNING, "emq"):
            r.world.restore(kept)
            after = await publish(r, "orders", 200, 60)  # before the host has looked
            await until(lambda: after <= set(seen.payloads))
        await asyncio.sleep(7)  # trimmed
        more = await publish(r, "orders", 300, 60)
        await until(lambda: more <= set(seen.payloads))
        assert host.ownership.shrunk_queues == 1
        await asyncio.sleep(2)
    assert await r.lag("orders") == 0
    told = [r.getMessage() for r in caplog.records if "came back" in r.getMessage() and "takeover" in r.name]
    assert len(told) == 1
    assert "queue orders/0/p" in told[0]


@pytest.mark.parametrize("grown", [False, True])
async def test_a_host_that_starts_with_a_checkpoint_of_what_the_store_has_lost_delivers_all_that_is_there(
    r: Rig, grown: bool
) -> None:
    await r.topic("orders", 100, group_qps=100, priorities=("p",))
    seen = Seen()
    before = await publish(r, "orders", 0, 20)
    async with r.consuming(seen):
        await until(lambda: before <= set(seen.payloads))
        kept = r.world.snapshot()
        lost = await publish(r, "orders", 100, 40)
        await until(lambda: lost <= set(seen.payloads))
    r.world.restore(kept)
    after = await publish(r, "orders", 200, 80 if grown else 5)
    async with r.consuming(seen) as host:
        await until(lambda: after <= set(seen.payloads))
        assert host.ownership.shrunk_queues == 1
        await asyncio.sleep(1)
    async with r.consuming(Seen()) as host:
        assert host.ownership.shrunk_queues == 0, "its checkpoint holds again"


async def test_a_store_that_comes_back_empty_is_read_from_its_head(r: Rig) -> None:
    await r.topic("orders", 100, group_qps=100)
    seen = Seen()
    async with r.consuming(seen):
        before = await publish(r, "orders", 0, 50)
        await until(lambda: before <= set(seen.payloads))
        r.world.restore(None)
        after = await publish(r, "orders", 100, 120)
        await until(lambda: after <= set(seen.payloads))
        await asyncio.sleep(2)
    assert await r.lag("orders") == 0


async def test_a_checkpoint_of_before_there_were_marks_is_noticed_when_it_is_beyond_the_tail(r: Rig) -> None:
    topic = await r.topic("orders", 100, group_qps=100)
    await r.checkpoints.save([Checkpoint(topic.queue(0, 0), 1, 500, ((700, 800),))])
    after = await publish(r, "orders", 0, 20)
    seen = Seen()
    async with r.consuming(seen):
        await until(lambda: after <= set(seen.payloads))


async def test_only_little_is_read_again_of_a_queue_that_retains_much(r: Rig) -> None:
    await r.topic("orders", 100, group_qps=100, priorities=("p",), retention_s=86_400.0)
    seen = Seen()
    async with r.consuming(seen):
        for i in range(30):
            await publish(r, "orders", i * 10, 10)
            await asyncio.sleep(1)
        kept = r.world.snapshot()
        await publish(r, "orders", 1_000, 10)
        await asyncio.sleep(1)
        delivered = len(seen)
        r.world.restore(kept)
        after = await publish(r, "orders", 2_000, 30)
        await until(lambda: after <= set(seen.payloads))
        await asyncio.sleep(1)
    assert len(seen) - delivered <= 30 + 10 * 11, "no more than the last ten seconds of 300 messages"


async def test_a_key_stays_serial_while_its_group_starts_again(r: Rig) -> None:
    running_now: list[bytes] = []

    async def slow(m: Message) -> None:
        assert not running_now
        running_now.append(m.payload)
        await asyncio.sleep(0.4)
        running_now.remove(m.payload)

    await r.topic("orders", 50, group_qps=50, priorities=("p",))
    seen = Seen(slow)
    async with r.consuming(seen):
        await r.producer.publish("orders", b"kept", key="k")
        await until(lambda: len(seen) == 1)
        kept = r.world.snapshot()
        await r.producer.publish("orders", b"lost", key="k")
        await until(lambda: len(seen) == 2)
        r.world.restore(kept)
        await r.producer.publish("orders", b"new", key="k")
        await until(lambda: b"new" in seen.payloads)
        await asyncio.sleep(2)
    assert seen.payloads[-1] == b"new"


async def test_claims_that_a_store_has_forgotten_or_remembers_again_wedge_no_lane(r: Rig) -> None:
    async def fails_once(m: Message) -> None:
        await asyncio.sleep(0.2)
        if m.attempt == 1:
            raise ValueError("once")

    await r.topic("orders", 50, group_qps=50, priorities=("p",), backoff_s=(1.0,), jitter=0.0)
    seen = Seen(fails_once)
    async with r.consuming(seen):
        await publish(r, "orders", 0, 10)
        before_the_claim = r.world.snapshot()
        await until(lambda: len(seen) == 20)
        claimed = r.world.snapshot()
        await asyncio.sleep(1)  # acknowledged
        r.world.restore(claimed)
        await until(lambda: len(seen) == 30)
        await asyncio.sleep(0.1)
        r.world.restore(before_the_claim)  # while they run
        after = await publish(r, "orders", 100, 20)
        await until(lambda: after <= {d.payload for d in seen.deliveries if d.attempt == 2})
        await asyncio.sleep(3)
        [state] = await r.store.lanes.inspect(["orders/0"])
        assert (state.waiting, state.prepared) == (0, 0)
    assert await r.lag("orders") == 0


async def test_a_save_under_way_when_the_store_is_emptied_does_not_bring_the_former_checkpoint_back(
    r: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host takes the group again under the same epoch, so no fence would refuse the save."""
    await r.topic("orders", 100, group_qps=100, priorities=("p",))
    sent, arrives, save = asyncio.Event(), asyncio.Event(), r.checkpoints.save

    async def slow_save(batch: Sequence[Checkpoint]) -> list[str]:
        if any(checkpoint.watermark > 1 for checkpoint in batch) and not sent.is_set():
            sent.set()
            await arrives.wait()
        return await save(batch)

    monkeypatch.setattr(r.checkpoints, "save", slow_save)
    seen = Seen()
    async with r.consuming(seen):
        await publish(r, "orders", 0, 50)
        await sent.wait()
        r.world.restore(None)
        after = await publish(r, "orders", 100, 5)
        await asyncio.sleep(2)
        arrives.set()
        await until(lambda: after <= set(seen.payloads))
        await asyncio.sleep(1)
        assert await r.checkpointed("orders/0/p") == 6
    async with r.consuming(again := Seen()) as host:
        await asyncio.sleep(1)
        assert (host.ownership.shrunk_queues, again.payloads) == (0, [])


async def test_the_next_owner_after_a_crash_and_a_loss_at_once_loses_nothing_new(r: Rig) -> None:
    await r.topic("orders", 100, group_qps=25)
    seen = Seen(lambda m: asyncio.sleep(0.05))
    host = r.host(seen, checkpoint_s=1.0, store=FaultyStore(MemoryStore(r.world)))
    async with running(host) as run:
        for i in range(3):
            await publish(r, "orders", i * 50, 50)
            await asyncio.sleep(0.7)
        kept = r.world.snapshot()
        await publish(r, "orders", 500, 50)
        await asyncio.sleep(0.9)
        run.cancel()
    r.world.restore(kept)
    after = await publish(r, "orders", 1_000, 150)
    async with r.consuming(seen):
        await until(lambda: after <= set(seen.payloads))
        await asyncio.sleep(2)
    assert {b"%d" % i for i in range(150)} <= set(seen.payloads)
    assert await r.lag("orders") == 0


async def test_a_store_that_has_forgotten_a_layout_refuses_what_comes_by_former_ones_again(r: Rig) -> None:
    await r.topic("orders", 20, group_qps=10, priorities=("p",))
    keys, seen = [f"k{i}" for i in range(40)], Seen()
    async with r.consuming(seen):
        await r.producer.publish_many("orders", [b"before"] * 40, keys=keys)
        await until(lambda: len(seen) == 40)
        kept = r.world.snapshot()
        topic = await r.admin.update("orders", qps=40)
        await r.producer.publish_many("orders", [b"lost"] * 40, keys=keys)
        await until(lambda: len(seen) == 80)
        await asyncio.sleep(2)
        r.world.restore(kept)
        await r.producer.publish_many("orders", [b"after"] * 40, keys=keys)
        await until(lambda: seen.payloads.count(b"after") == 40, timeout_s=200)
        former = [Put(queue, [b"x"], layout=topic.layout - 1) for queue in topic.all_queues()]
        answers = await r.store.log.put(former)
        assert all(isinstance(answer, errors.QueueSealed) for answer in answers), answers


async def taken(r: Rig, topic: Topic) -> list[str]:
    """Return the queues that take keys by the layout before the topic's own."""
    queues = [queue for group in range(2) for queue in topic.queues(group)]
    answers = await r.store.log.put([Put(queue, [b"x"], layout=topic.layout - 1) for queue in queues])
    return [q for q, answer in zip(queues, answers, strict=True) if not isinstance(answer, errors.QueueSealed)]


async def test_before_a_group_passes_a_former_layout_its_queues_refuse_that_whatever_the_store_has_forgotten(
    r: Rig,
) -> None:
    """The store loses the raise of the queues and no message, before any host has heard of the change."""
    await r.topic("orders", 20, group_qps=10, priorities=("p",))
    release = asyncio.Event()
    async with r.consuming(Seen(lambda m: release.wait())):
        await r.producer.publish_many("orders", [b"x"] * 40, keys=[f"k{i}" for i in range(40)])
        await asyncio.sleep(2)
        kept = r.world.snapshot()
        topic = await r.admin.update("orders", qps=40)
        r.world.restore(kept)
        assert await taken(r, topic), "the store has forgotten to refuse"
        await asyncio.sleep(2)
        assert (await r.catalog.get("orders")).earlier, "nothing has passed while the handlers wait"
        assert await taken(r, topic) == []
        release.set()


async def test_queues_refuse_former_layouts_again_when_the_store_has_come_back_without_losing_a_message(r: Rig) -> None:
    await r.topic("orders", 20, group_qps=10, priorities=("p",))
    async with r.consuming(Seen()):
        kept = r.world.snapshot()
        topic = await r.admin.update("orders", qps=40)
        await asyncio.sleep(5)
        assert not (await r.catalog.get("orders")).earlier, "all groups have passed"
        r.world.restore(kept)
        await asyncio.sleep(2)
        assert await taken(r, topic) == []


async def test_a_group_passes_a_layout_only_behind_what_came_while_the_store_had_forgotten_to_refuse_it(
    r: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "SWEEP_S", 1e6)  # nobody finds the message by chance
    before = await r.topic("orders", 10, group_qps=10, priorities=("p",))
    await r.producer.publish("orders", b"first", key="k")
    seen, store = Seen(), FaultyStore(MemoryStore(r.world))
    store.deafen()
    async with r.consuming(seen, store=store) as host:
        await until(lambda: len(seen) == 1)
        kept = r.world.snapshot()
        await r.admin.update("orders", qps=40)
        r.world.restore(kept)
        body = message.encode("late", b"late", "k", 1, None, before.layout)
        [[offset]] = await r.store.log.put([Put(before.queue(0, 0), [body], layout=before.layout)])
        await asyncio.sleep(3)
        [passage] = (await host.passage._passages.load({"orders"})).values()
        assert list(passage.tails) == [offset], "the tail was noted before the message came"
        assert not passage.passed


async def test_a_producer_notices_that_messages_are_gone_which_nobody_had_read(
    r: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    await r.topic("orders", 100, group_qps=100, priorities=("p",))
    await publish(r, "orders", 0, 20)
    kept = r.world.snapshot()
    await publish(r, "orders", 100, 30)
    r.world.restore(kept)
    with caplog.at_level(logging.WARNING, "emq"):
        after = await publish(r, "orders", 200, 10)
    assert r.producer.shrunk == 1
    assert "queue orders/0/p" in caplog.text
    assert "offsets 21 to 50" in caplog.text
    await publish(r, "orders", 300, 10)
    await asyncio.gather(*(r.producer.publish("orders", b"%d" % i) for i in range(400, 420)))
    assert r.producer.shrunk == 1, "it is said once"
    seen = Seen()
    async with r.consuming(seen):
        await until(lambda: after <= set(seen.payloads))


async def test_answers_that_come_in_another_order_tell_of_no_loss(r: Rig) -> None:
    topic = await r.topic("orders", 100, group_qps=100, priorities=("p",))
    tails, route = Tails(NullTrail(), r.clock), route_of(topic, Memory())
    first, second = tails.known(route, 0, 0), tails.known(route, 0, 0)
    tails.put(route, 0, 0, second, range(11, 21), 0)
    tails.put(route, 0, 0, first, range(1, 11), 0)
    assert (tails.known(route, 0, 0), tails.shrunk) == (21, 0)
    tails.put(route, 0, 0, tails.known(route, 0, 0), range(20, 22), 0)
    assert (tails.known(route, 0, 0), tails.shrunk) == (22, 1)


async def test_what_comes_to_a_deleted_topic_whose_seals_are_lost_waits_for_a_topic_of_that_name(r: Rig) -> None:
    """Its producer could not read the catalog, and the store has lost its last second."""
    topic = await r.topic("orders", 100, group_qps=50, priorities=("p",))
    kept = r.world.snapshot()
    await r.admin.delete("orders")
    late = [Put(queue, [b"late"]) for queue in topic.all_queues()]
    assert all(isinstance(answer, errors.QueueSealed) for answer in await r.store.log.put(late))
    r.world.restore(kept)
    assert await r.store.log.put(late) == [range(1, 2)] * 2
    await r.topic("orders", 100, group_qps=50, priorities=("p",))
    seen = Seen()
    async with r.consuming(seen):
        await until(lambda: seen.payloads == [b"late"] * 2)
