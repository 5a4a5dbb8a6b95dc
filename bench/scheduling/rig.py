"""An app with a pool, a performer that notes each start, and the other side: a process that submits."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

import emq
from bench.scheduling.counting import Start
from bench.support.pacing import steadily
from bench.support.stage import Stage
from emq.host import garbage_collection
from emq_scheduling.hosting.attempts import Run
from emq_scheduling.model import Pool
from emq_scheduling.scheduling import Scheduling
from emq_scheduling.submission import Receipt, Submission
from emq_scheduling.tasks import Task

PAYLOAD = b"x" * 100
BATCH = 2_000
"""Tasks in one `submit_many`."""

TICK_S = 0.05
SETTLE_S = 2.0
"""Seconds in which a host takes the pool over."""

Work = Callable[[Task, Run], Awaitable[None]]


class Rig:
    """One pool on an app.

    Attributes:
        starts: all starts, in the order in which their performers began.
        begun: attempts by task id.
        done: attempts that ended well, by task id.
    """

    def __init__(self, app: emq.App, scheduling: Scheduling, pool: Pool) -> None:
        self.app = app
        self.scheduling = scheduling
        self.pool = pool
        self.starts: list[Start] = []
        self.begun: Counter[str] = Counter()
        self.done: Counter[str] = Counter()

    async def until(self, at: float) -> None:
        """Wait until a time of the app's clock, in seconds since the epoch."""
        while (left_s := at - self.app.clock.now()) > 0:
            await asyncio.sleep(left_s)

    def next_second(self, after_s: float = 0.0) -> float:
        """Return the beginning of the first whole second after so many seconds."""
        return math.ceil(self.app.clock.now() + after_s)

    async def started(self) -> None:
        """Wait until a task has started."""
        while not self.starts:
            await asyncio.sleep(0.05)

    async def drained(self, count: int, most_s: float) -> None:
        """Wait until so many tasks are done, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                while len(self.done) < count:
                    await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def opened(stage: Stage, pool: Pool, work: Work | None = None) -> AsyncIterator[Rig]:
    """Open an app with the pool in its catalog; `running` schedules it.

    Args:
        work: what a task does; None to sleep for as long as its type takes.
    """
    app = stage.app()
    rig = Rig(app, Scheduling(app), pool)

    async def perform(task: Task, run: Run) -> None:
        rig.starts.append(Start(run.at, task.type, run.resource))
        rig.begun[task.id] += 1
        await (_sleep(pool, task) if work is None else work(task, run))
        rig.done[task.id] += 1

    rig.scheduling.performer(pool.name)(perform)
    async with app:
        await rig.scheduling.pools.put(pool)
        yield rig


@contextlib.asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[None]:
    """Run a host that schedules the pool. It collects garbage as `emq host` does."""
    async with rig.app.running():
        await asyncio.sleep(SETTLE_S)
        garbage_collection.shorten_pauses()
        yield


async def _sleep(pool: Pool, task: Task) -> None:
    await asyncio.sleep(pool.types[task.type].duration_s)


@contextlib.asynccontextmanager
async def submitting(url: str, database: str) -> AsyncIterator[Scheduling]:
    """Open an app of its own that only submits."""
    app = emq.App(url, database=database)
    scheduling = Scheduling(app)
    async with app:
        yield scheduling


async def singles(
    url: str,
    database: str,
    pool: str,
    kind: str,
    per_s: float,
    seconds: float,
    seed: int = 1,
    tenants: Sequence[str] = ("",),
) -> dict[str, float]:
    """Submit single tasks of random tenants at random times; return by id when each was due, by the monotonic clock.

    One of each tenant comes before these, so that the process has read the pool.
    """
    random_, due = random.Random(seed), dict[str, float]()
    async with submitting(url, database) as scheduling, asyncio.TaskGroup() as sending:

        async def submit(tenant: str) -> str:
            return (await scheduling.submit(pool, kind, PAYLOAD, tenant=tenant)).id

        async def submit_at(at: float) -> None:
            due[await submit(random_.choice(tenants))] = at

        for tenant in tenants:
            await submit(tenant)
        start = at = time.monotonic() + 0.5
        while (at := at + random_.expovariate(per_s)) < start + seconds:
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            sending.create_task(submit_at(at))
    return due


async def steady(
    url: str, database: str, pool: str, kinds: Sequence[str], rate_per_s: float, seconds: float
) -> list[str]:
    """Submit tasks of some types in turns at that rate in all; return their ids."""
    ids: list[str] = []
    async with submitting(url, database) as scheduling:
        async for due in steadily(rate_per_s, seconds, TICK_S):
            tasks = [Submission(kinds[(len(ids) + i) % len(kinds)], PAYLOAD) for i in range(due)]
            ids += await accepted(scheduling, pool, tasks)
    return ids


async def fill(url: str, database: str, pool: str, counts: Mapping[tuple[str, str], int]) -> list[str]:
    """Submit so many tasks by (type, tenant); return their ids."""
    async with submitting(url, database) as scheduling:
        ids: list[str] = []
        for (kind, tenant), count in counts.items():
            for first in range(0, count, BATCH):
                some = [Submission(kind, PAYLOAD, tenant)] * min(BATCH, count - first)
                ids += await accepted(scheduling, pool, some)
        return ids


async def accepted(scheduling: Scheduling, pool: str, tasks: Sequence[Submission]) -> list[str]:
    """Submit tasks; return their ids. Raises the first error."""
    ids = []
    for outcome in await scheduling.submit_many(pool, tasks):
        if not isinstance(outcome, Receipt):
            raise outcome
        ids.append(outcome.id)
    return ids
