"""The event loops under which tests of faults run: asyncio's, and uvloop's, which hosts of `emq host` have.

They differ where connections break: uvloop answers a write to a closed connection with a bare RuntimeError.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an asynchronous test under each loop. Its fixtures must not be asynchronous."""

    @functools.wraps(test)
    def run(*args: Any, on_loop: str, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=LOOPS[on_loop]) as runner:
            runner.run(test(*args, **kwargs))

    signature = inspect.signature(test)
    parameter = inspect.Parameter("on_loop", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), parameter])  # type: ignore[attr-defined]
    return pytest.mark.parametrize("on_loop", sorted(LOOPS))(run)
