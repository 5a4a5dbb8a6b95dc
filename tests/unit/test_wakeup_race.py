"""No wake-up is lost between the store's two connections (promise L, in good time)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, cast
from unittest.mock import AsyncMock

from emq.fetcher.puller import Puller
from emq.fetcher.readiness import Readiness
from emq.groups.capacity import Gauge
from emq.groups.context import HostContext
from emq.groups.offset_tracker import OffsetTracker
from emq.groups.owned import OwnedGroup, OwnedQueue, OwnedTopic
from emq.groups.priority import STRICT
from emq.quota.counter import WindowCounter
from emq.storage.log_store import Batch, LogStore, Read
from emq.topics.model import Topic
from support.manual_clock import ManualClock


class SlowStore:
    """Answers each read when told to, always with an empty, exhausted batch."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()

    async def read(self, reads: Sequence[Read], max_bytes: int) -> list[Batch]:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.asked.put_nowait(answer)
        await answer
        return [Batch((), (), read.start, True) for read in reads]


def owned_queue() -> OwnedQueue:
    owner = OwnedTopic(Topic("t", 10, priorities=("only",), active_groups=1, groups=1))
    owner.handler = cast(Any, lambda _: None)
    group = OwnedGroup(owner, 0, 1, WindowCounter(10, 0), STRICT, Gauge())
    queue = OwnedQueue(group, 0, OffsetTracker(1), 1.0)
    group.queues.append(queue)
    group.buffers.append(deque())
    return queue


async def test_a_wakeup_that_overtakes_the_answer_of_an_empty_read_leads_to_another_read() -> None:
    store, readiness, queue = SlowStore(), Readiness(), owned_queue()

    puller = Puller(cast(LogStore, store), readiness, HostContext(ManualClock()), AsyncMock())
    task = asyncio.create_task(puller.pull())
    readiness.add(queue)
    answer = await store.asked.get()
    readiness.woken(queue)
    answer.set_result(None)
    async with asyncio.timeout(1):
        again = await store.asked.get()
    again.set_result(None)
    await asyncio.sleep(0)
    assert not queue.more
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
