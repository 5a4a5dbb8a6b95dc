"""What a host did is proved from its records: with debts, failures, changes of the pool, and a stop in between."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import msgspec

import emq
from emq_scheduling.hosting.attempts import Run
from emq_scheduling.model import Limit, Pool, Resource, TaskType
from emq_scheduling.pools import editing
from emq_scheduling.records.verifying import Proof, verify
from emq_scheduling.scheduling import Scheduling
from emq_scheduling.submission import Receipt, Submission
from emq_scheduling.tasks import Task
from support.waiting import until

CODES = 120
TAKES = {"code": {}, "notice": {"tokens": 4.0}}
POOL = Pool(
    "sms",
    resources={
        "acme": Resource(limits=(Limit("requests", 60, "second"), Limit("slots", 12, "in_flight"))),
        "acme-1": Resource("acme", (Limit("requests", 30, "second"), Limit("tokens", 60, "second")), TAKES),
        "acme-2": Resource("acme", (Limit("requests", 20, "second"), Limit("tokens", 3000, "minute")), TAKES),
    },
    types={
        "code": TaskType(priority=0, duration_s=0.05, backoff_s=(0.2,)),
        "notice": TaskType(priority=1, duration_s=0.05),
    },
)


class Work:
    """Performs tasks: some fail at first, some use more or less than they were charged."""

    def __init__(self) -> None:
        self.starts: Counter[str] = Counter()
        self.done: set[str] = set()

    async def perform(self, task: Task, run: Run) -> bytes:
        self.starts[task.id] += 1
        number = int(task.payload)
        await asyncio.sleep(0.02 * (number % 4))
        run.used(tokens=run.charged["tokens"] * (0.25, 1, 3)[number % 3] if "tokens" in run.charged else 0.0)
        if task.type == "code" and number % 10 == 3 and task.attempt == 1:
            raise ValueError("the line was busy")
        self.done.add(task.id)
        return task.payload


async def host(path: Path, work: Work, tasks: list[Submission], until_done: int, change: bool = False) -> Proof:
    """Run a host on the pool until so many tasks are done; return the proof from its records."""
    app = emq.App(f"sqlite:///{path}/emq.db")
    scheduling = Scheduling(app)
    scheduling.performer("sms")(work.perform)
    async with app:
        if tasks:
            await scheduling.pools.put(POOL)
            outcomes = await scheduling.submit_many("sms", tasks)
            assert all(isinstance(each, Receipt) for each in outcomes)
        async with app.running():
            if change:
                await until(lambda: len(work.done) >= until_done // 2)
                slower = ["limits.requests=8", "limits.tokens=30"]
                await scheduling.pools.change("sms", lambda p: editing.changed(p, "resource", "acme-1", slower))
            await until(lambda: len(work.done) >= until_done)
        return await verify(app.database, "online", "sms")


async def test_a_host_that_is_stopped_and_started_again_keeps_within_every_limit(tmp_path: Path) -> None:
    work = Work()
    tasks = [Submission("code", str(i)) for i in range(CODES)] + [Submission("notice", str(i)) for i in range(CODES)]
    first = await host(tmp_path, work, tasks, CODES, change=True)
    assert first.holds
    proof = await host(tmp_path, work, [], 2 * CODES)
    assert proof.over_s == 0, [msgspec.structs.asdict(each) for each in proof.limits if each.over_s]
    assert (proof.ended_twice, proof.unproven) == (0, 0)
    assert proof.attempts == sum(work.starts.values()) > 2 * CODES
    assert proof.outcomes["done"] == 2 * CODES
    told = {f"{each.limit}/{each.per} of {each.resource}": each for each in proof.limits}
    # The crowd used the tightest limit fully, so the proof has something to hold against it.
    assert max(each.peak / each.amount for each in told.values()) == 1
    assert told["slots/in_flight of acme"].peak > 1
