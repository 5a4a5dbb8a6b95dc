"""Tenants whose tasks cost 1 to 3,000 units, with weights from 1 to 10: their shares, and the use of the limit.

All tenants have a backlog. Each case has an app and a pool of its own. The shares of charged units are compared with
the weights in each ten seconds of the watching, wherever these begin.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from bench.scheduling import rig
from bench.support.stage import Stage
from emq_scheduling.hosting.attempts import Run
from emq_scheduling.model import Limit, Pool, Resource, TaskType, Tenant
from emq_scheduling.pools import rules
from emq_scheduling.submission import Submission
from emq_scheduling.tasks import Task

KIND = "call"
WINDOW_S = 10
STEP_S = 0.5
WARM_S = 6
SPARE_S = 20
"""Seconds of backlog beyond those of the warm-up and of the watching."""

Used = tuple[float, str, float]
"""When a task started, its tenant, and the tokens that it was charged."""


class Case(NamedTuple):
    """A pool that allows `tokens` a second.

    Attributes:
        below: tokens a second of each resource below a parent with the limit; none for one resource alone.
        tenants: by name, weight, least and most tokens of a task.
    """

    name: str
    tokens: float
    below: tuple[float, ...]
    tenants: Mapping[str, tuple[float, int, int]]


CASES = (
    Case("small-beside-large", 300.0, (), {"a": (1.0, 1, 1), "b": (3.0, 10, 10)}),
    Case("one-to-ten", 600.0, (), {f"t{number}": (11.0 - number, number, number) for number in range(1, 11)}),
    Case("nested", 30_000.0, (12_000.0,) * 4, {"a": (1.0, 1, 100), "b": (3.0, 1, 3_000), "c": (2.0, 3_000, 3_000)}),
)


def pool_of(case: Case) -> Pool:
    """Return the pool of a case."""
    limits = (Limit("tokens", case.tokens, "second"),)
    resources = {"all": Resource(limits=limits, takes={} if case.below else {KIND: {}}, adapts=False)}
    for number, tokens in enumerate(case.below):
        resources[f"r{number}"] = Resource("all", (Limit("tokens", tokens, "second"),), {KIND: {}}, adapts=False)
    tenants = {name: Tenant(weight) for name, (weight, _, _) in case.tenants.items()}
    pool = Pool(f"bench-{case.name}", resources=resources, types={KIND: TaskType(duration_s=0.001)}, tenants=tenants)
    rules.check(pool)
    return pool


async def fill(url: str, database: str, pool: str, case: Case, seconds: float) -> int:
    """Submit the backlogs of all tenants for so many seconds; return the number of tasks."""
    chance, count = random.Random(1), 0
    total = sum(weight for weight, _, _ in case.tenants.values())
    async with rig.submitting(url, database) as scheduling:
        for name, (weight, least, most) in case.tenants.items():
            number = math.ceil(seconds * case.tokens * weight / total / ((least + most) / 2))
            tasks = [
                Submission(KIND, rig.PAYLOAD, name, costs={"tokens": float(chance.randint(least, most))})
                for _ in range(number)
            ]
            for first in range(0, number, rig.BATCH):
                count += len(await rig.accepted(scheduling, pool, tasks[first : first + rig.BATCH]))
    return count


async def watched(stage: Stage, case: Case, seconds: int) -> dict[str, float]:
    """Run a case."""
    pool, used = pool_of(case), list[Used]()

    async def work(task: Task, run: Run) -> None:
        used.append((run.at, task.tenant, run.charged["tokens"]))

    async with rig.opened(stage, pool, work) as opened:
        count = await stage.elsewhere(
            fill, stage.url, stage.database, pool.name, case, float(WARM_S + seconds + SPARE_S)
        )
        stage.say(f"{case.name}: {count:,} tasks of {len(case.tenants)} tenants, for {WARM_S + seconds} s")
        async with rig.running(opened):
            await opened.started()
            begin = opened.next_second(WARM_S)
            await opened.until(begin + seconds)
    return figures({name: weight for name, (weight, _, _) in case.tenants.items()}, case.tokens, used, begin, seconds)


def figures(
    weights: Mapping[str, float], tokens: float, used: Iterable[Used], begin: float, seconds: int
) -> dict[str, float]:
    """Return how far the shares are off the weights, and how much of the limit was used.

    share_error: of the worst tenant in the worst ten seconds, as a part of all units; 0.01 is one point.
    use_percent: of the limit, in the whole watching.
    over: units above the limit, in all seconds of the clock.
    """
    seen = [each for each in used if begin <= each[0] < begin + seconds]
    total, worst = sum(weights.values()), 0.0
    for step in range(int((seconds - WINDOW_S) / STEP_S) + 1):
        since = begin + step * STEP_S
        units: Counter[str] = Counter()
        for at, tenant, cost in seen:
            if since <= at < since + WINDOW_S:
                units[tenant] += cost  # type: ignore[assignment]
        of_all = max(1.0, units.total())
        worst = max(worst, *(abs(units[name] / of_all - weight / total) for name, weight in weights.items()))
    by_second: Counter[int] = Counter()
    for at, _, cost in seen:
        by_second[int(at)] += cost  # type: ignore[assignment]
    return {
        "share_error": worst,
        "use_percent": 100.0 * sum(cost for _, _, cost in seen) / (tokens * seconds),
        "over": sum(max(0.0, units - tokens) for units in by_second.values()),
    }


async def run(stage: Stage, *, seconds: int) -> dict[str, Any]:
    found = [await watched(stage, case, seconds) for case in CASES]
    worst = max(each["share_error"] for each in found)
    return {
        "share_error": worst,
        "share_error_points": 100.0 * worst,
        "use_percent": min(each["use_percent"] for each in found),
        "overshoot": sum(each["over"] for each in found),
        **{
            f"{case.name.replace('-', '_')}_points": 100.0 * each["share_error"]
            for case, each in zip(CASES, found, strict=True)
        },
    }
