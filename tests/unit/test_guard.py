from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence

import pytest

from emq.runtime import errors
from emq.runtime.guard import Guard
from emq.runtime.troubles import Troubles, Unexpected
from emq.storage.answers import of_each
from support.virtual import virtual

pytestmark = virtual


async def test_a_loop_that_somebody_must_act_upon_ends() -> None:
    async def taken() -> None:
        raise errors.HostConflict("taken")

    with pytest.raises(errors.HostConflict):
        await Guard().keep("loop", taken)


async def test_a_cancelled_loop_ends_and_one_that_returns_starts_again(caplog: pytest.LogCaptureFixture) -> None:
    runs = []

    async def short() -> None:
        runs.append(1)

    guard = Guard()
    with caplog.at_level(logging.ERROR):
        [task] = guard.start({"short": short})
        await asyncio.sleep(60.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert 10 <= len(runs) <= 61
    assert guard.broken["short"] == len(runs)
    assert len(caplog.records) <= 2, "it is said once in a while"
    assert "'short'" in caplog.text


async def test_an_entry_that_breaks_its_call_is_sent_alone_and_its_neighbours_are_served() -> None:
    async def store(entries: Sequence[str]) -> Sequence[bool]:
        if "bad" in entries:
            raise TypeError("nobody expected this")
        return [True] * len(entries)

    troubles = Troubles("they wait")
    waiting, served, calls = ["a", "bad", "b", "c"], [], 0
    while len(served) < 3 and calls < 20:
        for part in troubles.apart(waiting, str):
            calls += 1
            call: Awaitable[Sequence[bool]] = store(part)
            for name, answer in zip(part, await of_each(call, len(part)), strict=True):
                if isinstance(answer, Unexpected):
                    troubles.failed(name, answer)
                else:
                    troubles.well(name)
                    served.append(name)
                    waiting = [w for w in waiting if w != name]
    assert served == ["a", "b", "c"]
    assert troubles.latest is not None
    assert troubles.latest.startswith("bad: TypeError")


async def test_a_loop_that_is_cancelled_from_within_starts_again() -> None:
    runs = []

    async def loop() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise asyncio.CancelledError
        await asyncio.Event().wait()

    guard = Guard()
    [task] = guard.start({"loop": loop})
    await asyncio.sleep(5)
    assert len(runs) == 2
    assert guard.broken["loop"] == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
