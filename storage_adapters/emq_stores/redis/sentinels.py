"""Asks the sentinels for the master."""

from __future__ import annotations

import asyncio
from typing import Any

import redis.asyncio.sentinel


class OneAtATime(redis.asyncio.sentinel.Sentinel):
    """The driver's class, made safe for several connections that look for the master at once.

    The driver moves the sentinel that answered to the front of its list. If two connections do so at once, one sentinel
    stands in the list twice and another is dropped. Nobody asks or closes the dropped one again.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]
        self._asking = asyncio.Lock()

    async def discover_master(self, service_name: str) -> Any:
        """Return the host and port of the master, as the first sentinel that knows the master names it."""
        async with self._asking:
            return await super().discover_master(service_name)

    async def aclose(self) -> None:
        """Close the connections to the sentinels. The driver has this method since 8.1 only."""
        for sentinel in self.sentinels:
            await sentinel.aclose()
