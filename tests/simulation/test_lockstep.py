"""Threads in virtual time: time passes for them as for all others, and each run is like the next."""

from __future__ import annotations

import asyncio

from emq.quota.places.threads import Threads
from simulation.test_process import simulated
from support.simulation import lockstep
from support.simulation.process import Process


@simulated
async def test_functions_sleep_in_virtual_time_side_by_side() -> None:
    loop, log = asyncio.get_running_loop(), list[tuple[float, str]]()

    def work(name: str) -> str:
        log.append((loop.time(), f"{name} begins"))
        lockstep.sleep(2.0 if name == "a" else 1.0)
        log.append((loop.time(), f"{name} ends"))
        return name

    with lockstep.in_lockstep() as threads:
        pool = Threads(2, "t")
        assert await asyncio.gather(*(pool.run(name, work, name) for name in "abc")) == ["a", "b", "c"]
        assert len(threads.threads) == 2
    begins = [(0.0, "a begins"), (0.0, "b begins")]
    assert log == [*begins, (1.0, "b ends"), (1.0, "c begins"), (2.0, "a ends"), (2.0, "c ends")]
    assert all(thread.is_over for thread in threads.threads)


@simulated
async def test_a_thread_of_a_stopped_process_stands_still() -> None:
    loop, ended = asyncio.get_running_loop(), list[float]()

    def work(_: object) -> None:
        lockstep.sleep(1.0)
        ended.append(loop.time())

    async def run() -> None:
        await Threads(1, "t").run("a", work, None)
        ended.append(loop.time())

    with lockstep.in_lockstep():
        process = Process("a")
        process.start(run())
        await asyncio.sleep(0.5)
        process.stop()
        await asyncio.sleep(5.0)
        assert ended == []
        process.go_on()
        await asyncio.sleep(0.1)
    assert ended == [5.5, 5.5]


@simulated
async def test_functions_that_never_return_end_with_the_simulation() -> None:
    with lockstep.in_lockstep() as threads:
        task = asyncio.create_task(Threads(1, "t").run("a", lambda _: lockstep.sleep(1e9), None))
        await asyncio.sleep(1.0)
        task.cancel()
    assert [thread.is_over for thread in threads.threads] == [True]
