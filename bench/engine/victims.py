"""Victims (tenants beside whom others misbehave): when their messages come, publishing these, comparing their waits."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import emq
from bench.support.figures import percentile

Noise = Callable[[emq.App], Awaitable[None]]
"""A function that publishes the disturbing messages."""


def arrivals(victims: int, rate_per_s: float, seconds: float, seed: int) -> Iterator[tuple[float, str]]:
    """Yield messages at random times, each for a random victim: (seconds from the start, tenant)."""
    random_, at = random.Random(seed), 0.0
    while (at := at + random_.expovariate(rate_per_s)) < seconds:
        yield at, f"tenant-{random_.randrange(victims)}"


async def publish(
    url: str, database: str, arrivals: Iterable[tuple[float, str]], noise: Noise | None
) -> dict[str, float]:
    """Publish one message for each arrival (seconds from the start, tenant), and the noise beside them.

    Returns the planned time of each publish by message id, even if this process was late.
    """
    began: dict[str, float] = {}
    async with emq.App(url, database=database) as app:
        await app.producer.refresh()
        start = time.monotonic()

        async def one(tenant: str, at: float) -> None:
            id_ = await app.publish(tenant, b"x" * 100)
            began[id_] = start + at

        async def disturb(noise: Noise) -> None:
            await noise(app)

        async with asyncio.TaskGroup() as tasks:
            if noise is not None:
                tasks.create_task(disturb(noise))
            for at, tenant in arrivals:
                if (delay := start + at - time.monotonic()) > 0:
                    await asyncio.sleep(delay)
                tasks.create_task(one(tenant, at))
    return began


def waits_ms(began: dict[str, float], ended: dict[str, float]) -> list[float]:
    """Return the milliseconds from beginning to end of all that ended, by id."""
    return [(ended[id_] - at) * 1000 for id_, at in began.items() if id_ in ended]


class Waits:
    """The waits of all rounds, in milliseconds, without (False) and with (True) the trouble."""

    def __init__(self) -> None:
        self._p50: dict[bool, list[float]] = {False: [], True: []}
        self._p99: dict[bool, list[float]] = {False: [], True: []}

    def add(self, is_troubled: bool, waits: list[float]) -> None:
        """Add the waits of half a round."""
        self._p50[is_troubled].append(percentile(waits, 50))
        self._p99[is_troubled].append(percentile(waits, 99))

    def compared(self) -> dict[str, Any]:
        ratios = sorted(b / a for a, b in zip(self._p99[False], self._p99[True], strict=True))
        half = len(ratios) // 2
        return {
            "victim_p99_ratio": ratios[half],
            "ratio_min": ratios[0],
            "ratio_max": ratios[-1],
            "p99_without_ms": sorted(self._p99[False])[half],
            "p99_with_ms": sorted(self._p99[True])[half],
            "p50_without_ms": sorted(self._p50[False])[half],
            "p50_with_ms": sorted(self._p50[True])[half],
        }
