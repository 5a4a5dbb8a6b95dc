"""A scheduler of a pool on a manual clock."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Self

from emq_scheduling.hosting.attempts import Ended
from emq_scheduling.hosting.beats import Beats
from emq_scheduling.hosting.scheduler import Scheduler
from emq_scheduling.model import Pool
from emq_scheduling.records.cancels import Remembered
from emq_scheduling.records.progress import Progress
from support.manual_clock import ManualClock


class SchedulerBench:
    """A scheduler on a manual clock, and the ends of its attempts.

    Attributes:
        is_held: whether the scheduler's host still owns the pool.
    """

    def __init__(self, pool: Pool, now: float = 1_000.0, version: int = 0, progress: Progress | None = None) -> None:
        self.ended: list[Ended] = []
        self.clock = ManualClock(now)
        self.cancels = Remembered()
        self.is_held = True
        self.scheduler = Scheduler(
            pool,
            self.clock,
            lambda: self.is_held,
            lambda: self.is_held,
            self._on_ended,
            version=version,
            cancels=self.cancels,
            beats=None if progress is None else Beats(progress, pool.name, self.clock),
        )
        self.clock.advance(1.0)

    async def _on_ended(self, ended: Ended) -> None:
        self.ended.append(ended)

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[Self]:
        yield self
        self.scheduler.close()
        await rest()


async def rest() -> None:
    """Let all that can go on go on."""
    for _ in range(20):
        await asyncio.sleep(0)
