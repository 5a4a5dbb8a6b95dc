"""The first start of a host in a pool in which tasks of very many tenants wait, and the use of its limit from then on.

Each tenant has the same number of tasks. The app is open before, so `first_start_s` is the time from the start of its
host to the first task.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import psutil

from bench.scheduling import rig
from bench.scheduling.counting import overshoot
from bench.support.stage import Stage
from emq_scheduling.hosting.attempts import Run
from emq_scheduling.model import Limit, Pool, Resource, TaskType
from emq_scheduling.submission import Submission
from emq_scheduling.tasks import Task

KIND, NAME = "call", "bench"
RATE = 200.0
"""Tasks a second of the one resource."""

LOOK_S = 0.01
WARM_S = 3
MOST_S = 600.0
"""Most seconds until the first start."""


async def fill(url: str, database: str, tenants: int, tasks: int) -> float:
    """Submit tasks of all tenants in turns; return how long it took, in seconds."""
    began = time.monotonic()
    async with rig.submitting(url, database) as scheduling:
        for first in range(0, tasks, rig.BATCH):
            numbers = range(first, min(tasks, first + rig.BATCH))
            some = [Submission(KIND, rig.PAYLOAD, f"tenant-{number % tenants}") for number in numbers]
            await rig.accepted(scheduling, NAME, some)
    return time.monotonic() - began


async def run(stage: Stage, *, tenants: int, tasks: int, seconds: int) -> dict[str, Any]:
    resource = Resource(limits=(Limit("requests", RATE, "second"),), takes={KIND: {}}, adapts=False)
    pool = Pool(NAME, resources={"r": resource}, types={KIND: TaskType(duration_s=0.001)})

    async def work(task: Task, run: Run) -> None:
        pass

    async with rig.opened(stage, pool, work) as opened:
        stage.say(f"submitting {tasks:,} tasks of {tenants:,} tenants")
        submit_s = await stage.elsewhere(fill, stage.url, stage.database, tenants, tasks)
        process = psutil.Process()
        bare = process.memory_info().rss
        stage.say("starting the host")
        began = time.monotonic()
        async with opened.app.running(), asyncio.timeout(None) as limit:
            limit.reschedule(asyncio.get_running_loop().time() + MOST_S)
            while not opened.starts:
                await asyncio.sleep(LOOK_S)
            limit.reschedule(None)
            first_start_s = time.monotonic() - began
            begin = opened.next_second(WARM_S)
            await opened.until(begin + seconds)
            host_mb = (process.memory_info().rss - bare) / 1e6
        count = sum(begin <= start.at < begin + seconds for start in opened.starts)
    return {
        "first_start_s": first_start_s,
        "utilisation": count / seconds / RATE,
        "overshoot": overshoot(pool, opened.starts),
        "submitted_per_s": tasks / submit_s,
        "host_mb": host_mb,
    }
