"""An event loop whose time jumps to the next timer, and a clock that follows it: seconds of hosting in milliseconds."""

from __future__ import annotations

import asyncio
import functools
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LONGEST_S = 3_600.0
"""Seconds of virtual time after which a test counts a scenario as hanging."""


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, least_s: float) -> None:
        super().__init__()
        self.now = 0.0
        self._least_s = least_s

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if not found:
            if timeout is None:
                raise RuntimeError("everything waits and no timer is set: this would hang for ever")
            self.now += max(timeout, self._least_s)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """Args:
    least_s: how far time jumps at least, so that nobody waits for ever for a rounding error of time to pass.
    """

    def __init__(self, least_s: float = 0.0) -> None:
        self._jumping = _JumpingSelector(least_s)
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


class LoopClock:
    """The running loop's time, as seconds since the epoch; it begins a quarter of a second into a second."""

    def __init__(self) -> None:
        self._base = int(time.time()) + 0.25
        self._loop = asyncio.get_running_loop()

    def now(self) -> float:
        return self._base + self._loop.time()

    def now_us(self) -> int:
        return int(self.now() * 1e6)

    def passed_us(self) -> int:
        return self.now_us()

    def at_us(self, passed_us: int) -> int:
        return passed_us


def virtual(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an asynchronous test in virtual time. No threads: a loop that waits for one would jump past its timers."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(LONGEST_S):
                await test(*args, **kwargs)

        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(bounded())

    return run


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, in virtual time, which goes on by a nanosecond if nothing waits."""
    with asyncio.Runner(loop_factory=functools.partial(VirtualLoop, 1e-9)) as runner:
        return runner.run(main)
