"""Runs tests in the virtual time of `emq_testing`: seconds of hosting in milliseconds."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from emq_testing import LoopClock, VirtualLoop

__all__ = ["LoopClock", "VirtualLoop", "loop_of", "run", "virtual"]

T = TypeVar("T")

LONGEST_S = 3_600.0
"""Seconds of virtual time after which a test counts a scenario as hanging."""

virtual = pytest.mark.virtual
"""Marks a test, or with `pytestmark = virtual` all tests of a file, that runs in virtual time with its fixtures.

No threads: a loop that waits for one would jump past its timers. The argument `least_s` is that of `VirtualLoop`.
"""


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
