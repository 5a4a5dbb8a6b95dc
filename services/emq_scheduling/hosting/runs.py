"""The tasks that run on this host."""

from __future__ import annotations

import asyncio
import itertools

from emq_scheduling.hosting.attempts import Placement, Run, Running
from emq_scheduling.hosting.silence import Silence
from emq_scheduling.limits.accounts import Charge
from emq_scheduling.tasks import Task


class Runs:
    """The running tasks by charge, in the order of their starts."""

    def __init__(self) -> None:
        self._runs: dict[Charge, Running] = {}
        self._silence = Silence[Charge]()

    def begin(self, running: Running, run: Run, beats_within_s: float | None) -> None:
        """A task begins to run; `beats_within_s` as its type has it."""
        charge = running.placement.charge
        self._runs[charge] = running
        if beats_within_s is not None:
            self._silence.watch(charge, run, beats_within_s)

    def end(self, charge: Charge) -> None:
        """A task has ended."""
        del self._runs[charge]
        self._silence.drop(charge)

    def cancel(self) -> None:
        """Cancel all, since the host lets go of them."""
        for running in self._runs.values():
            if not running.timeout.expired():
                running.is_cancelled = True
                _cancel(running)

    def cancel_silent(self) -> None:
        """Cancel those that have not beaten for too long; call it often."""
        for charge in self._silence.look():
            running = self._runs[charge]
            if not running.timeout.expired():
                running.is_silent = True
                _cancel(running)

    def started_before(self, at: float) -> list[tuple[Task, Placement]]:
        """Return the tasks that started before that time and still run."""
        early = itertools.takewhile(lambda running: running.placement.at < at, self._runs.values())
        return [(running.task, running.placement) for running in early]


def _cancel(running: Running) -> None:
    running.timeout.reschedule(asyncio.get_running_loop().time())
