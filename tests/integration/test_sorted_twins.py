"""What is sent again while its like waits, in virtual time: for its key, or for its next attempt."""

from __future__ import annotations

import asyncio

import pytest

from emq.runtime import errors
from emq.storage.message import Message
from support.rig import Rig, Seen, rig
from support.virtual import virtual
from support.waiting import until

pytestmark = virtual


async def test_what_waits_for_a_running_key_merges_with_what_is_sent_again(r: Rig) -> None:
    topic = await r.topic("t", 100, kind="priority", slots=1, ordering="key", merge="key", fold="sum")
    seen = Seen(lambda m: asyncio.sleep(1 if m.payload == b"first" else 0))
    async with r.consuming(seen):
        await asyncio.sleep(1.5)
        await r.producer.publish("t", "1", merge_key="0", key="k", priority=90)
        seen.then = lambda m: asyncio.sleep(1)
        for _ in range(3):
            for i in range(1, 9):
                await r.producer.publish("t", "1", merge_key=str(i), key="k", priority=50)
            await asyncio.sleep(0.1)
        await until(lambda: len(seen) == 9)
        await asyncio.sleep(5)
    assert seen.payloads == [b"1", *[b"3"] * 8]
    assert seen.most_running == 1
    assert await r.store.sorted.waiting(topic.slot(0)) == []


async def test_a_newer_priority_counts_for_what_waits_for_a_running_key(r: Rig) -> None:
    await r.topic("t", 100, kind="priority", slots=1, ordering="key", merge="key")
    seen = Seen(lambda m: asyncio.sleep(1))
    async with r.consuming(seen):
        await asyncio.sleep(1.5)
        for name, priority in (("first", 90), ("a", 60), ("b", 50), ("c", 40)):
            await r.producer.publish("t", name, merge_key=name, key="k", priority=priority)
        await asyncio.sleep(0.3)
        await r.producer.publish("t", "c", merge_key="c", key="k", priority=99)
        await r.producer.publish("t", "a", merge_key="a", key="k", priority=20)
        await until(lambda: len(seen) == 4)
        await asyncio.sleep(3)
    assert seen.payloads == [b"first", b"c", b"b", b"a"]


async def test_a_newer_time_counts_for_what_waits_for_a_running_key(r: Rig) -> None:
    await r.topic("t", 100, kind="fixed_time", slots=1, ordering="key", merge="key")
    seen = Seen(lambda m: asyncio.sleep(1.2))
    async with r.consuming(seen):
        await asyncio.sleep(1.5)
        begin = r.clock.now()
        for name in ("a", "b"):
            await r.producer.publish("t", name, merge_key=name, key="k", at=begin + 1)
        await until(lambda: len(seen) == 1)
        other = "b" if seen.payloads == [b"a"] else "a"
        await r.producer.publish("t", other, merge_key=other, key="k", at=begin + 30)
        await until(lambda: len(seen) == 2, 60)
    assert seen.deliveries[1].started_us / 1e6 >= begin + 29.9


@pytest.mark.parametrize("retry", ["rmq", "backoff"])
@pytest.mark.parametrize("kind", ["priority", "range_merge", "fixed_time"])
@pytest.mark.parametrize("ordering", ["slot", "none"])
async def test_what_waits_for_its_next_attempt_runs_once_with_what_is_sent_again(
    retry: str, kind: str, ordering: str
) -> None:
    ends: list[float] = []

    async def busy_at_first(m: Message) -> None:
        await asyncio.sleep(0.5)
        if not ends:
            ends.append(r.clock.now())
            raise errors.Retry("busy", after_s=20)

    async with rig() as r:
        kinds = {"time_range_ms": 100} if kind == "range_merge" else {}
        topic = await r.topic("t", 100, kind=kind, slots=1, ordering=ordering, retry=retry, **kinds)
        seen = Seen(busy_at_first)
        when = {"priority": 50} if kind == "priority" else {}
        async with r.consuming(seen):
            await asyncio.sleep(1.5)
            for n in range(9):
                if kind == "fixed_time":
                    when = {"at": r.clock.now() + (1 if n == 0 else 25 - 2 * n)}
                await r.producer.publish("t", "x", **when)
                await asyncio.sleep(2)
                assert seen.most_running == 1
            await asyncio.sleep(40)
        assert len(seen) == 2, seen.deliveries
        assert seen.most_running == 1
        early = [d for d in seen.deliveries[1:] if d.started_us / 1e6 < ends[0] + 19.9]
        assert not early
        [state] = await r.store.sorted.inspect([topic.slot(0)], int(r.clock.now() * 1000))
        assert (state.waiting, state.prepared, state.dead) == (0, 0, 0)
