"""Two hosts that take turns with a pool every few seconds: no limit is exceeded, and every task is done once."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from emq_scheduling.hosting.attempts import Run
from emq_scheduling.model import Limit, Pool, Resource, TaskType
from emq_scheduling.scheduling import Scheduling
from emq_scheduling.submitting import Submission
from emq_scheduling.tasks import Task
from support import meeting

LIMITS = (
    Limit("jobs", 20, "second"),
    Limit("jobs", 1200, "minute"),
    Limit("jobs", 200, "day"),
    Limit("slots", 8, "in_flight"),
)
TURN_S = 3.0
TURNS = 12


@pytest.fixture
def made(postgres_url: str) -> meeting.Meeting:
    return meeting.on_postgres(postgres_url)


async def test_no_limit_is_exceeded_while_two_hosts_take_turns(made: meeting.Meeting) -> None:
    seconds: Counter[int] = Counter()
    running: list[str] = []
    began: list[str] = []
    most = 0
    pool = Pool("jobs", resources={"r": Resource(limits=LIMITS, takes={"job": {}})}, types={"job": TaskType()})

    async def perform(task: Task, run: Run) -> None:
        nonlocal most
        seconds[int(run.at)] += 1
        began.append(task.id)
        running.append(task.id)
        most = max(most, len(running))
        try:
            await asyncio.sleep(0.2)
        finally:
            running.remove(task.id)

    apps = [made.app(name, "") for name in ("a", "b")]
    schedulings = [Scheduling(app) for app in apps]
    for each in schedulings:
        each.performer("jobs")(perform)
    async with apps[0], apps[1]:
        await schedulings[0].pools.put(pool)
        await schedulings[0].submit_many("jobs", [Submission("job", b"") for _ in range(250)])
        turns = 0
        while len(began) < 200 and turns < TURNS:
            async with apps[turns % 2].running():
                await asyncio.sleep(TURN_S)
            turns += 1
        async with apps[turns % 2].running():
            await asyncio.sleep(TURN_S)
    assert turns >= 2
    assert len(began) == 200, "the quota of the day, of which the turns lost nothing"
    assert len(set(began)) == len(began), "a host that stops lets its tasks end"
    assert max(seconds.values()) <= 20
    assert most <= 8
