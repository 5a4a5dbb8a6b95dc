"""Tasks with fallbacks under a scheduler on a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from emq_scheduling.fallbacks import Tries
from emq_scheduling.hosting import trying
from emq_scheduling.hosting.attempts import Run
from emq_scheduling.model import KeyLimit, Limit, Pool, Resource, TaskType
from emq_scheduling.tasks import Task
from support.scheduler_bench import SchedulerBench

MOST_S = 10.0
"""Seconds after which a task that does not start has failed the test."""

POOL = Pool(
    "models",
    types={
        "large": TaskType(costs={"tokens": 700}, max_attempts=2, ttl_s=1_000, backoff_s=(7.0,)),
        "small": TaskType(costs={"tokens": 50}, priority=3, max_attempts=3, backoff_s=(1.0, 2.0)),
    },
    resources={
        "a": Resource(limits=(Limit("calls", 1, "in_flight"), Limit("tokens", 10_000, "second")), takes={"large": {}}),
        "b": Resource(limits=(Limit("calls", 1, "in_flight"), Limit("tokens", 10_000, "second")), takes={"large": {}}),
        "c": Resource(limits=(Limit("calls", 5, "in_flight"), Limit("tokens", 10_000, "second")), takes={"small": {}}),
    },
    limits={"smalls": KeyLimit("tenant", 2, "in_flight", types=("small",))},
)


class Host(SchedulerBench):
    """A performer that does what `answers` say of each resource, under a scheduler on a manual clock."""

    def __init__(self, pool: Pool = POOL) -> None:
        super().__init__(pool, version=4)
        self.ran: list[tuple[str, str]] = []
        self.answers: dict[str, Callable[[], object]] = {}
        self.without: set[str] = set()

    async def _perform(self, task: Task, run: Run) -> object:
        self.ran.append((task.type, run.resource))
        found = self.answers.get(run.resource, lambda: f"by {run.resource}")()
        if asyncio.iscoroutine(found):
            return await found
        if isinstance(found, Exception):
            raise found
        return found

    def perform(self, task: Task) -> asyncio.Task[object]:
        def performer_of(kind: str) -> object:
            return None if kind in self.without else self._perform

        doing = trying.perform(task, performer_of, self.scheduler, self.clock, 0)  # type: ignore[arg-type]
        return asyncio.create_task(asyncio.wait_for(doing, MOST_S))


def task(*entries: str, id_: str = "t", attempt: int = 1, **fields: object) -> Task:
    given = {name: fields.pop(name) for name in ("patience_s", "at", "since", "former") if name in fields}
    tries = Tries(entries, **given)  # type: ignore[arg-type]
    at_us = 1_001_000_000
    return Task(id_, "models", tries.own_type, "acme", None, b"", attempt, at_us, tries=tries, **fields)  # type: ignore[arg-type]


async def again(running: asyncio.Task[object]) -> trying.Again:
    with pytest.raises(trying.Again) as found:
        await running
    return found.value


def held(host: Host, resource: str) -> asyncio.Event:
    """Let tasks on a resource run until the event is set."""
    freed = asyncio.Event()
    host.answers[resource] = freed.wait
    return freed
