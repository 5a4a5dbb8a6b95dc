"""Waits for what a host does: each has a limit, and ends when the host ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import psutil

from bench.cluster.crew import InvalidRun


class Waits(NamedTuple):
    """The limits of the waits for one host; can be passed to another process.

    Attributes:
        pid: the process of the host.
        patience_s: most seconds of one wait.
    """

    pid: int
    patience_s: float

    async def until(self, is_done: Callable[[], Awaitable[bool]], look_s: float, wanted: str) -> None:
        """Look every `look_s` until it is done.

        Args:
            wanted: what is waited for, for the error.

        Raises:
            InvalidRun: the host has ended, or the wait took longer than `patience_s`.
        """
        deadline = time.monotonic() + self.patience_s
        while not await is_done():
            if _has_ended(self.pid):
                raise InvalidRun(f"the host ended before {wanted}")
            if time.monotonic() > deadline:
                raise InvalidRun(f"waited {self.patience_s:g} s in vain until {wanted}; give more --patience")
            await asyncio.sleep(look_s)


def _has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
