"""What is forwarded between lanes of keys that move is in one of them at any time, whatever the hosts know."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from emq.fetcher.forwarder import Forwarder, is_moved
from emq.groups.context import HostContext
from emq.groups.owned import OwnedGroup
from emq.runtime import errors
from emq.storage import message
from emq.storage.lane_store import LaneAdd, LaneClaim, LaneClaimed, LaneSettle, LaneVerdict
from emq.storage.message import Message
from emq.topics.key_layouts import group_of_key
from emq.topics.model import Topic
from emq_stores.memory import MemoryStore, World
from support.doubles import FaultyStore
from support.owned_groups import owned_group
from support.virtual import LoopClock, virtual
from support.waiting import until

pytestmark = virtual

EPOCH = 7
TWO = Topic("orders", 100, active_groups=2, groups=2)
ONE = msgspec.structs.replace(TWO, active_groups=1, groups=1)
KEY = next(key for key in map(str, range(100)) if group_of_key(key, 2) == 1)
"""A key of the second of two groups."""


class Hosts:
    """A store, and the forwarder of the host of the topic's first group.

    Attributes:
        catalog: what the next readings of the catalog return; the last one stays. None: the database is away.
    """

    def __init__(self, picture: Topic = TWO) -> None:
        self.lanes: Any = FaultyStore(MemoryStore(World(LoopClock()))).lanes
        self.catalog: list[Topic | None] = [picture]
        self.forwarder = Forwarder(self.lanes, self._topic_now, HostContext(LoopClock()))
        self.group = owned_group(picture, epoch=EPOCH)
        self.group.retries[0] = 0

    async def _topic_now(self, name: str) -> Topic:
        topic = self.catalog.pop(0) if len(self.catalog) > 1 else self.catalog[0]
        if topic is None:
            raise errors.DatabaseUnavailable("away")
        return topic

    async def add(self, group: int) -> None:
        body = message.encode_retry(Message("m", b"x", key=KEY))
        assert await self.lanes.add([LaneAdd(f"orders/{group}", "m", body, 0)]) == [True]

    async def claim(self, group: int, now_ms: int = 1) -> list[bytes]:
        [claimed] = await self.lanes.claim([LaneClaim(f"orders/{group}", 10, EPOCH)], now_ms)
        assert isinstance(claimed, LaneClaimed)
        return [body for _, body in claimed.entries]

    async def put(self, now_ms: int = 1) -> None:
        """Claim what the first group's lane has, as its host does, and forward it."""
        for body in await self.claim(0, now_ms):
            m = message.decode(body)
            assert is_moved(self.group, m)
            self.group.lane_out += 1
            self.group.retries[0] += 1
            self.forwarder.put(self.group, m, body, now_ms)

    async def forward(self, now_ms: int = 1) -> None:
        await self.put(now_ms)
        await until(lambda: self.forwarder.unsettled(self.group) == 0)
        assert (self.group.lane_out, self.group.retries[0]) == (0, 0)

    async def waiting(self) -> list[int]:
        """Groups in whose lane the entry waits."""
        return [group for group in range(2) if await self.lanes.waiting(f"orders/{group}")]


@pytest.fixture
async def h() -> AsyncIterator[Hosts]:
    made = Hosts()
    task = asyncio.create_task(made.forwarder.run())
    yield made
    task.cancel()
    await asyncio.wait([task])


async def test_an_entry_that_is_on_its_way_here_from_the_other_lane_does_not_leave_this_one(h: Hosts) -> None:
    """The other group's host saw the topic shrink, and this one saw it grow again before that host was done."""
    await h.add(1)
    await h.claim(1)  # by the other host, which forwards it
    await h.add(0)
    await h.forward()
    assert await h.lanes.settle([LaneSettle("orders/1", "m", LaneVerdict.ACK, EPOCH)]) == [True]
    assert await h.waiting() == [0]
    await h.forward(now_ms=1_000)
    assert await h.waiting() == [1]


async def test_an_entry_that_a_crash_left_in_both_lanes_is_in_one_again(h: Hosts) -> None:
    await h.add(1)
    await h.add(0)
    await h.forward()
    assert await h.waiting() == [1]


async def test_an_entry_leaves_although_its_group_was_let_go_meanwhile(h: Hosts) -> None:
    await h.add(0)
    await h.put()
    h.group.discard()
    await until(lambda: h.forwarder.unsettled(h.group) == 0)
    assert await h.waiting() == [1]


