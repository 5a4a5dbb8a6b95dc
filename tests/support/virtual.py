"""Runs tests in the virtual time of `emq_testing`: seconds of hosting in milliseconds."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from emq_testing import VirtualLoop

__all__ = ["LoopClock", "VirtualLoop", "loop_of", "run", "virtual"]

T = TypeVar("T")

LONGEST_S = 3_600.0
"""Seconds of virtual time after which a test counts a scenario as hanging."""

virtual = pytest.mark.virtual
"""Marks a test, or with `pytestmark = virtual` all tests of a file, that runs in virtual time with its fixtures.

No threads: a loop that waits for one would jump past its timers. The argument `least_s` is that of `VirtualLoop`.
"""


class LoopClock:
    """The running loop's time, as seconds since the epoch.

    Args:
        base_s: the time, in seconds since the epoch, at which the loop's own time is 0; None for a quarter second into
            the present second.
    """

    def __init__(self, base_s: float | None = None) -> None:
        self._base = int(time.time()) + 0.25 if base_s is None else base_s
        self._loop = asyncio.get_running_loop()

    def now(self) -> float:
        return self._base + self._loop.time()

    def now_us(self) -> int:
        return int(self.now() * 1e6)

    def passed_us(self) -> int:
        return self.now_us()

    def at_us(self, passed_us: int) -> int:
        return passed_us


def loop_of(test: pytest.Item) -> asyncio.AbstractEventLoop:
    """Make the event loop of a test. A virtual one stops a test that hangs, which then fails."""
    mark = test.get_closest_marker("virtual")
    if mark is None:
        return asyncio.new_event_loop()
    loop = VirtualLoop(**mark.kwargs)
    loop.call_later(LONGEST_S, loop.stop)
    return loop


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, in virtual time, which goes on by a nanosecond if nothing waits."""
    with asyncio.Runner(loop_factory=functools.partial(VirtualLoop, 1e-9)) as runner:
        return runner.run(main)
