"""Store and database out of reach for a while, in virtual time: nothing is lost, and work goes on by itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from support.doubles import FaultyStore
from support.rig import Seen, rig, running, until
from support.virtual import virtual

from emq import errors
from emq.message import Message
from storage_adapters.memory import MemoryStore


async def fail_once(m: Message) -> None:
    await asyncio.sleep(0.02)
    if m.attempt == 1:
        raise ValueError("once")


@virtual
@pytest.mark.parametrize("fault", [None, errors.StoreFull("no room"), errors.OutcomeUnknown("the reply was lost")])
async def test_a_store_outage_is_survived_without_loss_or_repetition(fault: errors.EMQError | None) -> None:
    async with rig() as r:
        await r.topic("orders", 50, backoff_s=(0.5,))
        sent = await r.producer.publish_many("orders", [b"x"] * 200)
        seen = Seen(fail_once)
        store = FaultyStore(MemoryStore(r.world))
        host = r.host(seen, store=store)
        async with running(host):
            await until(lambda: len(seen) > 60)
            store.fail(fault)
            await asyncio.sleep(12)
            assert host.puller.unreachable is not None
            tries = sum(store.log.calls.values()) + sum(store.lanes.calls.values())
            assert tries < 200  # it backs off, and does not spin
            store.heal()
            await until(lambda: len(seen) == 400, 60)
            assert host.puller.unreachable is None
            await asyncio.sleep(1)
        assert Counter(d.id for d in seen.deliveries) == Counter(dict.fromkeys(sent, 2))
        assert await r.lag("orders") == 0


@virtual
async def test_an_outcome_that_is_unknown_is_tried_again_and_nothing_is_doubled() -> None:
    async with rig() as r:
        await r.topic("orders", 50, backoff_s=(0.5,))
        await r.producer.publish_many("orders", [b"x"] * 20)
        seen = Seen(fail_once)
        store = FaultyStore(MemoryStore(r.world))
        host = r.host(seen, store=store)
        async with running(host):
            await until(lambda: len(seen) == 20)
            store.lanes.fail(errors.OutcomeUnknown("the reply was lost"), "add", "settle")
            await asyncio.sleep(3)
            store.heal()
            await until(lambda: len(seen) == 40)
            await asyncio.sleep(2)
        assert len(seen) == 40
        [slot] = await r.store.lanes.inspect(["orders/0"])
        assert slot[:3] == (0, 0, 0)


@virtual
async def test_a_full_store_keeps_retries_waiting_and_goes_on_consuming() -> None:
    async with rig() as r:
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


@virtual
async def test_a_full_store_does_not_keep_a_host_from_letting_its_groups_go() -> None:
    async with rig() as r:
        await r.topic("t", 5, kind="priority", slots=1)
        await r.producer.publish_many("t", [b"%d" % i for i in range(40)], scores=range(17, 57))
        seen = Seen()
        store = FaultyStore(MemoryStore(r.world))
        async with running(r.host(seen, store=store)):
            await until(lambda: len(seen) >= 5)
            store.sorted.fail(errors.StoreFull("no room left"), "settle")
        async with r.consuming(seen):  # what could not be put back is recovered by the next owner
            await until(lambda: {*seen.payloads} == {b"%d" % i for i in range(40)})


@virtual
async def test_a_claim_that_comes_too_late_to_a_full_store_ends_no_host() -> None:
    async with rig() as r:
        await r.topic("t", 40, kind="priority", slots=4)
        store = FaultyStore(MemoryStore(r.world))

        async def slowly(*args: Any) -> Any:
            await asyncio.sleep(0.2)
            return await store.real.sorted.claim(*args)

        store.sorted.replace("claim", slowly)
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


@virtual
async def test_a_database_outage_does_not_stop_delivery_and_its_checkpoints_follow() -> None:
    async with rig() as r:
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
            assert host.checkpointer.unreachable is not None
            r.db.down = False
            assert await r.checkpointed("orders/0/p") == saved
            await until(lambda: len(seen) == 300)
            await asyncio.sleep(2)
            assert host.checkpointer.unreachable is None
            assert await r.checkpointed("orders/0/p") == 301
        assert len(seen) == 300


@virtual
@pytest.mark.parametrize("what", ["store", "database"])
async def test_a_host_that_starts_during_an_outage_consumes_when_it_is_over(what: str) -> None:
    async with rig() as r:
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


@virtual
async def test_a_stop_during_a_database_outage_ends_and_what_was_not_saved_is_delivered_again() -> None:
    async with rig() as r:
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


@virtual
async def test_a_stop_during_a_store_outage_ends_within_its_drain_time() -> None:
    async with rig() as r:
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
            await until(lambda: host.settler.retried + len({d.id for d in seen.deliveries}) >= 10)
            await until(lambda: len(seen) >= 20)
