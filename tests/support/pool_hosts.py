"""Hosts that perform the tasks of one pool, and what ran on them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import emq
from emq_scheduling import Run, Scheduling, Submission, Task
from emq_scheduling.outcomes import Overloaded, ResourceFailed
from emq_scheduling.submission import Receipt
from support.meeting import Meeting


class Ran:
    """Every attempt that ran, of all hosts of a test.

    Attributes:
        took_s: seconds that an attempt takes.
        began, done: ids of tasks.
        keys: payloads by key, in the order of their starts.
        hosts, resources: attempts by host, and by resource.
        running: attempts under way, by host.
        most_running: most attempts that were under way at the same time.
        broken, tired: resources that fail, and that ask for less.
    """

    def __init__(self, took_s: float) -> None:
        self.took_s = took_s
        self.began: list[str] = []
        self.done: list[str] = []
        self.keys: dict[str, list[bytes]] = {}
        self.hosts: Counter[str] = Counter()
        self.resources: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        self.most_running = 0
        self.broken: set[str] = set()
        self.tired: set[str] = set()
        self._seconds: Counter[tuple[str, int]] = Counter()

    async def perform(self, task: Task, run: Run, host: str) -> None:
        self.began.append(task.id)
        self.hosts[host] += 1
        self.resources[run.resource] += 1
        self._seconds[run.resource, int(run.at)] += 1
        if task.key is not None:
            self.keys.setdefault(task.key, []).append(task.payload)
        if run.resource in self.broken:
            raise ResourceFailed("the line is dead")
        if run.resource in self.tired:
            raise Overloaded("429", after_s=3)
        self.running[host] += 1
        self.most_running = max(self.most_running, self.running.total())
        try:
            await asyncio.sleep(self.took_s)
        finally:
            self.running[host] -= 1
        self.done.append(task.id)

    def most(self, *resources: str) -> int:
        """Return the most starts that the limits counted in a second on these resources together."""
        together: Counter[int] = Counter()
        for (resource, second), count in self._seconds.items():
            if resource in resources:
                together[second] += count
        return max(together.values(), default=0)


class PoolHosts:
    """Hosts that share a store and a database, each with the performer of one pool."""

    def __init__(self, meeting: Meeting, pool: str, took_s: float = 0.02) -> None:
        self.meeting = meeting
        self.pool = pool
        self.ran = Ran(took_s)

    @contextlib.asynccontextmanager
    async def app(self, host: str, drain_s: float = 10.0) -> AsyncIterator[tuple[emq.App, Scheduling]]:
        app = self.meeting.app(host, "", drain_s=drain_s)
        scheduling = Scheduling(app)

        @scheduling.performer(self.pool)
        async def perform(task: Task, run: Run) -> None:
            await self.ran.perform(task, run, host)

        async with app:
            yield app, scheduling


async def submitted(scheduling: Scheduling, pool: str, tasks: Sequence[Submission]) -> list[str]:
    """Submit tasks, of which none may be refused; return their ids."""
    outcomes = await scheduling.submit_many(pool, tasks)
    accepted = [outcome.id for outcome in outcomes if isinstance(outcome, Receipt)]
    assert len(accepted) == len(outcomes), [each for each in outcomes if not isinstance(each, Receipt)][:1]
    return accepted
