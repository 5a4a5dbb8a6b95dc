"""The sentinels, asked for the master."""

from __future__ import annotations

import asyncio
from typing import Any

import redis.asyncio.sentinel


class OneAtATime(redis.asyncio.sentinel.Sentinel):
    """As the driver's, for connections that look for the master all at once.

    The driver moves the sentinel that answered to the front of its list. Two that do so at once put one of them in
    twice and drop another, which is then neither asked again nor closed.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]
        self._asking = asyncio.Lock()

    async def discover_master(self, service_name: str) -> Any:
        """The host and port of the master, as the first sentinel says that knows one."""
        async with self._asking:
            return await super().discover_master(service_name)
