"""Tenants with weights from 1 to 10 on one resource: their shares, and the wait of those who ask for little.

All tenants but `QUIET` have a backlog. The shares are counted over `seconds`. Tasks are whole, so a tenant may be one
task off its share. The quiet tenants submit single tasks at random times, fewer than their shares, once beside small
backlogs and once beside backlogs `LARGE` times as long. The resource does not adapt, so that a busy machine is not
taken for a slow resource.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from typing import Any

from bench.scheduling import rig
from bench.scheduling.counting import overshoot
from bench.support.figures import percentile
from bench.support.stage import Stage
from emq_scheduling.hosting.attempts import Run
from emq_scheduling.model import Limit, Pool, Resource, TaskType, Tenant
from emq_scheduling.pools import rules
from emq_scheduling.tasks import Task

KIND = "call"
QUIET = 20
QUIET_PER_S = 0.5
QUIET_WEIGHT = 10.0
"""Tasks a second of each quiet tenant, and its weight, which would allow it many more."""

LARGE = 5
WARM_S = 12
LAST_S = 10
"""Seconds after the watching in which the last tasks of quiet tenants must start."""

SPARE_S = 30
"""Seconds of backlog beyond those of the warm-up and of the watching."""


def pool_of(name: str, tenants: int, rate: float) -> Pool:
    """Return one resource, and tenants whose weights go from 1 to 10 again and again."""
    resource = Resource(limits=(Limit("requests", rate, "second"),), takes={KIND: {}}, adapts=False)
    known = {f"tenant-{number}": Tenant(float(number % 10 + 1)) for number in range(tenants)}
    known |= {f"quiet-{number}": Tenant(QUIET_WEIGHT) for number in range(QUIET)}
    pool = Pool(name, resources={"r": resource}, types={KIND: TaskType(duration_s=0.001)}, tenants=known)
    rules.check(pool)
    return pool


async def half(stage: Stage, pool: Pool, rate: float, seconds: int, times: int) -> dict[str, Any]:
    """Run with backlogs so many times as long as needed."""
    counts: Counter[str] = Counter()
    began: dict[str, float] = {}
    watched = [math.inf, math.inf]

    async def work(task: Task, run: Run) -> None:
        if task.tenant.startswith("quiet"):
            began[task.id] = time.monotonic()
        elif watched[0] <= run.at < watched[1]:
            counts[task.tenant] += 1

    weights = _weights(pool)
    each = rate * (WARM_S + seconds + SPARE_S) * times / sum(weights.values())
    async with rig.opened(stage, pool, work) as opened:
        backlog = {(KIND, name): math.ceil(each * weight) for name, weight in weights.items()}
        stage.say(f"submitting {sum(backlog.values()):,} tasks of {len(weights)} tenants")
        await stage.elsewhere(rig.fill, stage.url, stage.database, pool.name, backlog)
        async with rig.running(opened):
            await opened.started()
            watched[0] = opened.next_second(WARM_S)
            watched[1] = watched[0] + seconds
            stage.say(f"running for {WARM_S + seconds} s")
            due = await stage.elsewhere(
                rig.singles,
                stage.url,
                stage.database,
                pool.name,
                KIND,
                per_s=QUIET * QUIET_PER_S,
                seconds=WARM_S + seconds - 2.0,
                tenants=[f"quiet-{number}" for number in range(QUIET)],
            )
            await opened.until(watched[1])
            while due.keys() - began.keys() and opened.app.clock.now() < watched[1] + LAST_S:
                await asyncio.sleep(0.1)
        waits = [(began[id_] - at) * 1000 for id_, at in due.items() if id_ in began]
        return {
            "counts": counts,
            "waits": waits,
            "unstarted": len(due) - len(waits),
            "overshoot": overshoot(pool, opened.starts),
        }


def shares(pool: Pool, counts: Counter[str]) -> dict[str, float]:
    """Return how far the starts are off the weights.

    share_error: of the worst tenant: tasks beyond one task off its share, as a part of the share.
    tasks_off: of the worst tenant.
    """
    total, weights = sum(counts.values()), _weights(pool)
    share = {name: total * weight / sum(weights.values()) for name, weight in weights.items()}
    off = {name: abs(counts[name] - share[name]) for name in share}
    return {
        "share_error": max(max(0.0, off[name] - 1.0) / share[name] for name in share),
        "tasks_off": max(off.values()),
    }


def _weights(pool: Pool) -> dict[str, float]:
    """Return the weights of the tenants with a backlog."""
    return {name: tenant.weight for name, tenant in pool.tenants.items() if not name.startswith("quiet")}


async def run(stage: Stage, *, tenants: int, rate: float, seconds: int) -> dict[str, Any]:
    halves = []
    for times in (1, LARGE):
        pool = pool_of(f"bench-{times}", tenants, rate)
        halves.append((pool, await half(stage, pool, rate, seconds, times)))
    errors = [shares(pool, found["counts"]) for pool, found in halves]
    p99 = [percentile(found["waits"], 99) for _, found in halves]
    return {
        **{name: max(each[name] for each in errors) for name in errors[0]},
        "quiet_p99_ratio": p99[1] / p99[0],
        "quiet_p99_wait_ms": p99[1],
        "quiet_p99_small_ms": p99[0],
        "unstarted": sum(found["unstarted"] for _, found in halves),
        "overshoot": sum(found["overshoot"] for _, found in halves),
        "starts_per_s": sum(halves[0][1]["counts"].values()) / seconds,
    }
