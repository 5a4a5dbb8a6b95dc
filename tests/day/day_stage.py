"""Where a day takes place: a store, its hosts, and what happens to them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple, Protocol

from day_host import TRAIL, Handlers
from day_record import Evidence, now_us

import emq
from emq.runtime import settings
from emq.runtime.clock import SystemClock
from emq.trail.writer import Trail
from support.failure_lines import without_tracebacks

TESTS = Path(__file__).parents[1]
SCRIPT = Path(__file__).with_name("day_host.py")

START_S = 60.0

STOP_S = 40.0

CHECKPOINT_S = 0.5

SESSION_S = 4.0


class Place(NamedTuple):
    """Attributes:
    store, database, cluster: URLs; no cluster for a store of one host.
    hosts: how many.
    in_process: the store lives in this process, so its host does, too, and is not killed.
    """

    store: str
    database: str
    cluster: str = ""
    hosts: int = 1
    in_process: bool = False

    def settings(self, name: str) -> dict[str, str]:
        return {
            "store": self.store,
            "database": self.database,
            "cluster": self.cluster,
            "host_name": name,
            "checkpoint_s": str(CHECKPOINT_S),
            "session_timeout_s": str(SESSION_S),
        }


class Life(Protocol):
    """A life of a host."""

    def check(self) -> None:
        """Fail the test if it ended by itself."""

    async def stop(self) -> None:
        """End it cleanly."""


class Process:
    """A host as a process."""

    def __init__(self, place: Place, name: str, life: str, directory: Path) -> None:
        self.life = life
        self._log = directory / f"{life}.log"
        environ = {key: value for key, value in os.environ.items() if not key.startswith("EMQ_")}
        environ |= {f"EMQ_{key.upper()}": value for key, value in place.settings(name).items()}
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(TESTS), environ.get("PYTHONPATH"))))
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(SCRIPT), life, str(directory)], env=environ, stdout=log, stderr=log
            )

    def check(self) -> None:
        assert self._process.poll() is None, f"{self.life} ended by itself:\n{self._tail()}"

    async def stop(self) -> None:
        self.check()
        self._process.send_signal(signal.SIGTERM)
        status = await asyncio.to_thread(self._process.wait, STOP_S)
        assert status == 0, f"{self.life} ended with status {status}:\n{self._tail()}"

    def kill(self) -> None:
        """By SIGKILL; nothing to do if it has ended."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _tail(self) -> str:
        return self._log.read_text()[-3000:]


class InProcess:
    """A host beside the publisher, for a store that lives in this process."""

    def __init__(self, place: Place, name: str, life: str, directory: Path) -> None:
        self.life = life
        self._log = logging.FileHandler(directory / f"{life}.log")
        logging.getLogger("emq").addHandler(self._log)
        self._app = emq.App(
            options=settings.load(environ={}, **_typed(place, name)),
            trail=(trail := Trail.open(directory / "trail", life, SystemClock(), TRAIL)),
        )
        self._trail = trail
        self._task = asyncio.create_task(self._run(Handlers(self._app, life, directory)))

    async def _run(self, handlers: Handlers) -> None:
        with without_tracebacks():
            async with self._app, handlers.receiving():
                await self._app.run()

    def check(self) -> None:
        assert not self._task.done(), f"{self.life} ended by itself: {self._task}"

    async def stop(self) -> None:
        self.check()
        self._app.stop()
        async with asyncio.timeout(STOP_S):
            await self._task
        self._trail.close()
        logging.getLogger("emq").removeHandler(self._log)
        self._log.close()

    def kill(self) -> None:
        self._task.cancel()


def _typed(place: Place, name: str) -> dict[str, object]:
    given = place.settings(name)
    numbers = {key: float(given.pop(key)) for key in ("checkpoint_s", "session_timeout_s")}
    return {**given, **numbers}


class Stage:
    """The hosts of a day. Which life of which host ended how goes into the evidence."""

    def __init__(self, place: Place, directory: Path, evidence: Evidence) -> None:
        self.place = place
        self.directory = directory
        self.evidence = evidence
        self._lives: dict[str, Process | InProcess] = {}
        self._count = 0

    def start(self, name: str) -> None:
        self._count += 1
        made = InProcess if self.place.in_process else Process
        life = f"{name}.{self._count}"
        self._lives[name] = made(self.place, name, life, self.directory)
        self.evidence.started_us[life] = now_us()
        self.evidence.disturbed_us.append(now_us())

    async def stop(self, name: str) -> None:
        self.evidence.disturbed_us.append(now_us())
        await self._lives.pop(name).stop()
        self.evidence.disturbed_us.append(now_us())

    def kill(self, name: str) -> None:
        life = self._lives.pop(name)
        assert isinstance(life, Process)
        life.check()
        # A start between these two lines is of the killed life still, so the later time is the right one.
        life.kill()
        self.evidence.killed[life.life] = now_us()
        self.evidence.disturbed_us.append(now_us())

    async def at_work(self, *names: str) -> None:
        """Wait until each of these hosts has run something in its present life; a busy machine takes its time."""
        files = [self.directory / f"{self._lives[name].life}.runs" for name in names]
        async with asyncio.timeout(START_S):
            while not all(file.exists() and file.stat().st_size for file in files):
                self.check()
                await asyncio.sleep(0.1)

    def check(self) -> None:
        """Fail the test if a host has ended by itself."""
        for life in self._lives.values():
            life.check()

    async def stop_all(self) -> None:
        for name in list(self._lives):
            await self.stop(name)

    def troubles(self) -> list[str]:
        """Lines of the hosts' logs that no day may have."""
        found = []
        for path in sorted(self.directory.glob("*.log")):
            lines = path.read_text().splitlines()
            for i, line in enumerate(lines):
                if line.lstrip().startswith("Traceback") or " ERROR " in line or " CRITICAL " in line:
                    found.append(f"{path.name}: " + " | ".join(lines[max(0, i - 1) : i + 30])[:3000])
        return found

    @contextlib.asynccontextmanager
    async def closing(self) -> AsyncIterator[Stage]:
        try:
            yield self
        finally:
            for life in self._lives.values():
                life.kill()