async def test_an_entry_whose_copy_in_the_other_lane_is_a_dead_letter_leaves(h: Hosts) -> None:
    assert await h.lanes.add([LaneAdd("orders/1", "m", b"", 0, reason="tried to the end")]) == [True]
    await h.add(0)
    await h.forward()
    assert await h.waiting() == []
    assert len(await h.lanes.dead("orders/1")) == 1


@pytest.mark.parametrize("seen", [TWO, ONE])
async def test_an_entry_that_an_operator_took_from_the_other_lane_does_not_stand_again(h: Hosts, seen: Topic) -> None:
    await h.add(0)
    h.catalog = [TWO, TWO, seen]

    async def take_back() -> None:
        recall = LaneSettle("orders/1", "m", LaneVerdict.RECALL, for_good=True)
        assert await h.lanes.settle([recall]) == [True]
        raise errors.OutcomeUnknown("the connection broke")

    h.lanes.after["add"] = take_back
    await h.forward()
    assert await h.waiting() == []


async def test_an_entry_is_not_lost_to_an_earlier_recall_from_the_other_lane(h: Hosts) -> None:
    await h.add(1)
    assert await h.lanes.settle([LaneSettle("orders/1", "m", LaneVerdict.RECALL, for_good=True)]) == [True]
    await asyncio.sleep(0.1)
    await h.add(0)
    h.lanes.inject("add", before=errors.OutcomeUnknown("it never arrived"), times=1)
    await h.forward()
    assert await h.waiting() == [1]


async def test_an_entry_is_taken_back_from_a_group_that_was_retired_meanwhile(h: Hosts) -> None:
    await h.add(0)
    h.catalog = [TWO, ONE]
    await h.forward()
    assert await h.waiting() == [0]


async def test_an_entry_stays_that_was_moved_from_the_retired_group_to_its_own_lane(h: Hosts) -> None:
    """Whoever retires a group moves what its lane has to the first group's, where this entry is claimed."""
    await h.add(0)
    h.catalog = [TWO, ONE]

    async def retire() -> None:
        [entry] = await h.lanes.waiting("orders/1")
        assert await h.lanes.add([LaneAdd("orders/0", entry.id, entry.body, 0)]) == [False]
        assert await h.lanes.settle([LaneSettle("orders/1", entry.id, LaneVerdict.RECALL)]) == [True]

    h.lanes.after["add"] = retire
    await h.forward()
    assert await h.waiting() == [0]


async def test_an_entry_stays_whose_other_lane_is_sealed(h: Hosts) -> None:
    """The topic is being deleted, or was spared after all."""
    assert await h.lanes.settle([LaneSettle("orders/1", "", LaneVerdict.SEAL)]) == [True]
    await h.add(0)
    await h.forward()
    assert await h.waiting() == [0]
    assert await h.lanes.settle([LaneSettle("orders/1", "", LaneVerdict.OPEN)]) == [True]
    await h.forward(now_ms=1_000)
    assert await h.waiting() == [1]


async def test_an_entry_goes_where_the_catalog_says_and_not_where_the_host_believes(h: Hosts) -> None:
    await h.add(0)
    h.catalog = [ONE]
    await h.forward()
    assert await h.waiting() == [0]


async def test_entries_wait_for_the_database(h: Hosts) -> None:
    await h.add(0)
    h.catalog = [None]
    await h.put()
    await asyncio.sleep(5)
    assert await h.waiting() == []
    assert h.forwarder.unsettled(h.group) == 1
    h.catalog = [TWO]
    await until(lambda: h.forwarder.unsettled(h.group) == 0)
    assert await h.waiting() == [1]


async def test_an_entry_counts_once_although_the_report_of_its_newer_owner_breaks() -> None:
    context = HostContext(LoopClock())
    h = Hosts()
    h.forwarder = Forwarder(h.lanes, h._topic_now, context)

    def broken(group: OwnedGroup) -> None:
        raise RuntimeError("a bug")

    context.events.lost = broken  # type: ignore[method-assign]
    await h.add(0)
    await h.put()
    await h.lanes.claim([LaneClaim("orders/0", 0, EPOCH + 1)], 1)
    with pytest.raises(RuntimeError):
        await h.forwarder.run()
    assert (h.forwarder.unsettled(h.group), h.group.lane_out, h.group.retries[0]) == (0, 0, 0)
