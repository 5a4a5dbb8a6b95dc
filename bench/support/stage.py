"""The stage of every benchmark: a server, a database, an app, and child processes for the other side."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, Self, TypeVar

import psutil
import rich.console
import uvloop

import emq
import emq_servers as servers
from emq.runtime.settings import Settings
from emq.topics.model import Topic

STORES = ("redis", "sqlite", "memory", "postgres")
UNLIMITED = 1e6
"""A quota that no benchmark reaches, in starts a second."""

P = ParamSpec("P")
T = TypeVar("T")


class Stage:
    """Starts the store's server, and stops it at exit. The catalog is an SQLite file in a temporary directory."""

    def __init__(self, store: str, *, quiet: bool = False) -> None:
        self.store = store
        self.server: servers.Server | None = None
        self._stack = contextlib.ExitStack()
        self._console = rich.console.Console(stderr=True, quiet=quiet)

    def __enter__(self) -> Self:
        logging.basicConfig(level=logging.WARNING)
        directory = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="emq-bench-"))
        self.database = f"sqlite:///{directory}/catalog.db"
        query = f"?max_queue_qps={UNLIMITED:.0f}"
        if self.store == "redis":
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

    async def elsewhere(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Await `function` in a child process, so that this process's memory and CPU do not include the function's.

        Processes cannot share a memory store; with that store the function runs in this process.
        """
        if self.store == "memory":
            return await function(*args, **kwargs)
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
            import asyncio

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
