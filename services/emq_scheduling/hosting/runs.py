"""The tasks that run on this host."""

from __future__ import annotations

import asyncio
import itertools

from emq_scheduling.hosting.attempts import Placement, Run, Running
from emq_scheduling.hosting.silence import Silence
from emq_scheduling.limits.accounts import Charge
from emq_scheduling.tasks import Task


class Runs(dict[Charge, Running]):
    """The running tasks by charge, in the order of their starts."""

    def __init__(self) -> None:
        super().__init__()
        self._silence = Silence[Charge]()

    def watch(self, charge: Charge, run: Run, within_s: float) -> None:
        """Cancel a task that begins to run once it has not beaten for this long."""
        self._silence.watch(charge, run, within_s)

    def cancel(self) -> None:
        """Cancel all, since the host lets go of them."""
        for running in self.values():
            if not running.timeout.expired():
                running.is_cancelled = True
                _cancel(running)

    def cancel_silent(self) -> None:
        """Cancel those that have not beaten for too long; call it often."""
        for charge in self._silence.look():
            running = self[charge]
            if not running.timeout.expired():
                running.is_silent = True
                _cancel(running)

    def started_before(self, at: float) -> list[tuple[Task, Placement]]:
        """Return the tasks that started before that time and still run."""
        early = itertools.takewhile(lambda running: running.placement.at < at, self.values())
        return [(running.task, running.placement) for running in early]


def _cancel(running: Running) -> None:
    running.timeout.reschedule(asyncio.get_running_loop().time())
