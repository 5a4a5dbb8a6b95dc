"""What the parent of host processes does when one of them fails again and again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from emq.runtime.settings import Settings
from emq_cli import supervisor
from support.waiting import until


@contextlib.asynccontextmanager
async def supervising(parent: supervisor.Supervisor, begun: Callable[[], bool]) -> AsyncIterator[None]:
    """Runs the parent; yields once that is so, with the parent still there; it must end when the body has."""
    running = asyncio.create_task(parent.run())
    await until(begun)
    assert not running.done()
    yield
    await asyncio.wait_for(running, 10)


@pytest.mark.parametrize("failure", [None, BlockingIOError(11, "Resource temporarily unavailable")])
async def test_a_process_that_fails_or_cannot_be_started_is_started_for_ever_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, failure: OSError | None
) -> None:
    monkeypatch.setattr(supervisor, "BACKOFF_S", (0.001,))
    parent, starts, ended = supervisor.Supervisor(Settings(), 2), [0, 0], []
    stopped = asyncio.Event()

    async def run_child(index: int) -> int:
        starts[index] += 1
        if index == 0:
            if failure is not None:
                raise failure
            return 1
        await stopped.wait()
        ended.append(index)
        return 0

    monkeypatch.setattr(parent, "_run_child", run_child)
    async with supervising(parent, begun=lambda: starts[0] >= 50):
        assert starts[1] == 1
        assert not ended
        parent._stop()
        stopped.set()
