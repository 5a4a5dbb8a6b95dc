"""Processes in one event loop: a stopped one executes nothing, and misses nothing."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from support.simulation.process import Process, SimulatedLoop


def simulated(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**given: Any) -> None:
        with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
            runner.run(test(**given))

    return run


class Ticking:
    """Counts seconds, in a task of a task."""

    def __init__(self, process: Process) -> None:
        self.ticks: list[float] = []
        self.woken = asyncio.Event()
        self.was_woken = False
        process.start(self._run())

    async def _run(self) -> None:
        await asyncio.gather(self._tick(), self._wait())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1)
            self.ticks.append(asyncio.get_running_loop().time())

    async def _wait(self) -> None:
        await self.woken.wait()
        self.was_woken = True


@simulated
async def test_a_stopped_process_does_nothing_and_goes_on_where_it_was() -> None:
    process, other = Process("a"), Process("b")
    stopped, running = Ticking(process), Ticking(other)
    await asyncio.sleep(2.5)
    process.stop()
    stopped.woken.set()
    await asyncio.sleep(10)
    assert stopped.ticks == [1.0, 2.0]
    assert not stopped.was_woken
    assert len(running.ticks) == 12
    process.go_on()
    await asyncio.sleep(0.1)
    assert stopped.was_woken
    assert stopped.ticks == [1.0, 2.0, 12.5]
    await asyncio.sleep(1)
    assert stopped.ticks == [1.0, 2.0, 12.5, 13.5]


@simulated
async def test_the_timers_of_a_machine_that_slept_stood_still() -> None:
    process, other = Process("a"), Process("b")
    asleep, awake = Ticking(process), Ticking(other)
    await asyncio.sleep(2.25)
    process.stop()
    await asyncio.sleep(10)
    process.wake(10)
    await asyncio.sleep(0.5)
    assert asleep.ticks == [1.0, 2.0]
    await asyncio.sleep(1)
    assert asleep.ticks == [1.0, 2.0, 13.0]
    assert awake.ticks == [float(second) for second in range(1, 14)]


@pytest.mark.parametrize("slept", [False, True])
@simulated
async def test_a_timer_that_ran_out_meanwhile_can_still_be_cancelled_by_what_came_before_it(slept: bool) -> None:
    process = Process("a")
    fired: list[str] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        later = loop.call_later(2, fired.append, "later")
        loop.call_later(1, later.cancel)
        await asyncio.sleep(3)
        fired.append("end")

    process.start(run())
    await asyncio.sleep(0.5)
    process.stop()
    await asyncio.sleep(10)
    if slept:
        process.wake(10)
    else:
        process.go_on()
    await asyncio.sleep(5)
    assert fired == ["end"]
