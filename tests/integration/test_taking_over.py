"""What a new owner finds, and what it keeps its predecessor from, at the moment in which it takes over."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from emq.host.handlers import Handlers
from emq.offsets.checkpoints import Checkpoint, CheckpointStore, Fenced
from emq.storage.slot_store import SlotClaim
from support.rig import Rig, Seen, starts_per_second
from support.virtual import virtual
from support.waiting import until

pytestmark = virtual

FORMER = 0
"""The epoch of the former owner."""


async def test_nothing_is_saved_behind_a_new_owners_back_once_it_has_read_the_checkpoints(
    r: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is saved then is not seen by it, and would be delivered again, or worse, dropped."""
    refused: list[list[str]] = []
    fence = CheckpointStore.fence

    async def fence_and_save(self: CheckpointStore, epochs: Mapping[str, int]) -> Fenced:
        found = await fence(self, epochs)
        refused.append(await self.save([Checkpoint(queue, FORMER, 9) for queue in found.saved]))
        return found

    topic = await r.topic("orders", 50)
    await r.producer.publish_many("orders", [b"x"] * 20)
    checkpoints = CheckpointStore(r.db, "online")
    queues = list(topic.queues(0))
    assert await checkpoints.save([Checkpoint(queue, FORMER, 3) for queue in queues]) == []
    monkeypatch.setattr(CheckpointStore, "fence", fence_and_save)
    async with r.consuming(Seen()) as host:
        await until(lambda: "orders/0" in host.ownership.groups)
    assert sorted(refused[0]) == sorted(queues)


async def test_a_former_owner_cannot_save_its_first_checkpoint_once_another_has_taken_over(r: Rig) -> None:
    """Without a row of the queue there would be no epoch to compare with."""
    topic = await r.topic("orders", 50)
    await r.producer.publish_many("orders", [b"x"] * 20, priority=topic.priorities[0])
    async with r.consuming(Handlers()) as host:
        await until(lambda: "orders/0" in host.ownership.groups)
        queue = topic.queue(0, 0)
        assert await CheckpointStore(r.db, "online").save([Checkpoint(queue, FORMER, 9)]) == [queue]


async def test_what_a_former_owner_had_claimed_from_a_slot_is_delivered_at_once(r: Rig) -> None:
    topic = await r.topic("urgent", 50, kind="priority", slots=1)
    await r.producer.publish("urgent", "x", priority=30)
    [claimed] = await r.store.sorted.claim([SlotClaim(topic.slot(0), 10, FORMER, 0)], int(r.clock.now() * 1000))
    assert len(claimed.entries) == 1
    seen = Seen()
    async with r.consuming(seen):
        await until(lambda: len(seen) == 1, 4)
    assert topic.options.prepare_timeout_s > 4


async def test_a_group_that_moves_between_living_hosts_repeats_nothing(r: Rig) -> None:
    """Its last second of progress is saved before the next owner begins."""
    await r.topic("orders", 200, group_qps=50)
    await r.producer.publish_many("orders", [b"x"] * 3_000)
    seen = Seen()
    async with r.consuming(seen):
        await until(lambda: len(seen) > 300)
        async with r.consuming(seen, "host-2") as other:
            await until(lambda: len(other.ownership.groups) == 2)
            await asyncio.sleep(3)
        await until(lambda: len(set(seen.ids)) == 3_000, 60)
    assert len(seen.ids) == 3_000
    assert max(starts_per_second(seen.deliveries).values()) <= 200
