"""What an operator changes of a topic counts while its hosts run."""

from __future__ import annotations

import asyncio
from collections import Counter

from emq.storage.message import Message
from support.rig import Rig, Seen
from support.virtual import virtual
from support.waiting import until

pytestmark = virtual


async def test_a_changed_priority_policy_counts_for_the_backlog_that_is_there(r: Rig) -> None:
    await r.topic("orders", 20)
    for priority in ("high", "mid", "low"):
        await r.producer.publish_many("orders", [b"x"] * 200, priority=priority)
    seen = Seen()
    async with r.consuming(seen):
        await until(lambda: len(seen) == 40)
        assert {d.priority for d in seen.deliveries} == {0}
        await r.admin.update("orders", priority_policy="weighted", weights=(5.0, 3.0, 2.0))
        await asyncio.sleep(1.5)  # the catalog is looked at every 50 ms
        before = len(seen)
        await until(lambda: len(seen) >= before + 100)
    shares = Counter(d.priority for d in seen.deliveries[before : before + 100])
    assert [shares[priority] for priority in range(3)] == [50, 30, 20]


async def test_changed_room_in_flight_counts_at_once(r: Rig) -> None:
    await r.topic("orders", 1000, max_in_flight=2)
    await r.producer.publish_many("orders", [b"x"] * 20)
    hanging = asyncio.Event()

    async def hang(m: Message) -> None:
        await hanging.wait()

    seen = Seen(hang)
    async with r.consuming(seen):
        await until(lambda: seen.running == 2)
        await asyncio.sleep(3)
        assert seen.most_running == 2
        await r.admin.update("orders", max_in_flight=5)
        await until(lambda: seen.running == 5, 3)
        await asyncio.sleep(3)
        assert seen.most_running == 5
        hanging.set()
        await until(lambda: len(seen) == 20)
