"""Cuts long work on the event loop into slices, so that messages and heartbeats wait only for one slice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

SLICE = 100
"""Groups acquired, changed or forgotten in one slice (some milliseconds); then the event loop may run other tasks. A
number, not a time, so that a simulation takes the same course each time."""

Item = TypeVar("Item")


async def in_slices(items: Iterable[Item], size: int = SLICE) -> AsyncIterator[Item]:
    """Yield the items one after the other; after every `size` items, let the event loop run other tasks.

    These tasks may have changed the state behind the items: check an item again before you act on it.
    """
    for n, item in enumerate(list(items), 1):
        yield item
        if n % size == 0:
            await asyncio.sleep(0)
