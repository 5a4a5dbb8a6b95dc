"""A host of the pool "models" in a process of its own: `python beating_host_process.py URL NAME RECEIPTS`.

Its performer sends each task on from the resource "refuses". Elsewhere it works for `STEPS` steps, beats after each,
and goes on where a former attempt was. It writes a line into RECEIPTS by a single write at each start and step: host,
what, task, resource, step.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path

import emq
from emq.runtime.settings import Settings
from emq_scheduling import Run, Scheduling, Task, TryNext

SESSION_S = 4.0
STEPS = 40
STEP_S = 0.1


async def main(url: str, name: str, receipts: Path) -> None:
    app = emq.App(options=Settings(store=url, host_name=name, session_timeout_s=SESSION_S, drain_s=1.0))
    scheduling = Scheduling(app)

    def note(what: str, task: Task, run: Run, step: int) -> None:
        with receipts.open("a") as file:
            file.write(f"{name} {what} {task.id} {run.resource} {step}\n")

    @scheduling.performer("models")
    async def perform(task: Task, run: Run) -> str:
        step = run.progress["step"] if run.progress else 0
        note("begins", task, run, step)
        if run.resource == "refuses":
            raise TryNext("it refuses the prompt")
        while step < STEPS:
            await asyncio.sleep(STEP_S)
            step += 1
            run.beat({"step": step})
            note("step", task, run, step)
        return name

    async with app:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, app.stop)
        await app.run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
