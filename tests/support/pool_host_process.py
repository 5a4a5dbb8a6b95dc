"""A host of the pool "jobs" in a process of its own: `python pool_host_process.py URL NAME RECEIPTS TOOK_S`.

Each call of its performer writes two lines into RECEIPTS, each by a single write: the time, "begins", "done" or
"stopped", the host and the task.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from pathlib import Path

import emq
from emq.runtime.settings import Settings
from emq_scheduling import Run, Scheduling, Task

SESSION_S = 4.0


async def main(url: str, name: str, receipts: Path, took_s: float) -> None:
    app = emq.App(options=Settings(store=url, host_name=name, session_timeout_s=SESSION_S))
    scheduling = Scheduling(app)

    def note(what: str, task: Task) -> None:
        with receipts.open("a") as file:
            file.write(f"{time.time()} {what} {name} {task.id}\n")

    @scheduling.performer("jobs")
    async def perform(task: Task, run: Run) -> str:
        note("begins", task)
        try:
            await asyncio.sleep(took_s)
        except asyncio.CancelledError:
            note("stopped", task)
            raise
        note("done", task)
        return name

    async with app:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, app.stop)
        await app.run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), float(sys.argv[4])))
