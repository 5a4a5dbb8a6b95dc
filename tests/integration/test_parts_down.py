"""A part of the store that is down or silent costs its own groups only, and they go on when it is back."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from emq.runtime import errors
from emq.storage.message import Message
from emq_stores.memory import MemoryStore
from support.doubles import FaultyStore
from support.rig import Rig, Seen, running
from support.virtual import virtual
from support.waiting import until

pytestmark = virtual

DOWN = errors.StoreUnavailable("this part of the store is down")
LOST = errors.OutcomeUnknown("the answer of this part was lost")
DAMAGED = errors.KeyDamaged("key k is a string and has to be a list; delete it")


def is_odd(group: str) -> bool:
    return int(group.rpartition("/")[2]) % 2 == 1


async def fail_once(m: Message) -> None:
    await asyncio.sleep(0.01)
    if m.attempt == 1 and m.payload.startswith(b"fails"):
        raise ValueError("once")


class Load:
    """Publishes to every group of a log and of a sorted topic, messages that succeed, fail once, or are delayed."""

    def __init__(self, r: Rig) -> None:
        self.r = r
        self.sent: dict[bytes, float] = {}

    async def create(self) -> None:
        await self.r.topic("log", 80, group_qps=10, backoff_s=(0.5,))
        await self.r.topic("sorted", 80, kind="priority", slots=8, retry="backoff", backoff_s=(0.5,))

    async def publish(self, for_s: float) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + for_s
        while loop.time() < until_s:
            number = len(self.sent)
            for topic in ("log", "sorted"):
                for kind in ("works", "fails"):
                    payload = f"{kind} {topic} {number}".encode()
                    self.sent[payload] = loop.time()
                    await self.r.producer.publish(topic, payload, priority=20 if topic == "sorted" else None)
            later = f"delayed {number}".encode()
            self.sent[later] = loop.time() + 0.5
            await self.r.producer.publish("log", later, delay_ms=500)
            await asyncio.sleep(0.1)


@pytest.mark.parametrize(("fault", "silent_s"), [(DOWN, 0.0), (LOST, 0.0), (DOWN, 1.0), (LOST, 1.0), (DAMAGED, 0.0)])
async def test_a_part_that_is_down_keeps_no_group_of_the_other_parts_waiting(
    r: Rig, fault: errors.EMQError, silent_s: float
) -> None:
    load = Load(r)
    await load.create()
    seen, first = Seen(fail_once), {}
    store = FaultyStore(MemoryStore(r.world))
    loop = asyncio.get_running_loop()
    async with running(r.host(seen, store=store)):
        await load.publish(3)
        before = len(seen)
        store.fail_parts(lambda group: fault if is_odd(group) else None, silent_s)
        await load.publish(15)
        await asyncio.sleep(1.5)
        healthy = [d for d in seen.deliveries[before:] if d.group % 2 == 0 and d.attempt == 1]
        for delivery in healthy:
            first.setdefault(delivery.payload, delivery.started_us)
        waits = sorted(us / 1e6 - load.sent[p] - (r.clock.now() - loop.time()) for p, us in first.items())
        assert len(waits) > 300
        assert waits[len(waits) * 9 // 10] < 0.3
        assert waits[-1] < silent_s * 2 + 0.5, "a healthy group waited for the part that is down"
        again = [d for d in seen.deliveries[before:] if d.group % 2 == 0 and d.attempt == 2]
        assert len(again) > 100, "failures of healthy groups were not tried again"
        store.fail_parts(lambda group: None)
        await until(lambda: {d.payload for d in seen.deliveries} == set(load.sent), 20)
        failing = {payload for payload in load.sent if payload.startswith(b"fails")}
        await until(lambda: {d.payload for d in seen.deliveries if d.attempt == 2} == failing, 20)
        await asyncio.sleep(2)
    assert store.log.refused > 10
    assert store.lanes.refused > 10
    assert store.sorted.refused > 10
    if fault is not LOST:
        assert Counter(d.payload for d in seen.deliveries) == {
            payload: 1 + payload.startswith(b"fails") for payload in load.sent
        }
    assert await r.lag("log") == 0


async def test_a_host_that_starts_while_a_part_is_down_acquires_the_groups_of_the_others_and_the_rest_later(
    r: Rig,
) -> None:
    load = Load(r)
    await load.create()
    await load.publish(2)
    seen = Seen()
    store = FaultyStore(MemoryStore(r.world))
    store.fail_parts(lambda group: DOWN if is_odd(group) else None)
    host = r.host(seen, store=store)
    async with running(host):
        await until(lambda: len(host.ownership.groups) == 8, 5)
        assert not any(map(is_odd, host.ownership.groups))
        assert host.running.is_set()
        await asyncio.sleep(3)
        assert {d.group % 2 for d in seen.deliveries} == {0}
        store.fail_parts(lambda group: None)
        await until(lambda: len(host.ownership.groups) == 16, 5)
        await until(lambda: {d.payload for d in seen.deliveries} == set(load.sent), 20)


async def test_publishing_to_a_part_that_is_down_fails_for_its_own_messages_only(r: Rig) -> None:
    load = Load(r)
    await load.create()
    r.store.fail_parts(lambda group: DOWN if is_odd(group) else None)
    for delay_ms in (None, 500):
        calls = (r.producer.publish("log", b"%d" % n, delay_ms=delay_ms) for n in range(16))
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(outcome, str) for outcome in outcomes) == 8
        assert sum(outcome is DOWN for outcome in outcomes) == 8
