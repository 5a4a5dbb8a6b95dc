"""One host of a cluster, as a process."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import emq_servers as servers
from support.cluster_receipts import Receipts

SCRIPT = Path(__file__).with_name("cluster_host_process.py")


class HostProcess:
    """One host process.

    Attributes:
        expected: True if the process should be running; a test that waits fails as soon as such a process ends.
    """

    def __init__(self, name: str, directory: Path, environ: Mapping[str, str], handler_ms: float, ahead_s: float):
        self.name = name
        self.receipts = Receipts(directory / f"{name}.receipts", name)
        self.log = directory / f"{name}.log"
        self.expected = True
        arguments = [str(self.receipts.path), str(handler_ms), str(ahead_s)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(SCRIPT), *arguments], env=dict(environ), cwd=directory, stdout=log, stderr=log
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def logged(self) -> str:
        return self.log.read_text()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def pause(self) -> None:
        servers.stand_still(self._process.pid)

    def kill(self) -> None:
        self.expected = False
        if self.running:
            self._process.kill()
            self._process.send_signal(signal.SIGCONT)
        self._process.wait()

    async def stop(self, timeout_s: float = 20.0) -> int:
        """Ask for a clean stop; return the exit status."""
        self.expected = False
        self.signal(signal.SIGTERM)
        return await self.wait(timeout_s)

    async def wait(self, timeout_s: float = 20.0) -> int:
        """Return the exit status once the process has ended."""
        self.expected = False
        return await asyncio.to_thread(self._process.wait, timeout_s)
