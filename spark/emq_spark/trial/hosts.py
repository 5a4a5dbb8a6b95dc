"""The host processes (`emq host`) of a trial: start, kill and stop them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from emq.runtime import errors
from emq.runtime.settings import Settings

STOP_S = 30.0
"""Seconds that a host may take for a clean stop."""


class TrialHost:
    """One host process.

    Attributes:
        name: name of the host.
        log: file with the output of the process.
    """

    def __init__(self, name: str, settings: Settings, log: Path) -> None:
        self.name = name
        self.log = log
        told = {field: str(getattr(settings, field)) for field in settings.__struct_fields__}
        told |= {"host_name": name, "app": "emq_spark.trial.handler"}
        # A settings file in the working directory must not change the trial.
        environ = {key: value for key, value in os.environ.items() if not key.startswith("EMQ_")}
        environ |= {f"EMQ_{field.upper()}": value for field, value in told.items()}
        environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(Path(__file__).parents[2]), environ.get("PYTHONPATH")))
        )
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "emq_cli", "host"], env=environ, cwd=log.parent, stdout=out, stderr=out
            )

    def check(self) -> None:
        """Raise `EMQError` if the host has ended by itself."""
        if (status := self._process.poll()) is not None:
            raise errors.EMQError(f"{self.name} ended with status {status}; the end of its log:\n{self._tail()}")

    def kill(self) -> None:
        """Kill the process with SIGKILL, so that it cannot clean up."""
        self._process.kill()
        self._process.wait()

    async def stop(self) -> None:
        """Ask the host to stop, and wait. Raises `EMQError` if the host does not stop cleanly."""
        self._process.terminate()
        try:
            status = await asyncio.to_thread(self._process.wait, STOP_S)
        except subprocess.TimeoutExpired:
            raise errors.EMQError(f"{self.name} did not stop within {STOP_S:g} s:\n{self._tail()}") from None
        if status:
            raise errors.EMQError(f"{self.name} stopped with status {status}:\n{self._tail()}")

    def _tail(self) -> str:
        return self.log.read_text(errors="replace")[-1_000:]


class TrialHosts:
    """All host processes, in the order of their start.

    Args:
        settings: settings of each host, except the name.
        directory: directory of their logs.
    """

    def __init__(self, settings: Settings, directory: Path) -> None:
        self._settings = settings
        self._directory = directory
        self._started = 0
        self.running: list[TrialHost] = []

    def start(self) -> TrialHost:
        """Start one more host; return at once."""
        self._started += 1
        name = f"host-{self._started}"
        host = TrialHost(name, self._settings, self._directory / f"{name}.log")
        self.running.append(host)
        return host

    def kill(self, host: TrialHost) -> None:
        host.kill()
        self.running.remove(host)

    async def stop(self) -> None:
        """Stop all hosts, one after the other as in a shutdown. Raises as `TrialHost.stop`."""
        for host in list(self.running):
            await host.stop()
            self.running.remove(host)

    def check(self) -> None:
        """Raise `EMQError` if a host has ended by itself."""
        for host in self.running:
            host.check()


@contextlib.contextmanager
def hosts_of(settings: Settings, directory: Path) -> Iterator[TrialHosts]:
    """Yield hosts; at the end of the block every process is ended."""
    hosts = TrialHosts(settings, directory)
    try:
        yield hosts
    finally:
        for host in hosts.running:
            host.kill()
