"""Rests of loops that end together, so that an idle process seldom wakes.

Each wake-up of a process that has slept costs some 0.1 ms, however little there is to do. So the loops of a process
rest until the points of one grid. Processes of one machine have different grids, and do not all wake at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import weakref

GRID_S = 0.25
"""Seconds between two points of the grid. A rest of less is kept as it is."""

EARLY = 0.01
"""Part of `GRID_S` by which timers may fire early; else the rest after such a timer would end at once."""

_begin: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, float] = weakref.WeakKeyDictionary()


def begin_anew() -> None:
    """Have the next rest in this event loop begin a grid, so that what follows does not depend on what was before."""
    _begin.pop(asyncio.get_running_loop(), None)


async def wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, at most as long as `rest` sleeps."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(end_of_rest(seconds)):
            await event.wait()


async def rest(seconds: float) -> None:
    """Sleep for `seconds`, or up to `GRID_S` less."""
    await asyncio.sleep(end_of_rest(seconds) - asyncio.get_running_loop().time())


def end_of_rest(seconds: float) -> float:
    """Return the event loop's time at which a rest ends that begins now: the last point of the grid in it."""
    loop = asyncio.get_running_loop()
    now = loop.time()
    if seconds < GRID_S:
        return now + seconds
    begin = _begin.setdefault(loop, now)
    passed = (now - begin) / GRID_S + EARLY
    return begin + max(math.floor(passed + seconds / GRID_S), math.floor(passed) + 1) * GRID_S
