"""Writes the records of one pool's attempts on its host."""

from __future__ import annotations

from emq_scheduling.hosting.attempts import Ended, encoded, record_of
from emq_scheduling.hosting.runs import Runs
from emq_scheduling.records.ends import RUNNING, EndLog, us

LONG_S = 1.0
"""Attempts that take longer are recorded as running."""


class AttemptRecords:
    """The records of attempts that run here, and of their ends.

    Args:
        ends: takes the records.
    """

    def __init__(self, ends: EndLog) -> None:
        self._ends = ends
        self._running: set[str] = set()

    def note_long(self, runs: Runs, now: float) -> None:
        """Record attempts that have run for a while as running, so that their status can be seen."""
        for task, placement in runs.started_before(now - LONG_S):
            if task.id not in self._running:
                self._running.add(task.id)
                self._ends.add(record_of(task, RUNNING, placement.version, placement=placement))

    async def ended(self, ended: Ended) -> None:
        """Record the end of an attempt; wait if too many records wait to be written."""
        task, placement = ended.task, ended.placement
        self._running.discard(task.id)
        self._ends.add(
            record_of(
                task,
                "failed" if ended.outcome in ("moved", "stopped") else ended.outcome,
                placement.version,
                placement=placement,
                ended_us=us(ended.at),
                actual=ended.actual or None,
                error=ended.error or "",
                result=encoded(ended.result),
                deadline_us=0 if task.deadline is None else us(task.deadline),
            )
        )
        if self._ends.is_full:
            await self._ends.room()
