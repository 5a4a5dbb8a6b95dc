"""What comes at a steady rate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator


async def steadily(rate_per_s: float, seconds: float, tick_s: float) -> AsyncIterator[int]:
    """Yield every `tick_s` how many have become due since the last time, if any, for so many seconds from now on."""
    start, sent = time.monotonic(), 0
    while (elapsed := time.monotonic() - start) < seconds:
        if due := int(elapsed * rate_per_s) - sent:
            sent += due
            yield due
        await asyncio.sleep(tick_s)
