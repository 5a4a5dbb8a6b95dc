"""Long work on the event loop, cut into slices, so that messages and heartbeats never wait for all of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

SLICE = 100
"""Groups that are taken, changed or forgotten before the event loop serves everybody else: some milliseconds. A number,
not a time, so that a simulation takes the same course each time."""

Item = TypeVar("Item")


async def in_slices(items: Iterable[Item], size: int = SLICE) -> AsyncIterator[Item]:
    """The items one after the other; after each `size` of them others get their turn on the event loop.

    What the items belong to may have changed by then: look again before you act on one.
    """
    for n, item in enumerate(list(items), 1):
        yield item
        if n % size == 0:
            await asyncio.sleep(0)
