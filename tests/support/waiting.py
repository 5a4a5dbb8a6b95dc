"""Waiting in a test for what must come true."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any


async def until(holds: Callable[[], Any], timeout_s: float = 30.0, step_s: float = 0.005) -> Any:
    """Wait until `holds` returns something true, and return it; fail the test if that takes longer than `timeout_s`.

    Args:
        holds: a function; what it returns is awaited where it is awaitable.
        step_s: seconds between two looks.
    """
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                found = holds()
                if inspect.isawaitable(found):
                    found = await found
                if found:
                    return found
                await asyncio.sleep(step_s)
    except TimeoutError:
        raise AssertionError(f"did not come true within {timeout_s:g} s") from None


async def turns(n: int) -> None:
    """Let the event loop make `n` turns."""
    for _ in range(n):
        await asyncio.sleep(0)
