"""Victims (tenants beside whom others misbehave): publish their messages, and compare their waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import emq

Noise = Callable[[emq.App, float], Awaitable[None]]
"""A function that publishes the disturbing messages, from the given start (`time.monotonic()`) on."""


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
            await noise(app, start)

        async with asyncio.TaskGroup() as tasks:
            if noise is not None:
                tasks.create_task(disturb(noise))
            for at, tenant in arrivals:
                if (delay := start + at - time.monotonic()) > 0:
                    await asyncio.sleep(delay)
                tasks.create_task(one(tenant, at))
    return began


def compared(p50: dict[bool, list[float]], p99: dict[bool, list[float]]) -> dict[str, Any]:
    """Compare the waits in milliseconds by round, without (False) and with the noise (True)."""
    ratios = sorted(b / a for a, b in zip(p99[False], p99[True], strict=True))
    half = len(ratios) // 2
    return {
        "victim_p99_ratio": ratios[half],
        "ratio_min": ratios[0],
        "ratio_max": ratios[-1],
        "p99_without_ms": sorted(p99[False])[half],
        "p99_with_ms": sorted(p99[True])[half],
        "p50_without_ms": sorted(p50[False])[half],
        "p50_with_ms": sorted(p50[True])[half],
    }
