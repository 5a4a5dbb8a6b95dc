"""Chats beside a batch without end under limits longer than a second: their waits, and the use of the limit.

Each case runs twice: a limit of 600 a minute on a host, and all limits, also of an hour, through the real matching and
accounts on a virtual clock. Chats come at random times.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from bench.scheduling import rig
from bench.scheduling.counting import Start, overshoot
from bench.scheduling.replay import Replay
from bench.support.figures import percentile
from bench.support.stage import Stage
from emq_scheduling.hosting.attempts import Run
from emq_scheduling.model import PERIODS_S, Limit, Pool, Resource, TaskType
from emq_scheduling.pools import rules
from emq_scheduling.tasks import Task

CHAT, BATCH = "chat", "batch"
PERIODS = 3.2
"""Length of a case on the virtual clock, in periods."""

LAST_S = 6.0
"""Time in which the last chat of a run on a host may start."""


class Case(NamedTuple):
    """A limit, and the chats that come in a second."""

    name: str
    limit: Limit
    chats_per_s: float


LIVE = Case("live", Limit("requests", 600, "minute"), 0.5)
CASES = (
    Case("minute", Limit("requests", 600, "minute"), 0.5),
    Case("hour", Limit("requests", 3_600, "hour"), 0.1),
    Case("minute_calendar", Limit("requests", 600, "minute", "calendar"), 0.5),
    Case("hour_calendar", Limit("requests", 3_600, "hour", "calendar"), 0.1),
    Case("minute_bucket", Limit("requests", 600, "minute", "bucket", 50), 0.5),
)


def pool_of(case: Case) -> Pool:
    """Return the pool of a case."""
    types = {CHAT: TaskType(priority=0, duration_s=0.001), BATCH: TaskType(priority=2, duration_s=0.001)}
    model = Resource(limits=(case.limit,), takes={kind: {} for kind in types}, adapts=False)
    pool = Pool(f"bench-{case.name.replace('_', '-')}", resources={"model": model}, types=types)
    rules.check(pool)
    return pool


class Found(NamedTuple):
    """What a case did.

    Attributes:
        p99_s: of the waits of the chats.
        first_s: longest wait of the first five.
        use: part of the limit that was used, from its first full period on.
        over: units above the limit.
    """

    p99_s: float
    first_s: float
    use: float
    over: float


def found(case: Case, waits: Sequence[float], starts: Sequence[Start], begin: float, end: float) -> Found:
    """Return what a case did between two times; the first period, in which the window fills, is left out of the use."""
    period_s = PERIODS_S[case.limit.per]
    since = begin + 1.1 * period_s
    used = sum(since <= each.at < end for each in starts)
    use = used / (case.limit.amount * (end - since) / period_s)
    return Found(percentile(waits, 99), max(waits[:5], default=0.0), use, overshoot(pool_of(case), starts))


def replayed(case: Case) -> Found:
    """Run a case on the virtual clock."""
    seconds, at = PERIODS * PERIODS_S[case.limit.per], 1e9 + 0.37
    batch = round(case.limit.amount * (PERIODS + 2))
    replay = Replay(pool_of(case), {BATCH: batch}, {CHAT: case.chats_per_s}, at)
    waits = list(replay.run(seconds).waits[CHAT])
    return found(case, waits, replay.starts(), at, at + seconds)


async def live(stage: Stage, case: Case, seconds: int) -> Found:
    """Run a case on a host."""
    pool, began = pool_of(case), dict[str, float]()

    async def work(task: Task, run: Run) -> None:
        if task.type == CHAT:
            began[task.id] = time.monotonic()

    async with rig.opened(stage, pool, work) as opened:
        batch = round(case.limit.amount * (seconds / PERIODS_S[case.limit.per] + 2))
        await stage.elsewhere(rig.fill, stage.url, stage.database, pool.name, {(BATCH, ""): batch})
        async with rig.running(opened):
            await opened.started()
            begin = opened.starts[0].at
            stage.say(f"{case.name}: {case.limit.amount:g} a {case.limit.per} for {seconds} s")
            due = await stage.elsewhere(
                rig.singles, stage.url, stage.database, pool.name, CHAT, case.chats_per_s, seconds - LAST_S
            )
            await opened.until(begin + seconds)
    waits = [began.get(id_, float("inf")) - at for id_, at in due.items()]
    return found(case, waits, opened.starts, begin, begin + seconds)


async def run(stage: Stage, *, seconds: int) -> dict[str, Any]:
    told = {LIVE.name: await live(stage, LIVE, seconds)}
    for case in CASES:
        stage.say(f"{case.name}, on a virtual clock")
        told[case.name] = await asyncio.to_thread(replayed, case)
    return {
        "urgent_p99_s": max(each.p99_s for each in told.values()),
        "urgent_first_s": max(each.first_s for each in told.values()),
        "use_percent": 100.0 * min(each.use for each in told.values()),
        "overshoot": sum(each.over for each in told.values()),
        **{f"{name}_p99_s": each.p99_s for name, each in told.items()},
        **{f"{name}_use_percent": 100.0 * each.use for name, each in told.items()},
    }
