"""What runs in each API process beside its requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from emq.push.service.reconciling import Sweep
from emq.push.service.replay_runner import ReplayRunner
from emq.push.service.service import PushService


@contextlib.asynccontextmanager
async def running(service: PushService) -> AsyncIterator[None]:
    """Carry out replays and sweep old deliveries for the length of a block."""
    runner, sweep = ReplayRunner(service.parts), Sweep(service.parts)
    service.replays.on_ready = runner.wake
    loops = {"emq replays": runner.run, "emq sweep": sweep.run}
    tasks = [asyncio.create_task(loop(), name=name) for name, loop in loops.items()]
    try:
        yield
    finally:
        service.replays.on_ready = lambda: None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
