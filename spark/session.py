"""A Spark session on this machine, and a plain word where Spark or its Java is missing."""

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

from emq import errors
from spark.packages import require_packages
from spark.source.registration import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA = 17
"""The lowest version of Java that PySpark 4 runs on."""

TASK_TRIES = 3
"""How often a task may be tried here, as on a cluster, where four is the default."""

LOOPBACK = "127.0.0.1"

LEAST_MIB = 512
"""Spark does not start with less."""

QUICK = {"spark_driver_extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Settings for a session in which Java has little to do: it compiles less, and begins to work in half the time."""

_MEMORY = re.compile(r"(\d+)([mg])", re.ASCII)
_MIB = {"m": 1, "g": 1024}


def local_session(app: str, cores: int = 2, memory: str = "2g", **conf: str) -> SparkSession:
    """The Spark session of this process, started if there is none, with the data source `emq` registered.

    Listens on 127.0.0.1 only and has no web interface. If a session is running, it is returned as it is, with
    `conf` applied as far as Spark lets settings change while it runs.

    Args:
        app: shown as its name.
        cores: worker processes at once, 1 or more.
        memory: of the driver, which is also the executor here, such as `"512m"` or `"2g"`.
        conf: more settings of Spark, with `_` for `.`: `spark_sql_shuffle_partitions="8"`.

    Raises:
        EMQError: PySpark or Java is missing, or `cores` or `memory` is out of range; the text has the remedy.
    """
    if cores < 1:
        raise errors.EMQError(f"cores {cores} must be 1 or more")
    found = _MEMORY.fullmatch(memory)
    if found is None or int(found[1]) * _MIB[found[2]] < LEAST_MIB:
        raise errors.EMQError(f"memory {memory!r} must be {LEAST_MIB}m or more; write it as 900m or 2g")
    require()
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "conf"))
    # Workers run what this names; without it they would miss the packages of a virtual environment.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName(app).master(f"local[{cores},{TASK_TRIES}]")
    for name, value in {**_LOCAL, "spark.driver.memory": memory, **_dotted(conf)}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    return session


@contextlib.contextmanager
def borrowed(app: str, cores: int, memory: str, **conf: str) -> Iterator[SparkSession]:
    """The session that runs in this process, whichever thread began it; or one that is ended afterwards.

    Args:
        app, cores, memory, conf: of the one that is started, as for `local_session`.

    Raises:
        EMQError: as `local_session`.
    """
    require()
    from pyspark import SparkContext

    # The active session is one of a thread; what runs in the process, only this tells.
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
        EMQError: a package or Java is missing or too old; install what the text names.
    """
    require_packages()
    program = _java()
    if program is None:
        raise errors.EMQError(
            f"Spark needs Java {JAVA} or newer and there is none; apt install openjdk-17-jre-headless, or set JAVA_HOME"
        )
    version = _java_version(program)
    if version < JAVA:
        raise errors.EMQError(
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
    # It is made at the start, and stays empty: not where somebody works.
    "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / f"emq-spark-{os.getuid()}"),
    # Arrow batches reach Python as they are, not copied row by row.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}


def _dotted(conf: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in conf.items()}


def _java() -> str | None:
    """As Spark's own scripts look for it."""
    home = os.environ.get("JAVA_HOME")
    if home:
        program = os.path.join(home, "bin", "java")
        return program if os.access(program, os.X_OK) else None
    return shutil.which("java")


@functools.cache
def _java_version(program: str) -> int:
    """Major version; 0 if it does not tell. Spark needs a full Java, but a cut one tells no different version."""
    try:
        told = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(found.group(1)) if found else 0
