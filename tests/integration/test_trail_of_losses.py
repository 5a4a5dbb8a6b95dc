"""What the trail proves of messages that a store has lost, or was told to drop: it is not held to be EMQ's doing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emq.observe.admin import Admin
from emq.producer import Producer
from emq.runtime.clock import SystemClock
from emq.topics.model import Kind
from emq.trail.options import TrailOptions
from emq.trail.writer import Trail
from emq_proof.proof import Expectations, Proof, prove
from support.rig import Rig, Seen
from support.virtual import virtual
from support.waiting import until

pytestmark = virtual


@pytest.fixture
def trail(tmp_path: Path) -> Iterator[Trail]:
    opened = Trail.open(tmp_path / "trail", "all", SystemClock(), TrailOptions(rotate_s=60.0))
    yield opened
    opened.close()


def told(trail: Trail, tmp_path: Path) -> Proof:
    """What is proved once nothing is left in the store."""
    trail.close()
    return prove(tmp_path / "trail", Expectations(still_queued=()))


async def publish(r: Rig, trail: Trail, first: int, count: int, key: str | None = None) -> set[bytes]:
    payloads = [b"%d" % i for i in range(first, first + count)]
    producer = Producer(r.store, r.catalog, trail, r.clock)
    await producer.publish_many("orders", payloads, key=key)
    return set(payloads)


async def test_what_was_dropped_before_a_queue_had_an_owner_is_not_lost(r: Rig, trail: Trail, tmp_path: Path) -> None:
    await r.topic("orders", 100, group_qps=100, priorities=("p",), max_length=5, overflow="drop_oldest")
    for i in range(4):
        await publish(r, trail, i * 3, 3)
    seen = Seen()
    async with r.consuming(seen, trail=trail):
        await until(lambda: len(seen) == 5)
    proof = told(trail, tmp_path)
    assert proof.promises["L"], proof.lost
    assert proof.dropped == 7


@pytest.mark.parametrize("kind", [Kind.LOG, Kind.FIXED_TIME])
async def test_what_went_with_a_topic_that_was_deleted_with_force_is_not_lost(
    r: Rig, trail: Trail, tmp_path: Path, kind: Kind
) -> None:
    options: dict[str, Any] = {"priorities": ("p",)} if kind is Kind.LOG else {"kind": kind, "slots": 2}
    await r.topic("orders", 10, **options)
    producer = Producer(r.store, r.catalog, trail, r.clock)
    admin = Admin(r.catalog, r.store, r.checkpoints, r.next_epoch, trail, r.clock)
    seen = Seen()
    async with r.consuming(seen, trail=trail):
        await producer.publish_many(
            "orders", [b"now %d" % i for i in range(60)], delay_ms=100 if "kind" in options else None
        )
        await producer.publish_many("orders", [b"later %d" % i for i in range(20)], delay_ms=60_000)
        await until(lambda: len(seen) >= 20)
        assert await admin.delete("orders", force=True) > 0
        await asyncio.sleep(3)
    proof = told(trail, tmp_path)
    assert proof.promises["L"], proof.lost
    assert proof.dropped == 80 - proof.delivered
    assert proof.dropped > 0


async def test_what_a_store_has_lost_before_anybody_read_it_is_told_as_its_loss(
    r: Rig, trail: Trail, tmp_path: Path
) -> None:
    await r.topic("orders", 100, group_qps=100, priorities=("p",))
    producer = Producer(r.store, r.catalog, trail, r.clock)
    await producer.publish_many("orders", [b"kept"] * 20)
    kept = r.world.snapshot()
    await producer.publish_many("orders", [b"lost"] * 30)
    r.world.restore(kept)
    await asyncio.sleep(0.1)
    await producer.publish_many("orders", [b"after"] * 10)
    seen = Seen()
    async with r.consuming(seen, trail=trail):
        await until(lambda: len(seen) == 30)
    proof = told(trail, tmp_path)
    assert proof.promises["L"], proof.lost
    assert (proof.published, proof.delivered, proof.lost_by_store) == (60, 30, 30)


async def test_a_key_s_order_begins_again_where_a_store_has_lost_messages(r: Rig, trail: Trail, tmp_path: Path) -> None:
    await r.topic("orders", 100, group_qps=100, priorities=("p",))
    seen = Seen()
    async with r.consuming(seen, trail=trail):
        before = await publish(r, trail, 0, 10, key="k")
        await until(lambda: before <= set(seen.payloads))
        await asyncio.sleep(2)
        kept = r.world.snapshot()
        lost = await publish(r, trail, 100, 10, key="k")
        await until(lambda: lost <= set(seen.payloads))
        r.world.restore(kept)
        await asyncio.sleep(0.1)
        after = await publish(r, trail, 200, 10, key="k")
        await until(lambda: after <= set(seen.payloads))
    assert not (proof := told(trail, tmp_path)).key_order, proof.key_order
