"""Runs drivers: their processes, what these use, and what their handlers report."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import psutil

from bench.peers import field, servers
from bench.peers.field import Peer
from emq_servers.server import run_as

SLOTS = 1 << 14
"""Counters in the file in which handlers count; as in `bench.peers.drivers.common`."""

POLL_S = 0.005
STOP_S = 5.0


class DriverFailed(Exception):
    """A driver ended with an error, or said nothing; the text has the end of what it printed."""


class Use(NamedTuple):
    """What a tree of processes uses: CPU seconds since their start, and memory, of what they share a part each."""

    cpu_s: float
    memory_mb: float


class Place:
    """A fresh server, and a directory, for one piece of work of one peer; a context manager."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="emq-peers-")))
        self.server = self._stack.enter_context(servers.start(self.peer.server))
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def publish(self, **orders: Any) -> tuple[int, float]:
        """Publish; return how many messages, and in how many seconds. Raises `DriverFailed`."""
        with self.publishing(**orders) as driver:
            return driver.result()

    @contextlib.contextmanager
    def publishing(self, **orders: Any) -> Iterator[Driver]:
        """Publish beside the block. What still runs at its end is stopped."""
        with self._driver("publish", **orders) as driver:
            yield driver

    @contextlib.contextmanager
    def working(self, **orders: Any) -> Iterator[Driver]:
        """Run workers during the block; `counted` of the driver tells how many messages have begun."""
        with self._driver("work", **orders) as driver:
            yield driver

    @contextlib.contextmanager
    def _driver(self, role: str, **orders: Any) -> Iterator[Driver]:
        counter = self.directory / f"counter-{time.monotonic_ns()}"
        counter.write_bytes(bytes(SLOTS * 8))
        told = {
            "role": role,
            "url": self.server.url,
            "directory": str(self.directory),
            "processes": processes(),
            "counter": str(counter),
            **orders,
        }
        driver = Driver(self.peer, told, self.directory / f"{role}-{time.monotonic_ns()}.log")
        try:
            yield driver
        finally:
            driver.kill()


class Driver:
    """A driver's process group."""

    def __init__(self, peer: Peer, orders: dict[str, Any], log: Path) -> None:
        self._log = log
        self._peer = peer
        environment = dict(os.environ, PEERS_ORDERS=json.dumps(orders), PYTHONDONTWRITEBYTECODE="")
        environment["PYTHONPATH"] = os.pathsep.join([str(field.ROOT), *(sys.path if peer.is_emq else ())])
        environment["NODE_PATH"] = str(field.PLACE / "node" / "node_modules")
        command = [*run_as(None, "KILL"), *peer.command()]
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                command,
                env=environment,
                cwd=field.ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if orders["role"] == "publish" else errors,
                stderr=errors,
                start_new_session=True,
            )
        with open(orders["counter"], "r+b") as file:
            self._counters = memoryview(mmap.mmap(file.fileno(), SLOTS * 8)).cast("Q")

    def result(self, timeout_s: float = 300.0) -> tuple[int, float]:
        """Return what a publisher has published, and in how many seconds."""
        try:
            told, _ = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise DriverFailed(f"{self._peer.name} did not end publishing within {timeout_s:g} s") from None
        if self.process.returncode or not told.strip():
            raise DriverFailed(f"{self._peer.name} could not publish: {self.said()}")
        result = json.loads(told.splitlines()[-1])
        return int(result["published"]), float(result["published_s"])

    def counted(self) -> int:
        """Return how many messages have begun."""
        owned = min(self._counters[0], SLOTS - 1)
        return sum(self._counters[1 : owned + 1])

    def check(self) -> None:
        """Raise `DriverFailed` if the driver has ended."""
        if self.process.poll() is not None:
            raise DriverFailed(f"{self._peer.name} ended with status {self.process.returncode}: {self.said()}")

    def use(self) -> Use:
        return used_by(self.process.pid)

    def said(self) -> str:
        """Return the end of what the driver printed."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-3:])[-400:]

    def kill(self) -> None:
        """End all its processes at once, also those that have left its process group. Safe to repeat."""
        family = []
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(self.process.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(family, STOP_S)
        self.process.wait(STOP_S)
        if self.process.stdout is not None:
            self.process.stdout.close()


def used_by(pid: int) -> Use:
    """Return what a process and its descendants use now."""
    cpu_s = memory = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for one in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                times = one.cpu_times()
                cpu_s += times.user + times.system
                memory += one.memory_full_info().pss
    return Use(cpu_s, memory / (1 << 20))


def processes() -> int:
    """Return how many worker processes a peer gets that uses several: one for each core, at most 2."""
    return min(2, os.cpu_count() or 1)
