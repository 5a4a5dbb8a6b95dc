"""Databases in memory that need no threads, so that virtual time does not have to wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self, TypeVar

from emq.database import Database
from emq.runtime.clock import Nanoseconds

T = TypeVar("T")


class InlineDatabase(Database):
    """A `Database` that does its work in the event loop; open it with the URL `sqlite://`."""

    async def _in_thread(self, work: Callable[[], T], timeout_s: float) -> T:
        return work()

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def close(self) -> None:
        self._closed = True
        self._engine.dispose()
        self._executor.shutdown()


class VirtualDatabase(InlineDatabase):
    """An `InlineDatabase` whose clock is a virtual one."""

    _wall_ns: Nanoseconds

    @classmethod
    async def open_by(cls, url: str, wall_ns: Nanoseconds) -> Self:
        """Open as `open` does; the database's clock tells `wall_ns`, nanoseconds since the epoch."""
        opened = await cls.open(url)
        opened._wall_ns = wall_ns
        return opened

    def clock_us(self, connection: object) -> int:
        return self._wall_ns() // 1000
