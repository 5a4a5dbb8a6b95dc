"""The host processes of a benchmark: start, stop and kill them; no process outlives the benchmark."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from emq.runtime import errors
from emq_servers.server import run_as

STOP_TIMEOUT_S = 60.0
_ROOT = Path(__file__).parents[2]
_LOG_TAIL_LINES = 15


class InvalidRun(errors.EMQError):
    """The benchmark did not do what it should measure, so its figures mean nothing. Correct what the text names."""


class HostProcess:
    """One host process, `python -m <module> <options as JSON>`; its standard error goes to a file.

    Attributes:
        killed, stopped: True if the process was ended by `kill` or `stop`.
    """

    def __init__(self, module: str, name: str, log: Path, options: Mapping[str, Any]) -> None:
        self.name = name
        self.log = log
        self.killed = self.stopped = False
        command = [*run_as(None, "KILL"), sys.executable, "-m", module, json.dumps(options)]
        with log.open("wb") as file:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=file, cwd=_ROOT)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """End the process at once, like a crash; return when it is gone. Safe to repeat."""
        if self.running:
            self.killed = True
            self._process.kill()
        self._process.wait()

    async def stop(self) -> None:
        """End the process cleanly. Raises `InvalidRun` if that takes a minute, or if its status is not 0."""
        self.stopped = True
        self.signal(signal.SIGTERM)
        await self.ended()

    async def ended(self) -> None:
        """Return when the process has ended by itself. Raises `InvalidRun` as for `stop`."""
        try:
            status = await asyncio.to_thread(self._process.wait, STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise InvalidRun(f"host {self.name} still runs after {STOP_TIMEOUT_S:g} s:\n{self._tail()}") from None
        if status:
            raise InvalidRun(f"host {self.name} ended with status {status}:\n{self._tail()}")

    def check(self) -> None:
        """Raise `InvalidRun` if the process has ended."""
        if not self.running:
            raise InvalidRun(f"host {self.name} ended with status {self._process.returncode}:\n{self._tail()}")

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])


class Crew:
    """All host processes that a benchmark has started, in this order; a context manager that ends them.

    Args:
        module: the module that the processes run.
        directory: the directory for their logs.
    """

    def __init__(self, module: str, directory: Path) -> None:
        self._module = module
        self._directory = directory
        self.hosts: list[HostProcess] = []

    def start(self, options: Mapping[str, Any]) -> HostProcess:
        """Start one more host; it gets `options` and its `name`."""
        name = f"host-{len(self.hosts)}"
        log = self._directory / f"{name}.log"
        self.hosts.append(HostProcess(self._module, name, log, {**options, "name": name}))
        return self.hosts[-1]

    @property
    def running(self) -> list[HostProcess]:
        return [host for host in self.hosts if host.running]

    async def stop(self) -> None:
        """End all hosts cleanly, at the same time."""
        await asyncio.gather(*(host.stop() for host in self.running))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for host in self.hosts:
            host.kill()
