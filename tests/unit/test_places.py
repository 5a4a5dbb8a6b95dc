"""Places that many tenants share: tenants that hang from the start leave places to those nobody knows yet."""

from __future__ import annotations

import asyncio

import pytest
from support.virtual import virtual

from emq.places.places import Places


async def hang(places: Places, name: str) -> None:
    await places.take(name)
    await asyncio.sleep(10_000)


async def work(places: Places, name: str, took_s: list[float]) -> None:
    loop = asyncio.get_running_loop()
    asked_s = loop.time()
    taken_us = await places.take(name)
    took_s.append(loop.time() - asked_s)
    await asyncio.sleep(0.05)
    places.free(name, taken_us)


@pytest.mark.parametrize(("hung", "capacity"), [(2, 8), (20, 100), (80, 100), (60, 1_000)])
@virtual
async def test_tenants_that_hang_from_the_start_leave_places_to_unknown_ones(hung: int, capacity: int) -> None:
    places = Places(capacity)
    hanging = [asyncio.create_task(hang(places, f"hung.{i}")) for _ in range(100) for i in range(hung)]
    await asyncio.sleep(5)
    waits: list[float] = []
    for i in range(100):
        await work(places, f"well.{i % 10}", waits)
    assert max(waits) == 0.0
    for task in hanging:
        task.cancel()
    await asyncio.gather(*hanging, return_exceptions=True)
