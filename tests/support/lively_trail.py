"""The trail of a lively minute, as three hosts wrote it: every event of a trail that needs no accident.

Hosts come and go, a topic grows, shrinks and pauses. Messages have keys, priorities, delays and times to live. They are
tried again, given back, rejected, replayed and recalled; contents merge in a sorted topic.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Callable
from pathlib import Path

from emq.observe import dead_letters
from emq.observe.recall import recall
from emq.producer import Producer
from emq.runtime import errors
from emq.runtime.clock import SystemClock
from emq.storage.message import Message
from emq.topics.model import Kind, State, Topic, split
from emq.trail.options import TrailOptions
from emq.trail.writer import Trail
from support.rig import Rig, bound, rig

LOG, SORTED, SLOW = "orders", "sums", "mails"
SECONDS = 24
A_SECOND = 40
"""Messages of each topic published in a second."""


class Handler:
    """Does with a message as its payload says, at each attempt anew."""

    def __init__(self) -> None:
        self.given_back: set[str] = set()

    async def __call__(self, m: Message) -> None:
        n = zlib.crc32(m.payload)
        if n % 23 == 0 and m.id not in self.given_back:
            self.given_back.add(m.id)
            raise errors.GiveBack("busy", pause_s=0.1)
        if n % 31 == 0:
            raise errors.Reject("not wanted")
        if n % 7 == 0 and m.attempt <= n % 4:
            raise ValueError("not now")
        await asyncio.sleep(n % 60 / 1000)


async def write(directory: Path) -> list[Topic]:
    """Run the hosts, to be called in virtual time; return the topics as they are in the end."""
    with contextlib.ExitStack() as stack:

        def trail(source: str) -> Trail:
            made = Trail.open(directory, source, SystemClock(), TrailOptions(rotate_s=60.0))
            stack.callback(made.close)
            return made

        async with rig() as r:
            told = trail("producer")
            r.producer = Producer(r.store, r.catalog, told, r.clock)
            backoff = {"max_attempts": 3, "backoff_s": (0.5, 1.0), "jitter": 0.0}
            await r.topic(LOG, 100, priorities=("high", "low"), **backoff)
            await r.topic(SLOW, 20, priorities=("mid",), pacing="smooth", **backoff)
            await r.topic(SORTED, 60, kind=Kind.RANGE_MERGE, slots=2, retry="backoff", **backoff)
            await _run(r, trail, told)
            return [await r.catalog.get(name) for name in (LOG, SLOW, SORTED)]


def grown(topics: list[Topic]) -> list[Topic]:
    """The topics as they were while the first of them had twice its quota."""
    first, *others = topics
    return [split(Topic(LOG, 200, priorities=first.priorities, options=first.options)), *others]


async def _run(r: Rig, trail: Callable[[str], Trail], told: Trail) -> None:
    handler = Handler()
    async with contextlib.AsyncExitStack() as hosts, asyncio.TaskGroup() as tasks:
        for name in ("host-1", "host-2"):
            await hosts.enter_async_context(r.consuming(bound({"*": handler}), name, trail=trail(name)))
        publishing = tasks.create_task(_publish(r))
        await asyncio.sleep(5)
        await r.admin.update(LOG, qps=200)
        async with r.consuming(bound({"*": handler}), "host-3", trail=trail("host-3")):
            await asyncio.sleep(6)
            await r.admin.update(SLOW, state=State.PAUSED)
            await asyncio.sleep(3)
            await r.admin.update(SLOW, state=State.ACTIVE)
            for name in (LOG, SORTED):
                await dead_letters.replay(r.store, await r.catalog.get(name), trail=told, clock=r.clock)
        await r.admin.update(LOG, qps=100)
        await publishing
        later = [await r.producer.publish(LOG, f"later {n}", delay_ms=60_000) for n in range(20)]
        await recall(r.store, await r.catalog.get(LOG), later, told, r.clock)
        names = (LOG, SLOW, SORTED)
        await asyncio.sleep(5)
        for _ in range(200):
            if not sum([await r.lag(name) for name in names]):
                break
            await asyncio.sleep(0.5)
        assert not sum([await r.lag(name) for name in names])


async def _publish(r: Rig) -> None:
    for second in range(SECONDS):
        for n in range(A_SECOND):
            i = second * A_SECOND + n
            await r.producer.publish(
                LOG,
                f"order {i}",
                key=f"k{i % 50}" if n % 2 else None,
                priority=("high", "low")[i % 3 > 0],
                delay_ms=700 if n % 10 == 0 and not n % 2 else None,
                ttl_s=0.4 if n % 16 == 0 else None,
            )
            if n % 3 == 0:
                await r.producer.publish(SLOW, f"mail {i}", key=f"m{i % 5}")
            await r.producer.publish(SORTED, f"sum {i % 300}", delay_ms=100)
            await asyncio.sleep(1 / A_SECOND)
