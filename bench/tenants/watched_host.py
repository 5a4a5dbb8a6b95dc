"""A host process as its benchmark sees it: when it was ready, and its memory and CPU by the operating system."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator

import psutil

from bench.cluster.crew import Crew, InvalidRun
from bench.support.stage import Stage
from bench.tenants.waits import Waits
from emq.runtime import plurals

LOOK_S = 0.05
CALM_S = 3.0
"""Seconds between a host's last work and a measurement: the end of the work, such as a checkpoint, is none of it."""


class WatchedHost:
    """One host process at a time on the store and the catalog of a stage; see `watched`.

    Attributes:
        starts: the file of all starts, see `bench.tenants.starts`.
        start_s: seconds from the start of the process until it had acquired its groups.
        groups: how many these were.
        waits: the limits of waits for the host that was started last.
    """

    def __init__(self, stage: Stage, crew: Crew, patience_s: float) -> None:
        self._patience_s = patience_s
        self._crew = crew
        self._places = {"store": stage.url, "database": stage.database}
        self.starts = stage.directory / "starts"
        self._ready = stage.directory / "ready"
        self.start_s, self.groups = 0.0, 0

    async def start(self, groups: int = 0) -> None:
        """Start the host; return when it has acquired its groups and read all queues once.

        Args:
            groups: how many these are.

        Raises:
            InvalidRun: the process has ended, or all this took longer than `--patience`.
        """
        self._ready.unlink(missing_ok=True)
        began_s = time.monotonic()
        self._host = self._crew.start(
            {**self._places, "starts": str(self.starts), "ready": str(self._ready), "groups": groups}
        )
        self._process = psutil.Process(self._host.pid)
        self.waits = Waits(self._host.pid, self._patience_s)
        await self.waits.until(self._is_ready, LOOK_S, "it was ready")
        found = json.loads(self._ready.read_text())
        self.start_s, self.groups = found["ready_s"] - began_s, found["groups"]

    async def _is_ready(self) -> bool:
        self.check()
        return self._ready.exists()

    def check(self) -> None:
        """Raise `InvalidRun` if the process has ended."""
        self._host.check()

    async def stop(self) -> None:
        await self._host.stop()

    @property
    def rss_bytes(self) -> int:
        self.check()
        return int(self._process.memory_info().rss)

    async def idle_cpu_percent(self, seconds: float) -> float:
        """Return the CPU that the process uses for some seconds once it is calm, in percent of a core."""
        await asyncio.sleep(CALM_S)
        before, watched_from = self._cpu_s(), time.monotonic()
        await asyncio.sleep(seconds)
        self.check()
        return (self._cpu_s() - before) / (time.monotonic() - watched_from) * 100

    def must_have(self, groups: int) -> None:
        """Raise `InvalidRun` unless the host has acquired this many groups."""
        if self.groups != groups:
            raise InvalidRun(f"the host acquired {plurals.count(self.groups, 'group')} instead of {groups}")

    def _cpu_s(self) -> float:
        used = self._process.cpu_times()
        return used.user + used.system


@contextlib.contextmanager
def watched(stage: Stage, patience_s: float) -> Iterator[WatchedHost]:
    """Give a host that is not started yet; no process outlives the block."""
    with Crew("bench.tenants.host_process", stage.directory) as crew:
        try:
            yield WatchedHost(stage, crew, patience_s)
        except InvalidRun:
            for host in crew.hosts:
                if not host.stopped:
                    host.check()  # if it has ended, the end of its log says why
            raise
