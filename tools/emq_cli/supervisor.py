"""`emq host --processes N`: N host processes on one machine, started, watched and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from typing import Any

import msgspec

from emq.runtime.settings import Settings

log = logging.getLogger("emq")

BACKOFF_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds until a failed process is started again: after the first failure, the second ...; the last value repeats."""

HEALTHY_S = 60.0
"""If a process has run for this long, its next failure counts as the first."""


class Supervisor:
    """Runs the children and starts again those that fail.

    Each child is a member of the cluster under a name of its own, also after it was started again. It then waits until
    the session of the failed process ends; that process's groups go to others then. Where hosts meet in the database,
    that session ends as soon as the successor starts on the same machine.

    States of a child: *running*, *waiting* (it failed and is started again after a while), *ended* (after a signal,
    or for good). Children are in process groups of their own, so that Ctrl-C reaches only this process, which passes
    it on as SIGTERM; a second one ends them at once. A child notices by its standard input that this process is gone.

    Args:
        settings: handed to the children through their environment.
        processes: how many.
    """

    def __init__(self, settings: Settings, processes: int) -> None:
        self._settings = settings
        self._processes = processes
        # A child that is started again goes on under its old name.
        self._name = settings.host_name or f"{socket.gethostname()}-{os.getpid()}"
        self._children: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Return when all children have ended after SIGTERM or Ctrl-C.

        A child that fails is started again, without end. Its own log says what is wrong; the others go on meanwhile.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        last = self._processes - 1
        log.info("starting the members %s-0 to %s-%d as processes; Ctrl-C stops", self._name, self._name, last)
        try:
            async with asyncio.TaskGroup() as group:
                for index in range(self._processes):
                    group.create_task(self._keep(index))
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
        log.info("all host processes have stopped")

    def _stop(self) -> None:
        self._stopping.set()
        for child in self._children.values():
            _terminate(child)

    async def _keep(self, index: int) -> None:
        """Start the child, wait for its end, start it again."""
        failures = 0
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                code: int | None = await self._run_child(index)
            except (OSError, ValueError) as exc:
                # For example, the machine has no process or memory left; the other children go on.
                log.warning("host process %d could not be started: %s", index + 1, exc)
                code = None
            if self._stopping.is_set():
                return
            failures = 1 if time.monotonic() - started > HEALTHY_S else failures + 1
            wait_s = BACKOFF_S[min(failures, len(BACKOFF_S)) - 1]
            if code is not None:
                log.warning("host process %d ended with status %s; starting it again in %g s", index + 1, code, wait_s)
            if self._settings.cluster and code is not None and code < 0:
                # It was killed, so it could not end its session.
                log.info(
                    "it is a member again when its old session has ended, within %g s", self._settings.session_timeout_s
                )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._stopping.wait()

    async def _run_child(self, index: int) -> int:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "emq_cli", "host", "--member", f"{index}/{self._processes}"),
            stdin=asyncio.subprocess.PIPE,
            env={**os.environ, **_environment(msgspec.structs.replace(self._settings, host_name=self._name))},
            start_new_session=True,
        )
        self._children[index] = child
        if self._stopping.is_set():
            _terminate(child)
        try:
            return await child.wait()
        except asyncio.CancelledError:
            _terminate(child)
            await child.wait()
            raise
        finally:
            del self._children[index]


def _environment(settings: Settings) -> dict[str, str]:
    """The settings as environment variables, which go before a settings file."""
    plain: dict[str, Any] = msgspec.to_builtins(settings)
    return {f"EMQ_{name.upper()}": str(value) for name, value in plain.items()}


def _terminate(child: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.terminate()
