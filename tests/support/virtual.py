"""Runs tests in the virtual time of `emq_testing`: seconds of hosting in milliseconds."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from emq_testing import LoopClock, VirtualLoop

__all__ = ["LoopClock", "VirtualLoop", "run", "virtual"]

P = ParamSpec("P")
T = TypeVar("T")

LONGEST_S = 3_600.0
"""Seconds of virtual time after which a test counts a scenario as hanging."""


def virtual(test: Callable[P, Coroutine[Any, Any, None]], least_s: float = 0.0) -> Callable[P, None]:
    """Run an asynchronous test in virtual time. No threads: a loop that waits for one would jump past its timers.

    Args:
        least_s: seconds by which time goes on in each round of the loop, also if nothing waits.
    """

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(LONGEST_S):
                await test(*args, **kwargs)

        with asyncio.Runner(loop_factory=functools.partial(VirtualLoop, least_s)) as runner:
            runner.run(bounded())

    return run


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, in virtual time, which goes on by a nanosecond if nothing waits."""
    with asyncio.Runner(loop_factory=functools.partial(VirtualLoop, 1e-9)) as runner:
        return runner.run(main)
