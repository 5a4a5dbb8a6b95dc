"""A quarter of the resources fail and return, while tasks come at a part of the capacity.

Half of the failing ones say that they are out of order (`ResourceFailed`); the others refuse connections, as any
exception of a performer says, so that their tasks are tried again after the first `backoff_s`.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from bench.scheduling import pools, rig
from bench.scheduling.counting import overshoot
from bench.scheduling.optimum import most_work
from bench.support.stage import Stage
from emq_scheduling.hosting.attempts import Run
from emq_scheduling.model import Pool
from emq_scheduling.outcomes import ResourceFailed
from emq_scheduling.tasks import Task

LOAD = 0.5
"""Part of the optimum at which tasks come, in units; the other resources can do all of it."""

BEFORE_S = 8.0
LONGEST_S = 60.0
"""Seconds that the tasks are waited for at the end."""

AT_FIRST_S = 2.0
"""Tasks that fail later than this after the failure are probes of closed resources."""

OFTEN = 3
"""Starts in a second on a failing resource that are more than a probe."""


class Failing:
    """Performs tasks; some resources fail between two times of the monotonic clock."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        takers = [name for name, resource in pool.resources.items() if resource.takes]
        self.names = {name: number % 2 == 0 for number, name in enumerate(takers[::4])}
        self.since = self.until = float("inf")
        self.failed: dict[str, float] = {}
        self.moved: dict[str, float] = {}
        self.back: dict[str, float] = {}
        self.tried: list[float] = []

    async def work(self, task: Task, run: Run) -> None:
        now = time.monotonic()
        if run.resource in self.names and self.since <= now < self.until:
            self.failed.setdefault(task.id, now)
            self.tried.append(now)
            if self.names[run.resource]:
                raise ResourceFailed
            raise ConnectionRefusedError("nobody listens")
        await asyncio.sleep(self._pool.types[task.type].duration_s)
        if task.id in self.failed:
            self.moved[task.id] = time.monotonic()
        if run.resource in self.names and now >= self.until:
            self.back.setdefault(run.resource, now)

    def noticed_s(self) -> float:
        """Return the seconds from the failure until the failing resources got nothing but probes."""
        seconds: dict[int, int] = {}
        for at in self.tried:
            second = int(at - self.since)
            seconds[second] = seconds.get(second, 0) + 1
        busy = [second for second, count in seconds.items() if count > OFTEN * len(self.names)]
        last = max(busy, default=-1)
        return max((at - self.since for at in self.tried if int(at - self.since) == last), default=0.0)


async def run(stage: Stage, *, resources: int, seconds: float) -> dict[str, Any]:
    pool = pools.overlapping(resources)
    failing = Failing(pool)
    rate = most_work(pool) * LOAD / (sum(pools.SIZES) / len(pools.SIZES))
    async with rig.opened(stage, pool, failing.work) as opened, rig.running(opened):
        lasts_s = BEFORE_S + 3 * seconds
        stage.say(f"{rate:,.0f} tasks a second; {len(failing.names)} of {resources} resources fail for {seconds:g} s")
        submitting = asyncio.create_task(
            stage.elsewhere(rig.steady, stage.url, stage.database, pool.name, [*pool.types], rate, lasts_s)
        )
        await opened.started()
        await asyncio.sleep(BEFORE_S)
        failing.since, failing.until = time.monotonic(), time.monotonic() + seconds
        await asyncio.sleep(seconds)
        stage.say("they are back")
        ids = await submitting
        await opened.drained(len(ids), LONGEST_S)
        moves = [(at, failing.moved[id_] - at) for id_, at in failing.failed.items() if id_ in failing.moved]
        return {
            "moved_s": max((took_s for at, took_s in moves if at < failing.since + AT_FIRST_S), default=0.0),
            "probes_moved_s": max((took_s for at, took_s in moves if at >= failing.since + AT_FIRST_S), default=0.0),
            "noticed_s": failing.noticed_s(),
            "back_s": max((at - failing.until for at in failing.back.values()), default=0.0),
            "not_back": len(failing.names) - len(failing.back),
            "lost": sum(id_ not in opened.done for id_ in ids),
            "done_twice": sum(count - 1 for count in opened.done.values()),
            "overshoot": overshoot(pool, opened.starts),
            "failed_attempts": len(failing.tried),
            "tasks": len(ids),
        }
