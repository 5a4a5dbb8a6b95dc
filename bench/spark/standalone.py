"""A standalone cluster of Spark on loopback, each of its parts a process, and ways to trouble its executors."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil

from emq.runtime.errors import EMQError
from emq_servers.server import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"

STARTED_S = 120.0
"""Longest wait for the master and its workers on a busy machine."""

LONGEST_STILL_S = 100.0
"""Longest time for which an executor stands still; after 120 s Spark takes it for lost."""

EXECUTOR = "CoarseGrainedExecutorBackend"

ROOT = Path(__file__).parents[2]

_SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Standalone:
    """A master and workers of one core each; a context manager.

    Attributes:
        url: `spark://127.0.0.1:<port>`.
    """

    def __init__(self, directory: Path, workers: int = 2) -> None:
        self.url = f"spark://{LOOPBACK}:{(port := free_port())}"
        self._directory = directory
        self._port = port
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._start("master.Master", "--host", LOOPBACK, "--port", str(self._port), "--webui-port", "0")
        for number in range(self._workers):
            work = str(self._directory / f"work-{number}")
            # Spark starts no task twice on one host, so each worker has an address of its own.
            host = f"127.0.0.{number + 1}"
            options = ("--host", host, "--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", work)
            self._start("worker.Worker", *options, self.url)
        deadline = time.monotonic() + STARTED_S
        while len(re.findall("Registering worker", self._log("master.Master"))) < self._workers:
            if time.monotonic() > deadline:
                self.__exit__()
                raise EMQError(f"Spark's cluster did not start in {STARTED_S:g} s; {self._directory} has its logs")
            time.sleep(0.2)
        return self

    def __exit__(self, *_: object) -> None:
        for executor in self.executors():
            with contextlib.suppress(psutil.NoSuchProcess):
                executor.send_signal(signal.SIGCONT)
                executor.kill()
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(60)

    def session(self, app: str, **conf: str) -> SparkSession:
        """Return a session of this process on the cluster; `conf` as for `emq_spark.session.local_session`."""
        from pyspark.sql import SparkSession

        from emq_spark.source.registration import register

        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        builder = SparkSession.builder.appName(app).master(self.url)
        settings = {
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": _SMALL,
            "spark.executor.memory": "1g",
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": _SMALL,
            "spark.executorEnv.PYTHONPATH": str(ROOT),
            "spark.sql.shuffle.partitions": "8",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.execution.arrow.pyspark.enabled": "true",
            **{name.replace("_", "."): value for name, value in conf.items()},
        }
        for name, value in settings.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        register(session)
        return session

    def executors(self) -> list[psutil.Process]:
        """Return the processes of the executors that live, the oldest first."""
        found = []
        for process in self._processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        line = child.cmdline()
                        if line and line[0].endswith("java") and any(EXECUTOR in word for word in line):
                            found.append(child)
        return sorted(found, key=lambda each: each.create_time())

    def _start(self, what: str, *arguments: str) -> None:
        import pyspark

        spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
        environment = {
            **os.environ,
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _SMALL,
            "PYTHONPATH": str(ROOT),
        }
        with (self._directory / f"{what}.log").open("ab") as log:
            command = [str(spark_class), f"org.apache.spark.deploy.{what}", *arguments]
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))

    def _log(self, what: str) -> str:
        return (self._directory / f"{what}.log").read_text(errors="replace")


class Trouble(threading.Thread):
    """Kills an executor with SIGKILL, and lets another one stand still for a while, as soon as the work has begun.

    Spark takes the executor that stands still for slow. With speculation it starts the executor's tasks once more
    elsewhere, and both attempts go on when the executor does.

    Args:
        begun: whether the work has begun.
        alone: whether all tasks are done but those of the executor that stands still.
        still_s: seconds for which the executor goes on to stand still after that; 0 to let no executor stand still.

    Attributes:
        killed, stopped: number of executors that were killed, and that stood still.
    """

    def __init__(
        self, cluster: Standalone, begun: Callable[[], bool], alone: Callable[[], bool], still_s: float
    ) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._begun = begun
        self._alone = alone
        self._still_s = still_s
        self._ended = threading.Event()
        self.killed = self.stopped = 0

    def run(self) -> None:
        while not self._begun():
            if self._ended.wait(0.02):
                return
        victim, *others = self._cluster.executors()
        victim.kill()
        self.killed += 1
        if not (self._still_s and others):
            return
        others[0].send_signal(signal.SIGSTOP)
        self.stopped += 1
        # Spark starts a task twice only once no other task is left to start.
        deadline = time.monotonic() + LONGEST_STILL_S
        while not (self._alone() or self._ended.is_set()) and time.monotonic() < deadline:
            self._ended.wait(0.2)
        self._ended.wait(self._still_s)
        with contextlib.suppress(psutil.NoSuchProcess):
            others[0].send_signal(signal.SIGCONT)

    def end(self) -> None:
        self._ended.set()
        self.join()


@contextlib.contextmanager
def troubled(
    cluster: Standalone,
    begun: Callable[[], bool],
    alone: Callable[[], bool] = lambda: True,
    still_s: float = 0.0,
) -> Iterator[Trouble]:
    """Trouble the executors while the block runs.

    Raises:
        EMQError: the block ended before any executor was killed, so it shows nothing.
    """
    trouble = Trouble(cluster, begun, alone, still_s)
    trouble.start()
    try:
        yield trouble
    finally:
        trouble.end()
    if not trouble.killed:
        raise EMQError("the work was done before an executor was killed; give it more to do")


def tasks_done(session: SparkSession, least: int) -> Callable[[], bool]:
    """Return a function that tells whether a job that runs has ended this many tasks."""
    return lambda: any(done >= least for done, _ in _stages(session))


def one_task_left(session: SparkSession) -> Callable[[], bool]:
    """Return a function that tells whether a job that runs has ended all tasks but one."""
    return lambda: any(0 < total - done <= 1 < total for done, total in _stages(session))


def _stages(session: SparkSession) -> list[tuple[int, int]]:
    """Return the number of tasks that have ended, and of all tasks, of each stage that runs."""
    tracker: Any = session.sparkContext.statusTracker()
    found = (tracker.getStageInfo(number) for number in tracker.getActiveStageIds())
    return [(stage.numCompletedTasks, stage.numTasks) for stage in found if stage is not None]
