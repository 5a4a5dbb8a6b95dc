"""Loops of a host that has nothing to do: they wait for an event, or look seldom."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import cast
from unittest import mock

from emq.fetcher.slot_claimer import SlotClaimer
from emq.fetcher.slot_sweep import SWEEP_S
from emq.groups.context import HostContext
from emq.host.changing_topics import ChangingTopics
from emq.host.retirement import RETIRE_S, Retirement
from emq.offsets.checkpoints import CheckpointStore
from emq.runtime import pace
from emq.storage.slot_store import SortedStore
from emq.storage.store import Store
from emq.topics.catalog import Catalog
from emq.topics.model import Topic
from support.manual_clock import ManualClock
from support.virtual import LoopClock, virtual

pytestmark = virtual

LONG_S = 600.0


class Counted(ChangingTopics):
    """Counts the looks at the shrunk topics."""

    looks = 0

    def shrunk(self) -> Iterator[Topic]:
        self.looks += 1
        return iter([topic for topic in self.topics.values() if topic.groups > topic.active_groups])


async def test_the_retirement_sleeps_until_a_topic_shrinks() -> None:
    topics: dict[str, Topic] = {}
    known = Counted(topics, {}, {})
    loop = Retirement(
        *(cast(Catalog, None), cast(Store, None), cast(CheckpointStore, None)), known, ManualClock(), stable_s=0.0
    )
    with mock.patch.object(loop, "retire", mock.AsyncMock()) as retire:
        watching = asyncio.create_task(loop.watch())
        await asyncio.sleep(LONG_S)
        assert known.looks <= 2
        topics["orders"] = Topic("orders", 10, active_groups=1, groups=2)
        known.follow(topics["orders"])
        await asyncio.sleep(2 * RETIRE_S)
        assert retire.called
        topics["orders"] = Topic("orders", 10, active_groups=1, groups=1)
        known.follow(topics["orders"])
        await asyncio.sleep(LONG_S)
        looks = known.looks
        await asyncio.sleep(LONG_S)
        assert known.looks == looks
        watching.cancel()


async def test_a_host_without_sorted_topics_wakes_once_in_a_sweep_of_slots() -> None:
    claimer = SlotClaimer(cast(SortedStore, None), HostContext(LoopClock()))
    with mock.patch.object(pace, "rest", wraps=pace.rest) as rest:
        sweeping = asyncio.create_task(claimer.sweep.run())
        await asyncio.sleep(LONG_S)
        sweeping.cancel()
    assert rest.call_count <= LONG_S / (SWEEP_S - 1) + 1
