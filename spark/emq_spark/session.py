"""A Spark session on this machine, with a clear error if Spark or its Java is missing."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from emq.runtime import errors
from emq_spark.source.registration import register, require_packages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA = 17
"""The lowest version of Java that PySpark 4 runs on."""

TASK_TRIES = 3
"""Attempts at a task before the job fails. Spark's default is one attempt on one machine and four on a cluster."""

LOOPBACK = "127.0.0.1"

LEAST_MIB = 512
"""Lowest memory of the driver in MiB; Spark does not start with less."""

QUICK = {"spark_driver_extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Settings for a session in which Java has little to do: Java compiles less and starts to work in half the time."""

_MEMORY = re.compile(r"(\d{1,8})([mg])", re.ASCII)
_MIB = {"m": 1, "g": 1024}


def local_session(app: str, cores: int = 2, memory: str = "2g", **conf: str) -> SparkSession:
    """Return the Spark session of this process with the data source `emq` registered; start a session if none runs.

    The session listens on 127.0.0.1 only and has no web interface. If a session is running, the function returns
    that session and applies those settings in `conf` that Spark can change in a running session.

    Args:
        app: name that the session shows.
        cores: worker processes at once, 1 or more.
        memory: memory of the driver, which is also the executor here, such as `"512m"` or `"2g"`.
        conf: more settings of Spark, with `_` for `.`: `spark_sql_shuffle_partitions="8"`.

    Raises:
        InvalidSettings: PySpark or Java is missing, or `cores` or `memory` is out of range; the text has the remedy.
    """
    check(cores, memory)
    require()
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "conf"))
    # Workers run this Python; with another one they would miss the packages of a virtual environment.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName(app).master(f"local[{cores},{TASK_TRIES}]")
    dotted = {name.replace("_", "."): value for name, value in conf.items()}
    for name, value in {**_LOCAL, "spark.driver.memory": memory, **dotted}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    return session


def check(cores: int, memory: str) -> None:
    """Raise `InvalidSettings` if a session cannot have this number of cores or this memory; starts no Java."""
    if cores < 1:
        raise errors.InvalidSettings(f"cores {cores} must be 1 or more")
    found = _MEMORY.fullmatch(memory)
    if found is None or int(found[1]) * _MIB[found[2]] < LEAST_MIB:
        raise errors.InvalidSettings(f"memory {memory[:40]!r} must be {LEAST_MIB}m or more; write it as 900m or 2g")


@contextlib.contextmanager
def borrowed(app: str, cores: int, memory: str, **conf: str) -> Iterator[SparkSession]:
    """Yield the session that runs in this process, no matter which thread started it.

    If no session runs, start one and stop it afterwards.

    Args:
        app, cores, memory, conf: as for `local_session`, for a session that is started here.

    Raises:
        InvalidSettings: as `local_session`.
    """
    require()
    from pyspark import SparkContext

    # Spark's "active session" belongs to a thread; only the context belongs to the whole process.
    running = SparkContext._active_spark_context is not None
    made = local_session(app, cores, memory, **conf)
    try:
        yield made
    finally:
        if not running:
            made.stop()


def require() -> None:
    """Return if Spark can run here.

    Raises:
        InvalidSettings: a package or Java is missing or too old; install what the text names.
    """
    require_packages()
    program = _java()
    if program is None:
        raise errors.InvalidSettings(
            f"Spark needs Java {JAVA} or newer, which is missing; apt install openjdk-17-jre-headless, or set JAVA_HOME"
        )
    version = _java_version(program)
    if version < JAVA:
        raise errors.InvalidSettings(
            f"Spark needs Java {JAVA} or newer and {program} is {version or 'of unknown version'}; "
            "install a newer one, or set JAVA_HOME to it"
        )


_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    # Spark creates this directory at its start and leaves it empty, so it must not lie in somebody's working directory.
    "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / f"emq-spark-{os.getuid()}"),
    # Spark hands Arrow batches to Python unchanged and does not copy them row by row.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}


def _java() -> str | None:
    """Return the path of Java, found as Spark's own scripts find it; None if there is no Java."""
    home = os.environ.get("JAVA_HOME")
    if home:
        program = os.path.join(home, "bin", "java")
        return program if os.access(program, os.X_OK) else None
    return shutil.which("java")


@functools.cache
def _java_version(program: str) -> int:
    """Return the major version of a Java; 0 if the program does not report one.

    A reduced Java (some of its modules left out) reports the same version as a full one, which Spark needs.
    """
    try:
        told = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(found.group(1)) if found else 0
