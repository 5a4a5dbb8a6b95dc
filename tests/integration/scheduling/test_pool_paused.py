"""A host that is stopped beyond its lease while its tasks run: what it does with them when it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from emq_scheduling import Limit, Pool, Resource, Scheduling, Submission, TaskType
from emq_scheduling.records.records import Records
from emq_scheduling.records.verifying import verify
from support import meeting, pool_host_process
from support.python_path import python_path
from support.waiting import until

ROOT = Path(__file__).parents[3]

SLOTS = 6
POOL = Pool(
    "jobs",
    resources={"r": Resource(limits=(Limit("slots", SLOTS, "in_flight"),), takes={"job": {}})},
    types={"job": TaskType()},
)


class Receipt(NamedTuple):
    at: float
    what: str
    host: str
    task: str


class Hosts:
    """Hosts of the pool, each a process."""

    def __init__(self, url: str, directory: Path, took_s: float) -> None:
        self._url, self._took_s = url, took_s
        self._receipts = directory / "receipts"
        self._receipts.touch()
        self._log = directory / "log"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        command = [sys.executable, pool_host_process.__file__, self._url, name, str(self._receipts), str(self._took_s)]
        with self._log.open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, stderr=log, env={**os.environ, "PYTHONPATH": python_path(ROOT)}
            )

    def signal(self, name: str, number: int) -> None:
        os.kill(self.processes[name].pid, number)

    def receipts(self, what: str) -> list[Receipt]:
        lines = (line.split() for line in self._receipts.read_text().splitlines())
        found = (Receipt(float(at), what, host, task) for at, what, host, task in lines)
        return [receipt for receipt in found if receipt.what == what]

    def running(self, name: str) -> int:
        mine = [receipt for what in ("begins", "done", "stopped") for receipt in self.receipts(what)]
        return sum(1 if r.what == "begins" else -1 for r in mine if r.host == name)

    @contextlib.contextmanager
    def ended(self) -> Iterator[None]:
        try:
            yield
        finally:
            for process in self.processes.values():
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()


@pytest.mark.parametrize("took_s", [1.5, 30.0])
async def test_a_host_that_was_stopped_ends_its_calls_and_refuses_their_results(
    fresh_postgres: str, tmp_path: Path, took_s: float
) -> None:
    made = meeting.on_postgres(fresh_postgres)
    hosts = Hosts(made.store, tmp_path, took_s)
    app = made.app("watcher", "")
    scheduling = Scheduling(app)
    async with app:
        await scheduling.pools.put(POOL)
        with hosts.ended():
            hosts.start("a")
            await until(lambda: "is scheduled on this host" in (tmp_path / "log").read_text(), 30)
            hosts.start("b")
            await asyncio.sleep(2.0)
            await scheduling.submit_many("jobs", [Submission("job", b"")] * 3 * SLOTS)
            await until(lambda: hosts.running("a") == SLOTS, 30)
            hosts.signal("a", signal.SIGSTOP)
            stopped = {receipt.task for receipt in hosts.receipts("begins")} - {
                receipt.task for receipt in hosts.receipts("done")
            }
            await until(lambda: hosts.running("b") == SLOTS, 40)
            went_on = time.time()
            hosts.signal("a", signal.SIGCONT)
            await until(lambda: hosts.running("a") == 0, 5)
            assert (
                max(r.at for what in ("done", "stopped") for r in hosts.receipts(what) if r.host == "a") < went_on + 1
            )
            if took_s < 10:
                await until(lambda: {r.task for r in hosts.receipts("done") if r.host == "b"} >= stopped, 60)
                await asyncio.sleep(1.0)
                found = await verify(app.database, "online", "jobs")
                assert (found.ended_twice, found.over_s) == (0, 0)
                records = Records(app.database, "online")
                for task in stopped:
                    status = await records.find("jobs", task)
                    assert status is not None
                    assert [each.result for each in status.attempts if each.outcome == "done"] == [b'"b"']
