"""`emq run --reload`: a host in a process of its own, which is started again when a Python file changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import watchfiles

from emq.runtime import errors, plurals
from emq_cli import logs
from emq_cli.session import Session

DRAIN_S = 1.0
"""Most seconds for which the host waits for messages in flight, unless the setting drain_s is less."""

STOP_S = 1.0
"""Seconds after `DRAIN_S` until a second signal cancels what the host does, and as many more until it is killed."""

DEBOUNCE_MS = 200
"""Files that are saved together within this time cause one start."""

log = logging.getLogger("emq")


def run(session: Session) -> None:
    """Run the app that the settings name until Ctrl-C or SIGTERM; start it again when a Python file changes.

    Raises:
        InvalidSettings: a setting is wrong; nothing was started.
    """
    settings = session.settings
    logs.configure(settings.log_level, settings.log_format)
    command = [sys.executable, "-m", "emq_cli", "run", settings.app, "--child", *_options(session)]
    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it logs changes, as this module does
    environment = {**os.environ, "EMQ_DRAIN_S": str(min(settings.drain_s, DRAIN_S))}
    asyncio.run(Reloader(command, environment, Path.cwd()).run())


def _options(session: Session) -> list[str]:
    """Return the options of the command line again; the rest of the settings is read again at each start."""
    given = {**session.overrides, "env": session.overrides.get("environment"), "settings": session.settings_file}
    names = ("store", "database", "cluster", "env", "settings", "metrics", "log_level", "log_format")
    return [f"--{name.replace('_', '-')}={given[name]}" for name in names if given.get(name) is not None]


class Reloader:
    """Keeps one child running.

    States: *running*; *waiting* for a change, after the child has ended by itself (a module that cannot be imported,
    for one). A change stops the child and starts it again. Ctrl-C and SIGTERM end both, a second signal
    at once.

    The child is in a process group of its own, so that Ctrl-C reaches only this process. By its standard input it
    notices if this process is gone.

    Args:
        command: starts the child.
        environment: of the child.
        directory: the Python files below it are watched, but not those of environments and hidden directories.
    """

    def __init__(self, command: Sequence[str], environment: dict[str, str], directory: Path) -> None:
        self._command = command
        self._environment = environment
        self._directory = directory
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._child: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        """Return when the child has ended after a signal."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        watching = asyncio.create_task(self._watch(), name="emq reload")
        try:
            while not self._stopping.is_set():
                self._changed.clear()
                await self._run_child(watching)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        if self._stopping.is_set() and self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                self._child.kill()
        self._stopping.set()

    async def _watch(self) -> None:
        found = watchfiles.awatch(
            self._directory,
            watch_filter=watchfiles.PythonFilter(),
            debounce=DEBOUNCE_MS,
            step=DEBOUNCE_MS // 4,
            stop_event=self._stopping,
        )
        try:
            async for changes in found:
                log.info("changed: %s; starting again", self._named({path for _, path in changes}))
                self._changed.set()
        except OSError as exc:  # the machine's limit of watched directories, for one
            raise errors.InvalidSettings(f"--reload cannot watch {self._directory}: {exc}") from exc

    def _named(self, paths: set[str]) -> str:
        files = sorted(os.path.relpath(path, self._directory) for path in paths)
        return ", ".join(files[:3]) + (f" and {plurals.others(len(files) - 3)}" if len(files) > 3 else "")

    async def _run_child(self, watching: asyncio.Task[None]) -> None:
        """Start the child, and return when it has ended and is to be started again, or never again."""
        self._child = child = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.PIPE, env=self._environment, start_new_session=True
        )
        stop = asyncio.create_task(self._stopping.wait())
        change = asyncio.create_task(self._changed.wait())
        ended = asyncio.create_task(child.wait())
        try:
            await asyncio.wait([stop, change, ended, watching], return_when=asyncio.FIRST_COMPLETED)
            if ended.done() and not self._stopping.is_set() and not self._changed.is_set():
                log.warning("the app ended with status %d; it starts again when a file changes", child.returncode)
                await asyncio.wait([stop, change, watching], return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                await watching  # raises if files cannot be watched
        finally:
            await self._end(child, ended)
            for task in (stop, change):
                task.cancel()

    async def _end(self, child: asyncio.subprocess.Process, ended: asyncio.Task[int]) -> None:
        """Stop the child cleanly if it can; a second signal cancels what it does."""
        for number, wait_s in ((signal.SIGTERM, DRAIN_S + STOP_S), (signal.SIGTERM, STOP_S), (signal.SIGKILL, None)):
            if ended.done():
                return
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(number)
            await asyncio.wait([ended], timeout=wait_s)
