"""Rests that end together: at the points of one grid, never later than asked for, and never at once."""

from __future__ import annotations

import asyncio

import pytest

from emq.runtime import pace
from support.virtual import virtual

pytestmark = virtual


@pytest.mark.parametrize("seconds", [0.25, 0.5, 0.8, 1.0, 1.25, 60.0])
async def test_rests_end_at_the_points_of_one_grid(seconds: float) -> None:
    now = asyncio.get_running_loop().time
    await pace.rest(1.0)
    first = now()
    for late_s in (0.0, 0.003, 0.2, 0.249, 0.0):
        await asyncio.sleep(late_s)
        began = now()
        await pace.rest(seconds)
        assert seconds - pace.GRID_S < now() - began <= seconds + pace.EARLY * pace.GRID_S
        assert now() - began > 0
        assert (now() - first) / pace.GRID_S == pytest.approx(round((now() - first) / pace.GRID_S), abs=1e-6)


async def test_a_rest_that_is_shorter_than_the_grid_is_kept() -> None:
    now = asyncio.get_running_loop().time
    await asyncio.sleep(0.1)
    began = now()
    await pace.rest(0.05)
    assert now() - began == pytest.approx(0.05)


async def test_loops_that_rest_for_different_times_wake_together() -> None:
    now, woken = asyncio.get_running_loop().time, set[float]()

    async def loop(seconds: float, begins_s: float) -> None:
        await asyncio.sleep(begins_s)
        while now() < 20:
            await pace.rest(seconds)
            woken.add(round(now(), 3))

    await asyncio.gather(loop(0.5, 0.01), loop(1.0, 0.17), loop(1.25, 0.33), loop(2.0, 0.49))
    assert len(woken) <= 20 / pace.GRID_S + 1
