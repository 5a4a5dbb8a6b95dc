"""Nothing that looks at all groups or topics holds up the event loop in one go."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from emq.groups.receiver import Receiver
from emq.host.handlers import Handlers
from support.rig import Rig, Seen
from support.virtual import virtual
from support.waiting import until

pytestmark = virtual

PARKED = 200_000
"""Others that are parked, in the test of the search."""


class Stranger:
    """Parked as a group is."""

    owner = SimpleNamespace(groups={})

    parked_until = 0.0


async def test_a_change_of_a_topic_finds_its_parked_groups_without_a_search(r: Rig) -> None:
    await r.topic("t", 60, group_qps=1)
    await r.producer.publish_many("t", [b"x"] * 600)
    async with r.consuming(Seen()) as host:
        dispatcher, groups = host.work.dispatcher, list(host.ownership.groups.values())
        await until(lambda: len(dispatcher.parking) == 60)
        for i in range(PARKED):
            dispatcher.parking.park(Stranger(), r.clock.now() + 1e6 + i % 7, r.clock.now())  # type: ignore[arg-type]
        began = time.process_time()
        for group in groups:
            dispatcher.recheck(group)
        assert time.process_time() - began < 0.05  # a millisecond; a search takes 0.2 s
        assert not any(group in of for of in dispatcher.parking._groups.values() for group in groups)
        dispatcher.parking._groups.clear()
        dispatcher.parking._deadlines.clear()


async def test_groups_that_were_looked_at_again_are_started_in_their_time(r: Rig) -> None:
    await r.topic("t", 50, group_qps=5)
    await r.producer.publish_many("t", [b"x"] * 200)
    seen = Seen()
    async with r.consuming(seen) as host:
        for _ in range(50):
            await asyncio.sleep(0.1)
            for group in host.ownership.groups.values():
                host.work.dispatcher.recheck(group)
        await until(lambda: len(seen) == 200, 10)


async def test_a_receive_looks_at_its_own_topics_only(r: Rig) -> None:
    receiver, other, handlers = Receiver(), Receiver(), Handlers()
    handlers.bind_receiver("mine.*", receiver)
    handlers.bind_receiver("others.*", other)
    for i in range(300):
        for name in (f"mine.{i}", f"others.{i}"):
            await r.topic(name, 20)
            await r.producer.publish_many(name, [b"x"] * 3)
    async with r.consuming(handlers) as host:
        for each in (receiver, other):
            each.on_wanted.append(host.work.dispatcher.wanted)
        await until(lambda: len(receiver.unasked) == len(other.unasked) == 300)
        seen: list[str] = []
        for _ in range(90):
            found = await receiver.receive(max_messages=10, timeout_s=5)
            seen += [delivery.message.topic for delivery in found]
            for delivery in found:
                delivery.ack()
        assert sorted(seen) == sorted(f"mine.{i}" for i in range(300) for _ in range(3))
        assert len(other.unasked) == 300


@pytest.mark.parametrize("kind", ["log", "priority"])
async def test_what_waited_for_the_topics_limit_starts_when_somebody_asks_again(r: Rig, kind: str) -> None:
    """While it began to wait, somebody asked; when there was room again, nobody did."""
    receiver, handlers = Receiver(), Handlers()
    handlers.bind_receiver("t", receiver)
    await r.topic("t", 20, max_in_flight=1, **({} if kind == "log" else {"kind": kind, "slots": 2}))
    await r.producer.publish_many("t", [b"%d" % i for i in range(4)], **({} if kind == "log" else {"priority": 50}))
    async with r.consuming(handlers) as host:
        receiver.on_wanted.append(host.work.dispatcher.wanted)
        seen = []
        for _ in range(4):
            [delivery] = await receiver.receive(min_messages=2, max_messages=2, timeout_s=1)
            seen.append(delivery.message.payload)
            delivery.ack()
            await asyncio.sleep(1)
    assert sorted(seen) == [b"%d" % i for i in range(4)]


async def test_a_pattern_that_is_bound_late_reaches_all_its_topics_a_slice_at_a_time(r: Rig) -> None:
    for i in range(500):
        await r.topic(f"t.{i}", 20)
        await r.producer.publish(f"t.{i}", b"x")
    seen, handlers = Seen(), Handlers()
    async with r.consuming(handlers) as host:
        handlers.bind("t.*", seen.on("late"))
        host.ownership.rebind("t.*")
        bound = sum(owner.handler is not None for owner in host.ownership.owned.values())
        assert 0 < bound <= 200
        await until(lambda: len(seen) == 500)
