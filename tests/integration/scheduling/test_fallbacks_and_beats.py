"""A host that is killed while tasks run: the next one goes on at the fallback and at the step where they were."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import emq
from emq_scheduling import KeyLimit, Limit, Pool, Resource, Run, Scheduling, Submission, Task, TaskType
from emq_scheduling.records.progress import Progress
from emq_scheduling.records.verifying import verify
from support import beating_host_process, meeting
from support.python_path import python_path
from support.waiting import until

ROOT = Path(__file__).parents[3]
TASKS = 4

POOL = Pool(
    "models",
    types={"large": TaskType(max_attempts=1), "small": TaskType(max_attempts=1, timeout_s=None, beats_within_s=3.0)},
    resources={
        "refuses": Resource(limits=(Limit("calls", 3, "in_flight"),), takes={"large": {}}),
        "works": Resource(limits=(Limit("calls", TASKS, "in_flight"),), takes={"small": {}}),
        "never": Resource(limits=(Limit("calls", 5, "in_flight"),), takes={"small": {}}),
    },
    limits={"smalls": KeyLimit("tenant", TASKS, "in_flight", types=("small",))},
)


class Line(NamedTuple):
    host: str
    what: str
    task: str
    resource: str
    step: int


class Hosts:
    def __init__(self, url: str, directory: Path) -> None:
        self._url = url
        self._receipts = directory / "receipts"
        self._receipts.touch()
        self.log = directory / "log"
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, beating_host_process.__file__, self._url, name, str(self._receipts)]
        with self.log.open("ab") as log:
            made = subprocess.Popen(command, stderr=log, env={**os.environ, "PYTHONPATH": python_path(ROOT)})
        self.processes.append(made)
        return made

    def lines(self, host: str, what: str) -> list[Line]:
        found = (line.split() for line in self._receipts.read_text().splitlines())
        lines = (Line(*rest, int(step)) for *rest, step in found)
        return [line for line in lines if (line.host, line.what) == (host, what)]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "stopped"])
async def test_the_next_host_goes_on_where_the_tasks_of_the_last_one_were(
    fresh_postgres: str, tmp_path: Path, killed: bool
) -> None:
    made = meeting.on_postgres(fresh_postgres)
    hosts = Hosts(made.store, tmp_path)
    app = made.app("watcher", "")
    scheduling = Scheduling(app)
    async with app:
        await scheduling.pools.put(POOL)
        try:
            first = hosts.start("a")
            await until(lambda: "is scheduled on this host" in hosts.log.read_text(), 30)
            tries = ["large@refuses", "small@works", "small@never"]
            submissions = [Submission("large", b"", "acme", tries=tries) for _ in range(TASKS)]
            receipts = await scheduling.submit_many("models", submissions)
            ids = {receipt.id for receipt in receipts}  # type: ignore[union-attr]
            await until(lambda: len([line for line in hosts.lines("a", "step") if line.step >= 20]) >= TASKS, 30)
            async with asyncio.timeout(10):
                while (shown := await scheduling.status("models", next(iter(ids)))).state != "running":
                    await asyncio.sleep(0.05)  # until the record of an attempt that takes long is written
            assert shown.progress[:8] == b'{"step":'
            first.send_signal(signal.SIGKILL if killed else signal.SIGTERM)
            first.wait()
            reached = {line.task: line.step for line in hosts.lines("a", "step")}
            hosts.start("b")
            ended = await asyncio.gather(*(scheduling.result("models", id_, timeout_s=60) for id_ in ids))
            assert {each.state for each in ended} == {"done"}
            starts = hosts.lines("b", "begins")
            assert {line.task for line in starts} == ids
            assert {line.resource for line in starts} == {"works"}, "the first entry is not tried again"
            least = 20 - 2.5 / beating_host_process.STEP_S if killed else 20  # about a second is lost at a crash
            assert all(max(least, 1) <= line.step <= reached[line.task] for line in starts)
            found = await verify(app.database, "online", "models")
            assert (found.ended_twice, found.over_s, found.unproven) == (0, 0, 0)
            await asyncio.sleep(2.0)
            assert not await Progress(app.database, "online").of("models", ids), "no row is left once they have ended"
        finally:
            hosts.end()


@pytest.mark.parametrize("ends", ["cancelled", "expired"])
async def test_nothing_is_left_of_what_a_task_told_that_ends_while_it_waits_in_the_store(
    tmp_path: Path, ends: str
) -> None:
    app = emq.App(f"sqlite:///{tmp_path}/emq.db")
    scheduling = Scheduling(app)

    @scheduling.performer("p")
    async def perform(task: Task, run: Run) -> None:
        run.beat("here")
        raise ValueError("not yet")

    resource = Resource(limits=(Limit("calls", 1, "in_flight"),), takes={"t": {}})
    kind = TaskType(backoff_s=(3.0,), ttl_s=2.0 if ends == "expired" else None)
    async with app:
        await scheduling.pools.put(Pool("p", resources={"r": resource}, types={"t": kind}))
        progress = Progress(app.database, "online")

        async def is_any() -> bool:
            return await progress.is_any("p")

        async with app.running():
            receipt = await scheduling.submit("p", "t", b"")
            await until(is_any, 20)
            if ends == "cancelled":
                await scheduling.cancel("p", receipt.id)

            async def is_over() -> bool:
                return (await scheduling.status("p", receipt.id)).state == ends and not await is_any()

            await until(is_over, 20)
