"""A Spark for one audit on this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pyspark.sql import SparkSession

from spark import session


@contextlib.contextmanager
def spark(cores: int, memory: str) -> Iterator[SparkSession]:
    """The session that runs in this process, or one that is ended afterwards.

    Raises:
        EMQError: PySpark or Java is missing; the text has the remedy.
    """
    running = SparkSession.getActiveSession()
    made = session.local_session("emq audit", cores, memory)
    try:
        yield made
    finally:
        if running is None:
            made.stop()
