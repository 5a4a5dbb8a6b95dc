"""The stage of every benchmark: a server, a database, an app, and child processes for the other side."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import multiprocessing
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, ParamSpec, Self, TypeVar

import psutil
import rich.console
import rich.progress
import uvloop

import emq
import emq_servers as servers
from emq.runtime.settings import Settings
from emq.topics.model import Topic

STORES = ("redis", "sqlite", "memory", "postgres")
_KINDS = {"redis": "redis", "rediss": "redis", "sqlite": "sqlite", "postgresql": "postgres"}
UNLIMITED = 1e6
"""A quota that no benchmark reaches, in starts a second."""

BAR = (
    rich.progress.TextColumn("{task.description}"),
    rich.progress.BarColumn(),
    rich.progress.MofNCompleteColumn(),
    rich.progress.TimeElapsedColumn(),
)

P = ParamSpec("P")
T = TypeVar("T")


def kind_of(store: str) -> str:
    """Return the kind of a store that is given by its kind or its URL; the empty string for a URL of no kind here."""
    return _KINDS.get(store.partition(":")[0], "") if ":" in store else store


class Stage:
    """Starts the store's server, and stops it at exit. The catalog is an SQLite file in a temporary directory.

    Args:
        store: a kind of `STORES`, or the URL of a store that is there; that has no server here, and what a run leaves
            in it stays.
        database: the URL of a catalog that is there; empty for a new file.

    Attributes:
        store: the kind of the store.
        directory: a temporary directory of this run.
    """

    def __init__(self, store: str, database: str = "", *, quiet: bool = False) -> None:
        self.store = kind_of(store)
        self._given = store if ":" in store else ""
        self._given_database = database
        self.server: servers.Server | None = None
        self._stack = contextlib.ExitStack()
        self._console = rich.console.Console(stderr=True, quiet=quiet)

    def __enter__(self) -> Self:
        logging.basicConfig(level=logging.WARNING)
        directory = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="emq-bench-"))
        self.directory = Path(directory)
        self.database = self._given_database or f"sqlite:///{directory}/catalog.db"
        query = f"?max_queue_qps={UNLIMITED:.0f}"
        if self._given:
            self.url = self._given if "?" in self._given else self._given + query
        elif self.store == "redis":
            self.server = self._stack.enter_context(servers.start_redis())
            self.url = self.server.url + query
        elif self.store == "postgres":
            self.server = self._stack.enter_context(servers.start_postgres())
            self.url = self.server.url + query
        elif self.store == "sqlite":
            self.url = f"sqlite:///{directory}/store.db{query}"
        else:
            self.url = f"memory://bench{query}"
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def app(self, options: Settings | None = None) -> emq.App:
        return emq.App(self.url, database=self.database, options=options)

    def say(self, text: str) -> None:
        """Print a line about the progress."""
        self._console.print(f"[dim]{text}[/]")

    @contextlib.asynccontextmanager
    async def progress(self, text: str, total: int, done: Callable[[], int]) -> AsyncIterator[None]:
        """Show a bar during the block, which asks `done` every second how much is done."""
        with rich.progress.Progress(*BAR, console=self._console) as shown:
            task = shown.add_task(text, total=total)

            async def watch() -> None:
                while True:
                    shown.update(task, completed=done())
                    await asyncio.sleep(1.0)

            watching = asyncio.create_task(watch())
            try:
                yield
            finally:
                watching.cancel()
                shown.update(task, completed=done())

    async def elsewhere(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Await `function` in a child process, so that this process's memory and CPU do not include the function's.

        Processes cannot share a memory store; with that store the function runs in this process.
        """
        if self.store == "memory":
            return await function(*args, **kwargs)
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
            return await asyncio.get_running_loop().run_in_executor(pool, _run, function, args, kwargs)

    def server_cpu_s(self) -> float:
        """Return the CPU seconds that the server has used, user and system; 0 if there is no server."""
        if self.server is None:
            return 0.0
        used = psutil.Process(self.server.pid).cpu_times()
        return used.user + used.system


def _run(function: Callable[..., Coroutine[Any, Any, T]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    return uvloop.run(function(*args, **kwargs))


def unlimited_topics(queues: int) -> list[Topic]:
    """Return topics that have `queues` physical queues together, and quotas that no benchmark reaches.

    From 300 queues on, the topics have ten groups with three priorities each. Below, one topic has a group per queue.
    """
    if queues >= 300 and queues % 30 == 0:
        return [Topic(f"bench-{i}", UNLIMITED * 10, group_qps=UNLIMITED) for i in range(queues // 30)]
    return [Topic("bench-0", UNLIMITED * queues, group_qps=UNLIMITED, priorities=("only",))]


class Stopwatch:
    """Wall and CPU seconds of this process since the stopwatch was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    @property
    def wall_s(self) -> float:
        return time.perf_counter() - self._wall

    @property
    def cpu_s(self) -> float:
        return time.process_time() - self._cpu
